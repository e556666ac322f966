"""Targets made ready for a command: releases fetched, with a progress bar."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from kvfuzz.engine.events import TargetReport
from kvfuzz.errors import TargetError
from kvfuzz.files import printable
from kvfuzz.reporting.terminal import QuietConsole
from kvfuzz.targets.load import Prepared, prepare


def prepare_all(
    uris: Sequence[str], err: QuietConsole
) -> tuple[tuple[Prepared, ...], list[TargetReport]]:
    """The targets, fetched with a progress bar, and a report of each that failed.

    Raises:
        UsageError: A URI is malformed.
        TargetError: None of them can be had.
    """
    ready: list[Prepared] = []
    failed: list[TargetReport] = []
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        DownloadColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    ) as bars:
        for uri in uris:
            task = None

            def progress(done: int, total: int | None, uri: str = uri) -> None:
                nonlocal task
                if task is None:
                    task = bars.add_task(f"fetching {printable(uri)}")
                    if not err.is_terminal:
                        err.say(f"fetching {printable(uri)}")
                bars.update(task, completed=done, total=total)

            try:
                ready.append(prepare(uri, progress))
            except TargetError as error:
                if len(uris) == 1:
                    raise
                failed.append(TargetReport(uri=uri, error=str(error)))
    if not ready:
        raise TargetError(" ".join(report.error for report in failed))
    return tuple(dict.fromkeys(ready)), failed  # the latest release may have been named too
