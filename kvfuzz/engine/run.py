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

import msgspec

from kvfuzz import __version__
from kvfuzz.cases import write_case
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
    CHUNK,
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
from kvfuzz.findings import Finding, fingerprint
from kvfuzz.invariants.conduct import crash_violation
from kvfuzz.ledger import find_expected, ledger
from kvfuzz.targets.load import Prepared

#: Workers of one surface that may die before its search is given up: each
#: costs a start, and by then the findings say why.
MAX_DEATHS = 20
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
    """

    targets: tuple[Prepared, ...]
    surfaces: tuple[str, ...]
    seconds: float | None
    mixes: int | None
    seed: int
    jobs: int
    use_ledger: bool
    cases: Path


def run(settings: Settings, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """Run, until the budget is spent or `stop` says so; the last event is `Finished`.

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
        search = _Search(settings, prepared, surface, seconds, report)
        yield TargetStarted(prepared.uri, surface, seconds)
        yield from search.go(stop)
        spent += search.report.seconds
    report.interrupted = stop()
    yield Finished(report)


class _Search:
    """One surface of one target, searched by several workers.

    Each worker draws every `jobs`-th chunk of the seed's stream. If it dies,
    a worker of its own shrinks what it had in hand, and another goes on with
    the next mix.
    """

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
        self._workers: list[Worker] = []
        self._pending: dict[int, str] = {}  # id of worker -> fingerprint it shrinks
        self._found: dict[str, int] = {}  # fingerprint -> its place in report.findings
        self._claims = TemporaryDirectory(prefix="kvfuzz-", ignore_cleanup_errors=True)
        self._deaths = 0
        self._started: float | None = None

    def go(self, stop: Callable[[], bool]) -> Iterator[Event]:
        """Search to the end."""
        self._workers = [self._fuzz(Place(k, 0)) for k in range(self._settings.jobs)]
        shown = 0.0
        try:
            while self._workers and not stop():
                for worker in list(self._workers):
                    for message in worker.messages():
                        yield from self._take(worker, message)
                    if worker.done:
                        self._workers.remove(worker)
                        self._replace(worker)
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

    def _fuzz(self, start: Place) -> Worker:
        witnesses = {}
        if self._settings.use_ledger:
            witnesses = {known.entry.fingerprint: known.witness for known in ledger()}
        return Worker(
            FuzzJob,
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
        )

    def _take(self, worker: Worker, message: Message) -> Iterator[Event]:
        match message:
            case Loaded(version, surfaces):
                self._target.version = version
                if self._surface not in surfaces:
                    self.report.stopped = f"{self._prepared.uri} has no surface {self._surface}"
                if self._started is None:
                    self._target.surfaces.append(self.report)
                    self._started = time.monotonic()
            case Progress(tally):
                self.report.tally.add(tally)
            case Violated(finding, _):
                self._pending[id(worker)] = finding.fingerprint
                if finding.fingerprint not in self._found:
                    yield from self._keep(finding)
            case Shrunk(digest, finding):
                self._pending.pop(id(worker), None)
                if finding is not None:
                    yield from self._keep(finding)
                else:
                    self._drop_if_slow(digest)
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
            path = str(write_case(finding, self._settings.cases))
        yield FindingMade(finding, path)

    def _drop_if_slow(self, digest: str) -> None:
        """Drop a finding that did not come back if all that it was is slow or large, once."""
        at = self._found.get(digest)
        if at is None or self._whole.findings[at].symptom not in ("time-out", "memory"):
            return
        finding = self._whole.findings.pop(at)
        self._found = {other: i - (i > at) for other, i in self._found.items() if i != at}
        (self._settings.cases / f"{finding.id}.json").unlink(missing_ok=True)

    def _replace(self, worker: Worker) -> None:
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
        if isinstance(job, ShrinkJob):
            return  # what it was to shrink stays as it was met
        self._deaths += 1
        pending = self._pending.pop(id(worker), None)
        place = worker.place
        if pending is None:
            # The mix in hand was not counted by the worker that it ended.
            self.report.tally.add(_DEATH)
        violation = crash_violation(worker.crash, ())
        if pending is not None or fingerprint(self._surface, violation) not in self._found:
            self._workers.append(
                Worker(
                    ShrinkJob,
                    target=self._prepared,
                    surface=self._surface,
                    seed=self._settings.seed,
                    place=place,
                    fingerprint=pending,
                    crash=worker.crash,
                )
            )
        if self._deaths >= MAX_DEATHS:
            self.report.stopped = f"{MAX_DEATHS} workers died"
        elif self._left() != 0.0:
            following = Place(place.chunk, place.number + 1)
            if following.number >= CHUNK:
                following = Place(place.chunk + self._settings.jobs, 0)
            self._workers.append(self._fuzz(following))
