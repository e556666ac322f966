"""Going through every pattern of a few layers, as the scout goes through a random stream.

Runs in a worker. A mix is named by its place too: chunk times CHUNK plus
number is its number in `engine.patterns`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from kvfuzz.engine import patterns
from kvfuzz.engine.messages import FuzzJob, Heartbeat, Message, VerifyJob
from kvfuzz.engine.places import CHUNK, Place
from kvfuzz.engine.scout import Scout
from kvfuzz.engine.session import Session
from kvfuzz.engine.simplify import Broken, simplified
from kvfuzz.invariants import Violation
from kvfuzz.specs import Scenario

#: Patterns of up to so many layers are judged by the rules that call again
#: too, every one of them; of larger ones the usual share is.
CALLS_AGAIN_LAYERS = 3

#: Patterns of a chunk.
PATTERNS = CHUNK // patterns.REPRESENTATIVES


def chunks(layers: int) -> int:
    """How many chunks the patterns of up to so many layers come to."""
    return -(-patterns.total(layers) // PATTERNS)


class Enumerator(Scout):
    """A scout whose stream is an enumeration. What it finds is small when it is found."""

    def __init__(
        self, session: Session, heartbeat: Heartbeat, send: Callable[[Message], None]
    ) -> None:
        super().__init__(session, 0, heartbeat, send)
        self._mixes = patterns.Mixes(session.target.dialect)
        self._thorough = patterns.total(CALLS_AGAIN_LAYERS)

    def search(self, job: FuzzJob) -> bool:
        """Do the job; see `Scout`."""
        # The first mix met is as small as a witness, or smaller.
        return super().search(msgspec.structs.replace(job, witnesses={}))

    def _stream(self, job: FuzzJob) -> Iterator[tuple[Place, Scenario]]:
        assert isinstance(job, VerifyJob)
        for chunk in range(job.start.chunk, chunks(job.layers), job.stride):
            done = job.coverage.of(chunk)
            first = chunk * PATTERNS
            for pattern in range(first, min(first + PATTERNS, patterns.total(job.layers))):
                for which in patterns.representatives(pattern):
                    place = Place(chunk, (pattern - first) * patterns.REPRESENTATIVES + which)
                    if place.number >= done and place not in job.skip:
                        yield place, self._mix(place)

    def _judge(self, place: Place, scenario: Scenario) -> list[Violation]:
        # By the pattern's number, so that neither representative is favoured.
        pattern = place.chunk * PATTERNS + place.number // patterns.REPRESENTATIVES
        again = pattern < self._thorough
        return self._session.judge(scenario, self._tally, pattern, again=again)

    def _mix(self, place: Place) -> Scenario:
        return self._mixes.mix(place.chunk * CHUNK + place.number)

    def _rebuild(self, place: Place) -> tuple[list[int], Scenario]:
        return [], self._mix(place)

    def _shrunk(
        self, recorded: list[int], broken: Broken, most_layers: int, deadline: float
    ) -> Scenario | None:
        return None  # it was built from no choices; the last pass is all that it needs

    def _plainest(self, shrunk: Scenario, still_broken: Broken, deadline: float) -> Scenario:
        def broken(scenario: Scenario) -> Violation | None:
            return still_broken(scenario) if time.monotonic() < deadline else None

        return simplified(shrunk, broken, self._session.target.dialect)
