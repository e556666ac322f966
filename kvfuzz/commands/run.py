"""`kvfuzz run`: search surfaces of targets, show what comes, end with the documented code."""

from __future__ import annotations

import os
import re
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Self

from kvfuzz import __version__
from kvfuzz.commands.fetch import prepare_all
from kvfuzz.commands.names import check_surfaces
from kvfuzz.engine.events import (
    Event,
    FindingMade,
    Finished,
    Report,
    Searching,
    TargetReport,
    TargetStarted,
)
from kvfuzz.engine.run import Settings
from kvfuzz.engine.run import run as run_engine
from kvfuzz.errors import Exit, KvfuzzError, UsageError
from kvfuzz.files import check_writable, printable, write_atomically
from kvfuzz.ledger import ledger
from kvfuzz.reporting.console import path_key, print_report
from kvfuzz.reporting.html import to_html
from kvfuzz.reporting.json_file import to_json
from kvfuzz.reporting.junit import to_junit
from kvfuzz.reporting.markdown import to_markdown
from kvfuzz.reporting.progress import view
from kvfuzz.reporting.terminal import QuietConsole, console
from kvfuzz.reporting.timeline import Timeline
from kvfuzz.targets.load import Prepared
from kvfuzz.targets.uri import default_target

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_DEFAULT_SECONDS = 60.0
#: More workers than this gain little: one is short of mixes for seconds only.
_MAX_JOBS = 8


def parse_budget(text: str) -> float:
    """Seconds of a budget such as 60s, 10m or 8h.

    Raises:
        UsageError: It is of another form, or zero.
    """
    form = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smh])", text)
    seconds = float(form[1]) * _SECONDS[form[2]] if form else 0.0
    if seconds <= 0:
        raise UsageError(f"--budget {text!r} is no time: write it as 60s, 10m or 8h.")
    return seconds


def default_jobs() -> int:
    """One worker a core that this process may use, 8 at most."""
    # Not every system can say which cores a process may use.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(_MAX_JOBS, usable or 1)


class Stop:
    """Ctrl-C and SIGTERM in a run: the first is remembered, the second ends it at once."""

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, object] = {}

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.signal != 0

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


class _Collected:
    """The report as far as the events told it, in case the run does not come to its end."""

    def __init__(self, seed: int) -> None:
        self.report = Report(kvfuzz=__version__, seed=seed)
        self.paths: dict[str, str] = {}

    def take(self, event: Event) -> None:
        match event:
            case TargetStarted(uri):
                if not any(target.uri == uri for target in self.report.targets):
                    self.report.targets.append(TargetReport(uri=uri))
            case Searching(uri, surface):
                target = next(t for t in self.report.targets if t.uri == uri)
                if surface not in target.surfaces:
                    target.surfaces.append(surface)
            case FindingMade(finding, path):
                key = path_key(finding)
                self.paths[key] = path
                self.report.findings = [
                    other for other in self.report.findings if path_key(other) != key
                ]
                self.report.findings.append(finding)
            case Finished(report):
                self.report = report


class Ready(NamedTuple):
    """What a search needs, checked before it starts.

    Attributes:
        targets: The targets, fetched.
        failed: Those that could not be had.
        cases: Folder of case files.
        files: Option, such as `--json`, -> the file it names.
    """

    targets: tuple[Prepared, ...]
    failed: list[TargetReport]
    cases: Path
    files: dict[str, Path]


def get_ready(
    stderr: QuietConsole,
    targets: Sequence[str],
    files: Mapping[str, Path | None],
    out: Path,
    *,
    use_ledger: bool,
) -> Ready:
    """Find out before a search whether its files can be written, and fetch its targets.

    Raises:
        KvfuzzError: They cannot, or a ledger entry is damaged, or a URI is none.
    """
    cases = out / "cases"
    check_writable(cases)
    named = {option: path for option, path in files.items() if path is not None}
    check_files(named)
    if use_ledger:
        ledger()
    uris = tuple(dict.fromkeys(targets)) or (default_target(),)
    prepared, failed = prepare_all(uris, stderr)
    return Ready(prepared, failed, cases, named)


