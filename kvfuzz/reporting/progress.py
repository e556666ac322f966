"""A run while it goes on: a live bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from kvfuzz.engine.events import Event, FindingMade, Searching, TargetStarted
from kvfuzz.files import printable
from kvfuzz.reporting.console import path_key
from kvfuzz.reporting.terminal import QuietConsole
from kvfuzz.reporting.words import plural

#: Findings that have lines of their own.
MAX_LINES = 100
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
        if first and len(self._met) > MAX_LINES:
            if len(self._met) == MAX_LINES + 1:
                self._err.say(f"over {MAX_LINES} findings: further ones are kept as they are met")
            return
        name = f"{finding.id} on {printable(finding.target)}"
        layers = plural(len(finding.scenario), "layer")
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
            case TargetStarted(uri, surface):
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
    """A bar that fills with the budget; all targets together, and the one that spoke last."""

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
        self._task = self._progress.add_task("", total=None, counts="loading")
        self._began = time.monotonic()
        self._counted: dict[tuple[str, str], int] = {}

    def take(self, event: Event) -> None:
        """Show one event."""
        match event:
            case TargetStarted(uri, surface):
                self._counted.setdefault((uri, surface), 0)
                self._progress.update(self._task, description=f"{printable(uri)} {surface}")
            case Searching(uri, report, left):
                self._counted[uri, report.surface] = report.tally.mixes
                self._show(f"{printable(uri)} {report.surface}", left)
            case FindingMade():
                self._finding(event)

    def _show(self, description: str, left: float | None) -> None:
        mixes = sum(self._counted.values())
        took = time.monotonic() - self._began
        counts = [f"{mixes:,} mixes", f"{mixes / took:,.0f}/s"]
        if len(self._counted) > 1:
            counts.append(plural(len(self._counted), "search", "searches"))
        if self._met:
            counts.append(plural(len(self._met), "finding"))
        if left is None:
            total = None if self._mixes is None else float(self._mixes * len(self._counted))
            done = float(mixes)
        else:
            counts.append(f"{left:.0f} s left")
            done, total = took, took + left
        self._progress.update(
            self._task,
            description=description,
            completed=done,
            total=total,
            counts=", ".join(counts),
        )

    def __enter__(self) -> View:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
