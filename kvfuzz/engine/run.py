"""A run: surfaces of targets searched under a budget, findings deduplicated and kept.

The one place that decides what is new, what is written to disk and when a
search is given up. It yields events; who shows them is not its business.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from kvfuzz import __version__
from kvfuzz.cases import write_case
from kvfuzz.engine.calls import DEFAULT_LIMITS, PASSING, Limits
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
from kvfuzz.engine.messages import (
    Fault,
    FuzzJob,
    Loaded,
    Message,
    Place,
    Progress,
    ShrinkJob,
    Shrunk,
    Violated,
)
from kvfuzz.engine.session import Tally
from kvfuzz.engine.supervisor import Worker, pause
from kvfuzz.errors import UsageError
from kvfuzz.files import write_atomically
from kvfuzz.findings import Finding, fingerprint
from kvfuzz.invariants.conduct import crash_violation
from kvfuzz.ledger import find_expected, ledger
from kvfuzz.outcomes import Crash
from kvfuzz.targets.load import Prepared

_SHOW_SECONDS = 0.2
_DEATH = Tally(
    mixes=1,
    outcomes=Counter({"crash": 1}),
    checked=Counter({"plan-or-refusal": 1}),
    violated=Counter({"plan-or-refusal": 1}),
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        targets: The targets, fetched and checked.
        surfaces: Surfaces of each.
        seconds: Seconds of search in all, or None.
        mixes: Mixes a surface, or None.
        seed: Names the stream of mixes.
        jobs: Workers a surface.
        use_ledger: Whether the ledger says what is known.
        cases: Folder for the case files of new findings.
        limits: Of calls, of shrinking and of workers.
    """

    targets: tuple[Prepared, ...]
    surfaces: tuple[str, ...]
    seconds: float | None
    mixes: int | None
    seed: int
    jobs: int
    use_ledger: bool
    cases: Path
    limits: Limits = DEFAULT_LIMITS


class Told(msgspec.Struct):
    """What a worker has told: the last mix that it counted, and what it is shrinking.

    A mix that is counted is not judged again by the worker that follows; the
    others are, but for the one in hand at the end.
    """

    last: Place | None = None
    pending: dict[str, Place] = msgspec.field(default_factory=dict)  # by fingerprint


def run(
    settings: Settings,
    stop: Callable[[], bool] = lambda: False,
    form: type[Search] | None = None,
) -> Iterator[Event]:
    """Run, until the budget is spent or `stop` says so; the last event is `Finished`.

    Args:
        settings: What to run.
        stop: Whether to stop.
        form: What goes through a surface; None is a random search.

    Raises:
        UsageError: A case file cannot be written. What was found until then
            has been yielded.
    """
    report = Report(kvfuzz=__version__, seed=settings.seed)
    pairs = [(t, s) for t in settings.targets for s in settings.surfaces]
    spent = 0.0
    for number, (prepared, surface) in enumerate(pairs):
        if stop():
            break
        if not report.targets or report.targets[-1].uri != prepared.uri:
            report.targets.append(TargetReport(uri=prepared.uri))
        seconds = settings.seconds
        if seconds is not None:
            seconds = max(0.0, seconds - spent) / (len(pairs) - number)
        search = (form or Search)(settings, prepared, surface, seconds, report)
        yield TargetStarted(prepared.uri, surface, seconds)
        yield from search.go(stop)
        spent += search.report.seconds
    report.interrupted = stop()
    yield Finished(report)


