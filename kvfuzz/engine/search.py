"""One surface of one target, searched: its workers, what they tell, and what is kept of it.

The stream of mixes is dealt out by lanes: lane i of n is every n-th chunk from
the i-th. A task takes one lane and goes on where the lane was left. If its
worker dies, another shrinks what it had in hand, and the lane goes on with the
next mix.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import msgspec

from kvfuzz.engine.crew import Crew, Task
from kvfuzz.engine.events import Event, SurfaceReport, TargetReport
from kvfuzz.engine.kept import Findings, Told
from kvfuzz.engine.messages import (
    Fault,
    Finished,
    FuzzJob,
    Job,
    Loaded,
    Message,
    Progress,
    Replayed,
    ReplayJob,
    ShrinkJob,
    Shrunk,
    Violated,
)
from kvfuzz.engine.places import Coverage, Place
from kvfuzz.engine.records import Pair, Snapshot, Stored, Unshrunk
from kvfuzz.engine.session import Tally
from kvfuzz.engine.settings import Settings
from kvfuzz.engine.supervisor import LEAK
from kvfuzz.findings import Finding, fingerprint
from kvfuzz.invariants.conduct import crash_violation
from kvfuzz.ledger import ledger
from kvfuzz.outcomes import Crash
from kvfuzz.targets.load import Prepared

#: As if the worker of what is still to be shrunk had died: we end it.
_ENDED = Crash(symptom="died")
_DEATH = Tally(
    mixes=1,
    outcomes=Counter({"crash": 1}),
    checked=Counter({"plan-or-refusal": 1}),
    violated=Counter({"plan-or-refusal": 1}),
)


class Search:
    """One surface of one target.

    Args:
        settings: What to run.
        crew: Who does the jobs.
        prepared: The target.
        surface: The surface.
        target: The target's part of the report.
        stored: How far an earlier run has come with it, or None.
        end: When the campaign ends, on the clock of `time.monotonic`, or None.

    Attributes:
        report: What it did.
        spent: Seconds of workers that it has had.
        found_at: What `spent` was when it last found something new.
        shown: Whether it has its place in the report.
    """

    _enumerated = False

    def __init__(
        self,
        settings: Settings,
        crew: Crew,
        prepared: Prepared,
        surface: str,
        target: TargetReport,
        stored: Stored | None,
        end: float | None,
    ) -> None:
        self._settings = settings
        self._crew = crew
        self._prepared = prepared
        self._surface = surface
        self._target = target
        self._stored = stored
        self._end = end
        self.report = SurfaceReport(surface=surface)
        self.spent = 0.0
        self.found_at = 0.0
        self.shown = False
        self._coverage = stored.snapshot.coverage if stored else Coverage()
        self._skip = frozenset(stored.snapshot.skip if stored else ())  # mixes that ended a worker
        self._version = stored.snapshot.version if stored else ""
        self._tasks: dict[Task, Told] = {}
        self._to_shrink: list[Unshrunk] = []
        self._kept = Findings(settings.cases, use_ledger=settings.use_ledger)
        self._claims = TemporaryDirectory(prefix="kvfuzz-", ignore_cleanup_errors=True)
        self._exhausted: set[int] = set()  # lanes
        self._corpus = [] if stored else list(settings.corpus.get(surface, ()))
        self._deaths = 0
        self._polled = time.monotonic()

    @property
    def pair(self) -> Pair:
        """Its target's URI and its surface."""
        return self._prepared.uri, self._surface

    @property
    def busy(self) -> bool:
        """Whether any task is being done, or a finding is to be shrunk."""
        return bool(self._tasks or self._to_shrink)

    @property
    def searching(self) -> int:
        """How many tasks are, that take a slot of the crew."""
        return len(self._lanes_at_work())

    @property
    def claim(self) -> float:
        """Seconds of workers that it has had and is having."""
        return self.spent + sum(told.seconds for told in self._tasks.values())

    @property
    def exhausted(self) -> bool:
        """Whether all that it was to judge is judged."""
        return len(self._exhausted) == self._settings.lanes

    @property
    def wants(self) -> bool:
        """Whether it can be given a task."""
        if self._target.error or self.report.stopped:
            return False
        return len(self._exhausted | self._lanes_at_work()) < self._settings.lanes

    def _lanes_at_work(self) -> set[int]:
        return {
            task.job.start.chunk % task.job.stride
            for task in self._tasks
            if isinstance(task.job, FuzzJob)
        }

    def start(self, seconds: float | None) -> None:
        """Begin a task on a lane that is free, for so many seconds or to its end."""
        if self._corpus:
            job = ReplayJob(
                target=self._prepared,
                surface=self._surface,
                scenarios=self._corpus,
                limits=self._settings.limits,
            )
            self._corpus = []
            self._begin(job, None)
        taken = self._exhausted | self._lanes_at_work()
        lane = next(lane for lane in range(self._settings.lanes) if lane not in taken)
        self._begin(self._job(lane), seconds)

    def _begin(self, job: Job, seconds: float | None) -> None:
        now = time.monotonic()
        left = None if self._end is None else max(0.0, self._end - now)
        self._tasks[self._crew.start(job, seconds, left)] = Told(now, seconds or 0.0)

    def _job(self, lane: int) -> FuzzJob:
        stride = self._settings.lanes
        witnesses = {}
        # The first chunk of the lane that is not known to be done.
        skipped = 0 if self._stored else max(0, self._coverage.below - lane) // stride
        if self._settings.use_ledger:
            witnesses = {known.entry.fingerprint: known.witness for known in ledger()}
        return FuzzJob(
            target=self._prepared,
            surface=self._surface,
            seed=self._settings.seed,
            start=Place(lane + skipped * stride, 0),
            stride=stride,
            deadline=None,
            mixes=self._settings.mixes,
            witnesses=witnesses,
            done=list(self._kept),
            claims=self._claims.name,
            version=self._version,
            coverage=self._coverage,
            skip=self._skip,
            found=[finding.fingerprint for finding in self.findings()] if self._stored else [],
            limits=self._settings.limits,
        )

    def _shrink(self, item: Unshrunk) -> None:
        job = ShrinkJob(
            target=self._prepared,
            surface=self._surface,
            seed=self._settings.seed,
            place=item.place,
            fingerprint=item.fingerprint,
            crash=item.crash,
            enumerated=self._enumerated,
            limits=self._settings.limits,
        )
        self._begin(job, None)

    def poll(self) -> Iterator[Event]:
        """Take what the workers have told, and go on after those that died.

        Raises:
            UsageError: A case file cannot be written.
        """
        now = time.monotonic()
        if any(task.loaded and isinstance(task.job, FuzzJob) for task in self._tasks):
            self.report.seconds += now - self._polled
        self._polled = now
        for task in list(self._tasks):
            for message in task.messages():
                yield from self._take(task, message)
            if task.done:
                told = self._tasks.pop(task)
                if isinstance(task.job, FuzzJob):
                    self.spent += time.monotonic() - told.started
                self._follow(task, told)
        if self._kept.trouble is not None:
            raise self._kept.trouble
        ended = self.exhausted or self.report.stopped
        if len(self._kept) >= self._settings.limits.findings and not ended:
            self._give_up()
        shrinking = sum(isinstance(task.job, ShrinkJob) for task in self._tasks)
        for _ in range(shrinking, min(self._settings.lanes, shrinking + len(self._to_shrink))):
            self._shrink(self._to_shrink[0])
            del self._to_shrink[0]  # not before it has begun: a cluster may be gone

    def _give_up(self) -> None:
        """End the search: it has enough findings. Those that are being shrunk still are."""
        self.report.stopped = f"{len(self._kept):,} findings"
        for task, told in list(self._tasks.items()):
            if isinstance(task.job, FuzzJob):
                task.end()
                del self._tasks[task]
                self._to_shrink += told.unshrunk(_ENDED)

    def close(self) -> Iterator[Event]:
        """Take what the workers have told, and end them.

        Raises:
            UsageError: A case file cannot be written.
        """
        try:
            for task in self._tasks:
                for message in task.messages():
                    yield from self._take(task, message)
        finally:
            for task in self._tasks:
                task.end()
            self._claims.cleanup()
        if self._kept.trouble is not None:
            raise self._kept.trouble

    def _take(self, task: Task, message: Message) -> Iterator[Event]:
        told = self._tasks[task]
        match message:
            case Loaded(version, surfaces, never_set, config):
                self._target.version = version
                self.report.never_set = never_set
                self.report.config = config
                if self._surface not in surfaces:
                    self.report.stopped = f"{self._prepared.uri} has no surface {self._surface}"
                if not self.shown:
                    self.show()
                    yield from self._adopt(version)
            case Progress(tally, last):
                self.report.tally.add(tally)
                if last is not None and isinstance(task.job, FuzzJob):
                    self._coverage.advance(told.last or task.job.start, last, task.job.stride)
                told.last = last or told.last
            case Violated(finding, place):
                if place is not None:
                    told.pending[finding.fingerprint] = place
                if finding.fingerprint not in self._kept:
                    yield from self._keep(finding)
            case Shrunk(digest, finding):
                told.pending.pop(digest, None)
                if finding is not None:
                    yield from self._keep(finding)
                else:
                    self._kept.did_not_come_back(digest, task.job)
            case Replayed(_, findings):
                self.report.replayed += 1
                for finding in findings:
                    if finding.fingerprint not in self._kept:
                        yield from self._keep(finding)
            case Finished(exhausted) if exhausted and isinstance(task.job, FuzzJob):
                self._exhausted.add(task.job.start.chunk % task.job.stride)
            case Fault(text):
                self._target.error = text

    def show(self) -> None:
        """Take its place in the report, if the target could be loaded."""
        if not self.shown and not self._target.error:
            self.shown = True
            self._target.surfaces.append(self.report)

    def _adopt(self, version: str) -> Iterator[Event]:
        """Take over what an earlier run did, if it was with the same planner."""
        stored, self._stored = self._stored, None
        if stored is not None and stored.snapshot.version != version:
            self._coverage, self._skip, stored = Coverage(), frozenset(), None
        self._version = version
        if stored is None:
            return
        self.report.seconds += stored.snapshot.seconds
        self.report.tally.add(stored.snapshot.tally)
        for finding in stored.findings:
            yield from self._keep(msgspec.structs.replace(finding, status="new", ledger=None))
        self._to_shrink += stored.snapshot.unshrunk

    def snapshot(self) -> Snapshot | None:
        """How far it has come; None if it has nothing that a later run could go on from."""
        if self._stored is not None:  # not taken over yet
            return self._stored.snapshot
        if not self.report.tally.mixes or self._target.error:
            return None
        return Snapshot(
            version=self._version,
            seconds=self.report.seconds,
            tally=self.report.tally,
            coverage=self._coverage,
            skip=set(self._skip),
            unshrunk=list(self._unshrunk()),
        )

    def _unshrunk(self) -> Iterator[Unshrunk]:
        yield from self._to_shrink
        for task, told in self._tasks.items():
            job = task.job
            if isinstance(job, ShrinkJob):
                yield Unshrunk(place=job.place, fingerprint=job.fingerprint, crash=job.crash)
            else:
                yield from told.unshrunk(_ENDED)

    def findings(self) -> list[Finding]:
        """Its findings."""
        return self._stored.findings if self._stored else list(self._kept.values())

    def settled(self) -> list[Finding]:
        """Those that nobody is shrinking."""
        pending = {item.fingerprint for item in self._unshrunk()}
        return [finding for finding in self.findings() if finding.fingerprint not in pending]

    def _keep(self, finding: Finding) -> Iterator[Event]:
        first = finding.fingerprint not in self._kept
        yield from self._kept.keep(finding)
        if first and self._kept[finding.fingerprint].status == "new":
            self.found_at = self.spent

    def _follow(self, task: Task, told: Told) -> None:
        """After a worker's death: shrink what it had in hand, and go on after that."""
        job = task.job
        if task.crash is None or self._target.error:
            return
        if not task.loaded:
            self._target.error = (
                f"{self._prepared.uri} could not be loaded: its process ended with "
                f"{task.crash.symptom} {task.crash.exception}".rstrip()
                + "."
            )
            return
        if not isinstance(job, FuzzJob):
            return  # what it was to shrink stays as it was met
        self._deaths += 1
        self._to_shrink += told.unshrunk(task.crash)
        in_hand = task.place
        if task.crash == LEAK:
            self.report.leaks += 1  # and the mix in hand is not to blame
        elif in_hand is not None and in_hand != told.last:
            # It was not counted by the worker that it ended.
            self.report.tally.add(_DEATH)
            self._skip |= {in_hand}
            violation = crash_violation(task.crash, ())
            if fingerprint(self._surface, violation) not in self._kept:
                item = Unshrunk(place=in_hand, fingerprint=None, crash=task.crash)
                self._to_shrink.append(item)
        if self._deaths >= self._settings.limits.deaths:
            workers = "worker" if self._deaths == 1 else "workers"
            self.report.stopped = f"{self._deaths} {workers} died"
            if self.report.leaks:
                self.report.stopped += f", {self.report.leaks} of them of leaked memory"