def run(
    *,
    targets: Sequence[str],
    surfaces: Sequence[str],
    budget: str | None,
    examples: int | None,
    seed: int | None,
    jobs: int | None,
    files: Mapping[str, Path | None],
    out: Path,
    use_ledger: bool,
) -> int:
    """Run, and return the exit code.

    Args:
        targets: Their URIs; none is the default one.
        surfaces: Surfaces of each; none is `pack`.
        budget: Time to search, in words, or None.
        examples: Mixes a surface, or None.
        seed: Names the stream of mixes; None draws one.
        jobs: Workers a surface, or None.
        files: Option, such as `--json`, -> the file it names, or None.
        out: Folder of case files.
        use_ledger: Whether the ledger says what is known.

    Raises:
        KvfuzzError: Nothing could be run, or a file could not be written.
    """
    if budget is not None and examples is not None:
        raise UsageError("--budget and --examples exclude each other: give one of them.")
    seconds = None if examples is not None else _DEFAULT_SECONDS
    if budget is not None:
        seconds = parse_budget(budget)
    wanted = tuple(dict.fromkeys(surfaces)) or ("pack",)
    check_surfaces(wanted)
    stderr = console(stderr=True)
    ready = get_ready(stderr, targets, files, out, use_ledger=use_ledger)
    settings = Settings(
        targets=ready.targets,
        surfaces=wanted,
        seconds=seconds,
        mixes=examples,
        seed=secrets.randbelow(2**32) if seed is None else seed,
        jobs=jobs or default_jobs(),
        use_ledger=use_ledger,
        cases=ready.cases,
    )
    stderr.say(f"seed {settings.seed}, {settings.jobs} workers", style="dim")
    return conduct(
        lambda stop: run_engine(settings, stop),
        seed=settings.seed,
        mixes=examples,
        failed=ready.failed,
        files=ready.files,
    )


def conduct(
    engine: Callable[[Stop], Iterator[Event]],
    *,
    seed: int,
    mixes: int | None,
    failed: Sequence[TargetReport],
    files: Mapping[str, Path],
) -> int:
    """Show and report what an engine does, and return the exit code.

    Args:
        engine: Gives its events until the argument says to stop.
        seed: Names the stream of mixes.
        mixes: Mixes a surface, or None if time is the budget.
        failed: Targets that could not be had.
        files: Option, such as `--json`, -> the file it names.

    Raises:
        KvfuzzError: The engine could not go on, or a file could not be written.
    """
    stdout, stderr = console(), console(stderr=True)
    collected = _Collected(seed)
    timeline = Timeline()
    broken: KvfuzzError | None = None
    with Stop() as stop:
        try:
            with view(stderr, mixes) as shown:
                for event in engine(stop):
                    collected.take(event)
                    timeline.take(event)
                    shown.take(event)
        except KvfuzzError as error:
            broken = error
        report = collected.report
        report.targets += failed
        report.interrupted = stop()
        print_report(stdout, report, collected.paths)
        for option, path in files.items():
            try:
                data = _FORMATS[option](report, timeline, collected.paths)
                write_atomically(path, data)
            except KvfuzzError as error:
                broken = broken or error
    if broken is not None:
        raise broken
    for sentence in _failures(report):
        stderr.say(f"kvfuzz: {printable(sentence)}", style="red")
    return _exit_code(report, stop.signal)


#: Option -> what makes the file that it names.
_FORMATS: dict[str, Callable[[Report, Timeline, Mapping[str, str]], bytes]] = {
    "--json": lambda report, _timeline, _paths: to_json(report),
    "--markdown": lambda report, _timeline, _paths: to_markdown(report).encode(),
    "--html": to_html,
    "--junit": lambda report, _timeline, _paths: to_junit(report),
}


def check_files(files: Mapping[str, Path]) -> None:
    """Find out before the run whether the files can be written after it."""
    taken: dict[Path, str] = {}
    for option, path in files.items():
        shown = printable(str(path))
        if path.is_dir():
            raise UsageError(f"{option} {shown} is a folder: name a file.")
        check_writable(path.parent)
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise UsageError(f"{other} and {option} both name {shown}: name two files.")


def _failures(report: Report) -> list[str]:
    """What kept targets from being searched, a sentence each."""
    sentences = []
    for target in report.targets:
        if target.error:
            sentences.append(target.error)
        for surface in target.surfaces:
            if surface.stopped and not surface.tally.mixes:
                sentences.append(f"{surface.stopped}.")
            elif not surface.tally.mixes and not report.interrupted and not target.error:
                sentences.append(f"{target.uri} was asked about no mix on {surface.surface}.")
    return sentences


def _lacks_all(report: Report) -> bool:
    """Whether no target had any of the surfaces."""
    surfaces = [surface for target in report.targets for surface in target.surfaces]
    return bool(surfaces) and all(s.stopped and not s.tally.mixes for s in surfaces)


def _exit_code(report: Report, signalled: int) -> int:
    if signalled:
        return 128 + signalled
    if any(target.error for target in report.targets):
        return Exit.HARNESS
    if _lacks_all(report):
        return Exit.USAGE
    for target in report.targets:
        if any(not s.tally.mixes and not s.stopped for s in target.surfaces):
            return Exit.HARNESS
    return Exit.NEW_FINDING if report.new else Exit.OK