class Search:
    """One surface of one target, searched by several workers.

    Each worker draws every `jobs`-th chunk of the seed's stream. If it dies,
    a worker of its own shrinks what it had in hand, and another goes on with
    the next mix.
    """

    _job: type[FuzzJob] = FuzzJob
    _enumerated = False

    def __init__(
        self,
        settings: Settings,
        prepared: Prepared,
        surface: str,
        seconds: float | None,
        report: Report,
    ) -> None:
        self._settings = settings
        self._prepared = prepared
        self._surface = surface
        self._seconds = seconds
        self._whole = report
        self._target = report.targets[-1]
        self.report = SurfaceReport(surface=surface)
        self._workers: dict[Worker, Told] = {}
        self._found: dict[str, int] = {}  # fingerprint -> its place in report.findings
        self._before: dict[Path, bytes | None] = {}  # case file -> what an earlier run left there
        self._claims = TemporaryDirectory(prefix="kvfuzz-", ignore_cleanup_errors=True)
        self._deaths = 0
        self._skip: frozenset[Place] = frozenset()  # mixes that ended a worker
        self._started: float | None = None

    def go(self, stop: Callable[[], bool]) -> Iterator[Event]:
        """Search to the end."""
        shown = 0.0
        try:
            for number in range(self._settings.jobs):
                self._fuzz(Place(number, 0))
            while self._workers and not stop():
                for worker in list(self._workers):
                    for message in worker.messages():
                        yield from self._take(worker, message)
                    if worker.done:
                        self._replace(worker, self._workers.pop(worker))
                now = time.monotonic()
                if self._started is not None:
                    self.report.seconds = now - self._started
                if now - shown > _SHOW_SECONDS and self._started is not None:
                    shown = now
                    yield Searching(self._prepared.uri, self.report, self._left())
                pause()
            for worker in self._workers:  # stopped: take what they have already said
                for message in worker.messages():
                    yield from self._take(worker, message)
        finally:
            for worker in self._workers:
                worker.end()
            self._claims.cleanup()
        yield Searching(self._prepared.uri, self.report, 0.0)

    def _left(self) -> float | None:
        if self._seconds is None:
            return None
        return max(0.0, self._seconds - self.report.seconds)

    def _fuzz(self, start: Place) -> None:
        witnesses = {}
        if self._settings.use_ledger:
            witnesses = {known.entry.fingerprint: known.witness for known in ledger()}
        worker = Worker(
            self._job,
            target=self._prepared,
            surface=self._surface,
            seed=self._settings.seed,
            start=start,
            stride=self._settings.jobs,
            seconds=self._left(),
            mixes=self._settings.mixes,
            witnesses=witnesses,
            done=list(self._found),
            claims=self._claims.name,
            skip=self._skip,
            limits=self._settings.limits,
            **self._further(),
        )
        self._workers[worker] = Told()

    def _further(self) -> dict[str, Any]:
        """Fields of a job beyond those of a random search."""
        return {}

    def _shrink(self, place: Place, digest: str | None, crash: Crash) -> None:
        worker = Worker(
            ShrinkJob,
            target=self._prepared,
            surface=self._surface,
            seed=self._settings.seed,
            place=place,
            fingerprint=digest,
            crash=crash,
            enumerated=self._enumerated,
            limits=self._settings.limits,
        )
        self._workers[worker] = Told()

    def _take(self, worker: Worker, message: Message) -> Iterator[Event]:
        match message:
            case Loaded(version, surfaces):
                self._target.version = version
                if self._surface not in surfaces:
                    self.report.stopped = f"{self._prepared.uri} has no surface {self._surface}"
                if self._started is None:
                    self._target.surfaces.append(self.report)
                    self._started = time.monotonic()
            case Progress(tally, last):
                self.report.tally.add(tally)
                self._workers[worker].last = last
            case Violated(finding, place):
                self._workers[worker].pending[finding.fingerprint] = place
                if finding.fingerprint not in self._found:
                    yield from self._keep(finding)
            case Shrunk(digest, finding):
                self._workers[worker].pending.pop(digest, None)
                if finding is not None:
                    yield from self._keep(finding)
                else:
                    self._drop_if_passing(digest, worker)
            case Fault(text):
                self._target.error = text

    def _keep(self, finding: Finding) -> Iterator[Event]:
        """Take a finding into the report, and onto the disk, unless a smaller one is there."""
        findings = self._whole.findings
        at = self._found.get(finding.fingerprint)
        if at is not None:
            before = findings[at]
            if before.shrunk and len(before.scenario) <= len(finding.scenario):
                return
        known = None
        if self._settings.use_ledger:
            known = find_expected(finding.fingerprint, finding.target, finding.version)
        if known is not None:
            finding = msgspec.structs.replace(finding, status="known", ledger=known.entry.id)
        if at is None:
            self._found[finding.fingerprint] = len(findings)
            findings.append(finding)
        else:
            findings[at] = finding
        path = ""
        if finding.status == "new":
            try:
                path = self._write(finding)
            except UsageError:
                yield FindingMade(finding, "")
                raise
        yield FindingMade(finding, path)

    def _case_path(self, finding: Finding) -> Path:
        return self._settings.cases / f"{finding.id}.json"

    def _write(self, finding: Finding) -> str:
        path = self._case_path(finding)
        if path not in self._before:
            self._before[path] = path.read_bytes() if path.is_file() else None
        if not finding.shrunk and self._before[path] is not None:
            return str(path)  # an earlier run's case of this bug may be minimal
        return str(write_case(finding, self._settings.cases))

    def _drop_if_passing(self, digest: str, worker: Worker) -> None:
        """Drop a finding that did not come back if the machine, not the planner, can have made it.

        It was slow or large, once; or its process was killed, which is what
        a system short of memory does, or a user.
        """
        at = self._found.get(digest)
        if at is None:
            return
        finding = self._whole.findings[at]
        job = worker.job
        killed = (
            isinstance(job, ShrinkJob)
            and job.fingerprint is None
            and job.crash.exception == "SIGKILL"
        )
        if not killed and finding.symptom not in PASSING:
            return
        self._whole.findings.pop(at)
        self._found = {other: i - (i > at) for other, i in self._found.items() if i != at}
        path = self._case_path(finding)
        before = self._before.pop(path, None)
        if before is None:
            path.unlink(missing_ok=True)
        else:  # all time-outs share a name
            write_atomically(path, before)

    def _replace(self, worker: Worker, told: Told) -> None:
        """After a worker's death: shrink what it had in hand, and go on after that."""
        job = worker.job
        if worker.crash is None or self._target.error:
            return
        if not worker.loaded:
            self._target.error = (
                f"{self._prepared.uri} could not be loaded: its process ended with "
                f"{worker.crash.symptom} {worker.crash.exception}".rstrip()
                + "."
            )
            return
        if not isinstance(job, FuzzJob):
            return  # what it was to shrink stays as it was met
        self._deaths += 1
        for digest, place in told.pending.items():
            self._shrink(place, digest, worker.crash)
        in_hand = worker.place
        if in_hand is not None and in_hand != told.last:
            # It was not counted by the worker that it ended.
            self.report.tally.add(_DEATH)
            self._skip |= {in_hand}
            violation = crash_violation(worker.crash, ())
            if fingerprint(self._surface, violation) not in self._found:
                self._shrink(in_hand, None, worker.crash)
        if self._deaths >= self._settings.limits.deaths:
            self.report.stopped = f"{self._deaths} workers died"
        elif self._left() != 0.0:
            start = (
                job.start if told.last is None else told.last._replace(number=told.last.number + 1)
            )
            self._fuzz(start)
