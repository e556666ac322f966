"""What `run` and `verify` share: getting ready, showing and reporting a campaign, its exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Self

from kvfuzz import __version__
from kvfuzz.commands.fetch import prepare_all
from kvfuzz.engine.corpus import SharedCases
from kvfuzz.engine.crew import Crew, LocalCrew
from kvfuzz.engine.events import (
    Event,
    FindingMade,
    Finished,
    Report,
    Searching,
    SurfaceReport,
    TargetReport,
    TargetStarted,
)
from kvfuzz.errors import Exit, KvfuzzError, UsageError
from kvfuzz.files import check_writable, printable, write_atomically
from kvfuzz.findings import Finding
from kvfuzz.ledger import ledger
from kvfuzz.reporting.console import leaking, path_key, print_report
from kvfuzz.reporting.html import to_html
from kvfuzz.reporting.json_file import to_json
from kvfuzz.reporting.junit import to_junit
from kvfuzz.reporting.markdown import to_markdown
from kvfuzz.reporting.progress import view
from kvfuzz.reporting.terminal import QuietConsole, console
from kvfuzz.reporting.timeline import Timeline
from kvfuzz.targets.load import Prepared
from kvfuzz.targets.uri import default_target

#: More workers than this gain little: one is short of mixes for seconds only.
_MAX_JOBS = 8
#: Below so many mixes a surface, and so many a second, a nightly tested next to nothing.
_FLOOR_MIXES = 1_000
_FLOOR_RATE = 10


def crew_of(jobs: int | None, dask: str | None = None, most: int | None = None) -> Crew:
    """Who does the jobs.

    Args:
        jobs: Workers, or None for one a core that this process may use, 8 at
            most; of a Dask cluster, for one a thread of its workers.
        dask: Address of a Dask scheduler, or None for this machine.
        most: More would have nothing to do; None is no such bound.

    Raises:
        UsageError: The package distributed is missing, or the cluster cannot be used.
    """
    if dask is not None:
        from kvfuzz.engine.cluster import DaskCrew

        return DaskCrew(dask, jobs)
    wanted = jobs or _default_jobs()
    return LocalCrew(wanted if most is None else min(wanted, most))


def _default_jobs() -> int:
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
        self._report = Report(kvfuzz=__version__, seed=seed)
        self._found: dict[str, Finding] = {}
        self._over = False
        self.paths: dict[str, str] = {}

    @property
    def report(self) -> Report:
        """What is known by now."""
        if not self._over:
            self._report.findings = list(self._found.values())
        return self._report

    def take(self, event: Event) -> None:
        match event:
            case TargetStarted(uri):
                if not any(target.uri == uri for target in self._report.targets):
                    self._report.targets.append(TargetReport(uri=uri))
            case Searching(uri, surface):
                target = next(t for t in self._report.targets if t.uri == uri)
                if surface not in target.surfaces:
                    target.surfaces.append(surface)
            case FindingMade(finding, path):
                key = path_key(finding)
                self.paths[key] = path
                self._found[key] = finding
            case Finished(report):
                self._report, self._over = report, True


class Ready(NamedTuple):
    """What a search needs, checked before it starts.

    Attributes:
        targets: The targets, fetched.
        failed: Those that could not be had.
        cases: Folder of the case files.
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


def conduct(
    engine: Callable[[Stop], Iterator[Event]],
    *,
    seed: int,
    mixes: int | None,
    ready: Ready,
    shared: SharedCases | None = None,
    floor: bool = False,
    again: str,
) -> int:
    """Show and report what an engine does, and return the exit code.

    Args:
        engine: Gives its events until the argument says to stop.
        seed: Names the stream of mixes.
        mixes: Mixes a surface, or None if time is the budget.
        ready: What the search was given; `failed` is told, `files` are written.
        shared: Where new cases are kept for others, or None.
        floor: Whether a search that tried next to nothing has failed.
        again: The command that goes on where this one is stopped.

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
                    if shared is not None:
                        shared.take(event)
        except KvfuzzError as error:
            broken = error
        report = collected.report
        report.targets += ready.failed
        report.interrupted = stop()
        print_report(stdout, report, collected.paths)
        for option, path in ready.files.items():
            try:
                data = _FORMATS[option](report, timeline, collected.paths)
                write_atomically(path, data)
            except KvfuzzError as error:
                broken = broken or error
    if broken is not None:
        raise broken
    lacking, failures = _lacking(report), _failures(report, floor=floor)
    if shared is not None and shared.trouble:
        failures.append(shared.trouble)
    for sentence in (*lacking, *failures):
        stderr.say(f"kvfuzz: {printable(sentence)}", style="red")
    if stop.signal:
        stderr.say(f"stopped; this goes on from here: {printable(again)}")
        return 128 + stop.signal
    if failures:
        return Exit.HARNESS
    if len(lacking) == sum(len(target.surfaces) for target in report.targets):
        return Exit.USAGE
    return Exit.NEW_FINDING if report.new else Exit.OK


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


def _lacking(report: Report) -> list[str]:
    """The surfaces that targets do not have, a sentence each."""
    return [
        f"{surface.stopped}."
        for target in report.targets
        for surface in target.surfaces
        if surface.stopped and not surface.tally.mixes
    ]


def _failures(report: Report, *, floor: bool) -> list[str]:
    """What kept targets from being searched, or from being searched enough, a sentence each."""
    sentences = []
    for target in report.targets:
        if target.error:
            sentences.append(target.error)
        for surface in target.surfaces:
            sentences += _failure(target, surface, report, floor=floor)
    return sentences


def _failure(
    target: TargetReport, surface: SurfaceReport, report: Report, *, floor: bool
) -> Iterator[str]:
    tally = surface.tally
    where = f"{target.uri}, surface {surface.surface}"
    cut_short = report.interrupted or report.enough
    if cut_short or target.error or (surface.stopped and not tally.mixes):
        return
    if surface.leaks and surface.stopped:
        yield f"{where}: {leaking(surface)}; {surface.stopped}, so it was not searched to its end."
    elif not tally.mixes and not surface.replayed:
        yield f"{target.uri} was asked about no mix on {surface.surface}."
    elif floor:
        least = max(_FLOOR_MIXES, int(_FLOOR_RATE * surface.seconds))
        idle = tally.outcomes["refusal"] + tally.outcomes["not-expressible"]
        if tally.mixes < least:
            yield (
                f"{where}: {tally.mixes:,} mixes in {surface.seconds:.0f} s are too few for a "
                f"nightly, which wants {least:,}; give it more time, or see why it is slow."
            )
        elif 2 * idle > tally.mixes:
            yield (
                f"{where}: {idle:,} of {tally.mixes:,} mixes were refused or not expressible, "
                "so that little was tested; see which specs it lacks."
            )
