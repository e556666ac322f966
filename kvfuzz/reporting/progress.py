"""A run while it goes on: a live bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from kvfuzz.engine.events import Event, FindingMade, Searching, TargetStarted
from kvfuzz.files import printable
from kvfuzz.reporting.console import count, path_key
from kvfuzz.reporting.terminal import QuietConsole

#: Seconds between lines where there is no terminal.
_LINE_SECONDS = 10.0


class View(Protocol):
    """Shows a run's events while it is open."""

    def take(self, event: Event) -> None:
        """Show one event."""
        ...

    def __enter__(self) -> View: ...

    def __exit__(self, *_: object) -> None: ...


def view(err: QuietConsole, mixes: int | None) -> View:
    """The view that suits the console.

    Args:
        err: Console on standard error.
        mixes: Mixes that each surface is given, if they are the budget.
    """
    return LiveView(err, mixes) if err.is_terminal else LineView(err, mixes)


class _View:
    """What both views share: one line for a finding when it is met, one when it is shrunk."""

    def __init__(self, err: QuietConsole, mixes: int | None) -> None:
        self._err = err
        self._mixes = mixes
        self._met: set[str] = set()

    def _finding(self, event: FindingMade) -> None:
        finding = event.finding
        first = path_key(finding) not in self._met
        self._met.add(path_key(finding))
        name = f"{finding.id} on {printable(finding.target)}"
        layers = count(len(finding.scenario), "layer")
        if finding.status == "known":
            if first:
                self._err.say(f"known: {name}")
        elif finding.shrunk:
            self._err.say(f"shrunk: {name} to {layers}, in {printable(event.path)}")
        elif first:
            self._err.say(f"met: {name}, {layers}; shrinking it")

    def __enter__(self) -> View:
        return self  # type: ignore[return-value]

    def __exit__(self, *_: object) -> None:
        return None


class LineView(_View):
    """Plain lines, for logs."""

    _said = 0.0

    def take(self, event: Event) -> None:
        """Show one event, if it is news or time for a line."""
        match event:
            case TargetStarted(uri, surface, _):
                self._err.say(f"{printable(uri)} {surface}: loading")
                self._said = time.monotonic()
            case Searching(uri, report, left):
                now = time.monotonic()
                if now - self._said >= _LINE_SECONDS:
                    self._said = now
                    rest = "" if left is None else f", {left:.0f} s left"
                    self._err.say(
                        f"{printable(uri)} {report.surface}: {report.tally.mixes:,} mixes, "
                        f"{report.mixes_per_second:,.0f} a second{rest}"
                    )
            case FindingMade():
                self._finding(event)


class LiveView(_View):
    """A bar that fills with the budget."""

    def __init__(self, err: QuietConsole, mixes: int | None) -> None:
        super().__init__(err, mixes)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[counts]}", markup=False),
            console=err,
            transient=True,
        )
        self._task: TaskID | None = None

    def take(self, event: Event) -> None:
        """Show one event."""
        match event:
            case TargetStarted(uri, surface, seconds):
                if self._task is not None:
                    self._progress.remove_task(self._task)
                self._task = self._progress.add_task(
                    f"{printable(uri)} {surface}",
                    total=self._mixes if seconds is None else seconds,
                    counts="loading",
                )
            case Searching(_, report, left) if self._task is not None:
                rest = "" if left is None else f", {left:.0f} s left"
                self._progress.update(
                    self._task,
                    completed=report.tally.mixes if left is None else report.seconds,
                    counts=f"{report.tally.mixes:,} mixes, {report.mixes_per_second:,.0f}/s{rest}",
                )
            case FindingMade():
                self._finding(event)

    def __enter__(self) -> View:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
