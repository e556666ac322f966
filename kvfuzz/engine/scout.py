"""The search itself: build, call and judge mixes at full speed, and shrink what fails.

Runs in a worker. Mixes come from the fast seeded source in chunks: chunk k of
a seed is the same mixes whoever draws them, so that any number of workers
share one stream and a mix is named by its place in it.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from itertools import count, islice, repeat
from math import inf
from pathlib import Path

import msgspec

from kvfuzz.engine.calls import PASSING
from kvfuzz.engine.messages import (
    FuzzJob,
    Heartbeat,
    Message,
    Progress,
    ShrinkJob,
    Shrunk,
    Violated,
)
from kvfuzz.engine.minimal import from_choices, plainest
from kvfuzz.engine.places import CHUNK, Coverage, Place
from kvfuzz.engine.session import Session, Tally
from kvfuzz.engine.simplify import Broken
from kvfuzz.engine.stream import FRESH, built
from kvfuzz.engine.verify import fails
from kvfuzz.findings import Finding, fingerprint, make_finding
from kvfuzz.invariants import Violation
from kvfuzz.invariants.conduct import crash_violation
from kvfuzz.invariants.metamorphic import DeterministicViolation, answered_otherwise
from kvfuzz.ledger import speaks_of
from kvfuzz.reproduction import reproduction
from kvfuzz.specs import Scenario
from kvfuzz.strategies.layers import MOST_LAYERS
from kvfuzz.strategies.spaces import space_of
from kvfuzz.targets.base import config_of

_REPORT_SECONDS = 0.2
# Objects by which a worker grows before it looks for cycles.
_COLLECT = 100_000

# Mixes of those first chunks that are built before one is judged.
_FIRST_BATCH = 16

Send = Callable[[Message], None]


def _claimed(folder: Path, digest: str) -> bool:
    """Whether this worker is the first of its search to meet a fingerprint, and so shrinks it."""
    try:
        (folder / digest).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Scout:
    """Searches one surface of one target for violations.

    Args:
        session: The target, ready to be asked.
        seed: Names the stream of mixes.
        heartbeat: Told of every mix before it is asked about.
        send: Takes the messages.
    """

    def __init__(self, session: Session, seed: int, heartbeat: Heartbeat, send: Send) -> None:
        self._session = session
        self._seed = seed
        self._heartbeat = heartbeat
        self._send = send
        self._tally = Tally()
        self._end = inf
        self._dialect = session.target.dialect
        self._space = space_of(session.surface, self._dialect)

    def search(self, job: FuzzJob) -> bool:
        """Do the job: send `Violated` and `Shrunk` for each new fingerprint, and counts.

        Returns:
            Whether it came to the end of the stream before its time was over.
        """
        # Another version is another planner: what is known is not about it.
        if job.version == self._session.target.version:
            job = msgspec.structs.replace(job, done=[*job.done, *job.found])
        else:
            job = msgspec.structs.replace(job, coverage=Coverage(), skip=frozenset())
        self._end = inf if job.end is None else job.end
        seen = set(job.done)
        last = None
        exhausted = True
        reported = time.monotonic()
        # What is loaded stays, and the loop makes no cycles: collecting them is
        # for the planner's own, and need not cost a tenth of the time.
        gc.freeze()
        gc.set_threshold(_COLLECT)
        for place, scenario in self._stream(job):
            now = time.monotonic()
            if job.deadline is not None and now > job.deadline:
                exhausted = False
                break
            if now - reported > _REPORT_SECONDS:
                self._report(last)
                reported = now
            self._heartbeat.beat(place)
            new = {}
            for violation in self._judge(place, scenario):
                digest = fingerprint(self._session.surface, violation)
                if digest not in seen:
                    seen.add(digest)
                    if _claimed(Path(job.claims), digest):
                        new[digest] = violation
            last = place
            if new:
                few = self._few(seen, job)
                shrunk = {d for d, v in new.items() if few or v.symptom in PASSING}
                # All as they were met before the first is shrunk: the planner
                # may end this process meanwhile. And before the mix is counted,
                # so that none that is counted has a finding that is not told.
                for digest, violation in new.items():
                    found = self._finding(violation, scenario)
                    self._send(Violated(found, place if digest in shrunk else None))
                self._report(last)
                # Said once of a mix, whichever rules it broke that once.
                fickle = any(v.invariant == DeterministicViolation.invariant for v in new.values())
                for digest, violation in new.items():
                    if digest not in shrunk or self._minimal(place, digest, job.witnesses):
                        continue
                    if violation.symptom in PASSING:
                        # Only slow, once: what really hangs may be yet to come.
                        seen.discard(digest)
                        (Path(job.claims) / digest).unlink(missing_ok=True)
                    elif not fickle:
                        fickle = True
                        self._fickle(violation, scenario, seen, Path(job.claims))
        self._report(last)
        return exhausted

    def _few(self, seen: set[str], job: FuzzJob) -> bool:
        """Whether the search has few enough findings for another one to be shrunk."""
        most = self._session.limits.shrinks
        # Claims are those of all its workers, but of this run only.
        return len(seen) <= most and sum(1 for _ in os.scandir(job.claims)) <= most

    def _judge(self, place: Place, scenario: Scenario) -> list[Violation]:
        """The violations of a mix of the stream, counted."""
        return self._session.judge(scenario, self._tally, place.number)

    def _fickle(
        self, violation: Violation, scenario: Scenario, seen: set[str], claims: Path
    ) -> None:
        """Tell that the planner broke a rule on a mix, and not when it was asked again."""
        layers = tuple(name for name, _ in scenario)
        then = "what breaks no such rule"
        fickle = answered_otherwise(f"{violation.invariant}: {violation.got}", then, layers)
        digest = fingerprint(self._session.surface, fickle)
        self._tally.checked[fickle.invariant] += 1
        self._tally.violated[fickle.invariant] += 1
        if digest not in seen:
            seen.add(digest)
            if _claimed(claims, digest):
                self._send(Violated(self._finding(fickle, scenario), None))

    def _minimal(self, place: Place, digest: str, witnesses: dict[str, Scenario]) -> bool:
        """Send the finding of that fingerprint, minimal; whether there is one."""
        self._heartbeat.beat(place)
        witness = witnesses.get(digest)
        minimal = witness and self._shown_by(witness, digest)
        minimal = minimal or self.shrink(place, digest)
        self._send(Shrunk(digest, self._reproduced(minimal)))
        return minimal is not None

    def _stream(self, job: FuzzJob) -> Iterator[tuple[Place, Scenario]]:
        for chunk in count(job.start.chunk, job.stride):
            if job.mixes is not None and chunk * CHUNK >= job.mixes:
                break
            size = CHUNK if job.mixes is None else min(CHUNK, job.mixes - chunk * CHUNK)
            done = job.coverage.of(chunk)
            if done >= size:
                continue
            mixes = (
                scenario for _, scenario in islice(built(self._space, self._seed, chunk), size)
            )
            placed = zip(map(Place, repeat(chunk), count()), mixes, strict=False)
            left = (p for p in placed if p[0].number >= done and p[0] not in job.skip)
            # Many at a time: built, translated and judged by turns, each would
            # drive the others' code and data out of the processor's caches.
            while batch := list(islice(left, _FIRST_BATCH if chunk < FRESH else CHUNK)):
                for place, scenario in batch:
                    self._heartbeat.beat(place)  # a spec class, too, may end this process
                    self._session.prepare(scenario)
                yield from batch

    def _report(self, last: Place | None) -> None:
        self._send(Progress(self._tally, last))
        self._tally = Tally()

    def _finding(
        self, violation: Violation, scenario: Scenario, *, shrunk: bool = False
    ) -> Finding:
        session = self._session
        return make_finding(
            violation,
            scenario=scenario,
            pages=tuple(session.pages(scenario).values()),
            surface=session.surface,
            target=session.target.uri,
            version=session.target.version,
            config=config_of(session.target, session.surface),
            shrunk=shrunk,
        )

    def judge(self, scenario: Scenario) -> tuple[Finding, ...]:
        """The findings that a thorough look at one scenario gives."""
        return tuple(
            self._finding(violation, scenario, shrunk=True)
            for violation in self._session.judge(scenario)
        )

    def _shown_by(self, witness: Scenario, digest: str) -> Finding | None:
        """The finding of that fingerprint as the ledger's witness shows it, if it does."""
        return next((f for f in self.judge(witness) if f.fingerprint == digest), None)

    def shrink_crash(self, job: ShrinkJob) -> None:
        """Shrink what ended another worker: send it as it was met, then its minimal form."""
        self._end = inf if job.end is None else job.end
        digest = job.fingerprint
        if digest is None:
            original = self._rebuild(job.place)[1]
            violation = crash_violation(job.crash, tuple(name for name, _ in original))
            digest = fingerprint(self._session.surface, violation)
            self._send(Violated(self._finding(violation, original), job.place))
        self._send(Shrunk(digest, self._reproduced(self.shrink(job.place, digest))))

    def _reproduced(self, finding: Finding | None) -> Finding | None:
        """The finding with its reproduction, if the target is vLLM's and it fails there."""
        if finding is None or not speaks_of(self._session.target.uri):
            return finding
        text = reproduction(finding, self._dialect)
        if text is None or not fails(text, finding):
            return finding
        return msgspec.structs.replace(finding, reproduction=text)

    def _rebuild(self, place: Place) -> tuple[list[int], Scenario]:
        """The choices of the mix at `place`, and the mix."""
        mixes = built(self._space, self._seed, place.chunk, record=True)
        return next(islice(mixes, place.number, None))

    def shrink(self, place: Place, digest: str) -> Finding | None:
        """The minimal finding of that fingerprint, from the mix at `place`.

        Returns:
            None if the mix does not fail again: the target is not
            deterministic, or was only slow.
        """
        session = self._session
        limits = session.limits
        deadline = min(self._end, time.monotonic() + limits.shrink_seconds)
        recorded, original = self._rebuild(place)

        only: str | None = None

        def broken(scenario: Scenario) -> Violation | None:
            self._heartbeat.beat(place)
            for violation in session.judge(scenario, only=only):
                if fingerprint(session.surface, violation) == digest:
                    return violation
            return None

        first = broken(original)
        if first is None:
            return None
        only = first.invariant
        if first.symptom == "time-out":  # not of memory, which takes its time to be filled
            session.call_seconds = limits.shrink_call_seconds
        shrunk = self._shrunk(recorded, broken, MOST_LAYERS, deadline) or original
        if first.symptom not in PASSING:  # those take long a try
            shrunk = self._plainest(shrunk, broken, deadline)
        session.call_seconds = limits.call_seconds
        # A call that is only slow is no time-out: the full limit has the last word.
        if (last := broken(shrunk)) is not None:
            return self._finding(last, shrunk, shrunk=True)
        return self._finding(first, original)

    def _plainest(self, shrunk: Scenario, still_broken: Broken, deadline: float) -> Scenario:
        return plainest(self._space, self._dialect, shrunk, still_broken, deadline)

    def _shrunk(
        self, recorded: list[int], broken: Broken, most_layers: int, deadline: float
    ) -> Scenario | None:
        return from_choices(self._space, recorded, broken, most_layers, deadline)
