"""The two targets of a comparison, each in a worker of its own, asked the same questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from kvfuzz.engine.calls import Limits
from kvfuzz.engine.messages import AnswerJob, Ask, Chunk, Fault, Loaded, Open, Replies, Told
from kvfuzz.engine.replies import crash_reply
from kvfuzz.engine.supervisor import LEAK, Worker, listen
from kvfuzz.errors import TargetError
from kvfuzz.outcomes import Crash
from kvfuzz.pages import Dialect
from kvfuzz.specs import Scenario
from kvfuzz.targets.load import Prepared

_Answer: TypeAlias = Replies | Told | Crash


class Stopped(BaseException):
    """The run is to stop. Not an Exception, so that shrinking lets it through."""


class GivenUp(Exception):
    """A target ends its workers too often for its surface to be compared on."""


class Side:
    """One target.

    Args:
        prepared: The target.
        limits: Of its worker.

    Attributes:
        uri: What it is called.
        version: Its version, once it is loaded; as the attributes below.
        surfaces: Its surfaces.
        config: Where the config is from that it plans by: see `targets.base.config_of`.
        dialect: What it can be told.
    """

    def __init__(self, prepared: Prepared, limits: Limits) -> None:
        self.uri = prepared.uri
        self.version = ""
        self.surfaces: tuple[str, ...] = ()
        self.config = ""
        self.dialect: Dialect | None = None
        self._job = AnswerJob(target=prepared, limits=limits)
        self._opened: Open | None = None
        self._asked: Chunk | Ask | None = None
        self._deaths = 0
        self.answer: _Answer | None = None
        self.worker = Worker(self._job)

    def open(self, surface: str, dialect: Dialect) -> None:
        """Ask on that surface from here on."""
        self._opened = Open(surface, dialect)
        self._deaths = 0
        self.worker.send(self._opened)

    def ask(self, request: Chunk | Ask) -> None:
        """Ask; `answer` is None until `take` has got the answer."""
        self._asked, self.answer = request, None
        if self.worker.done:
            self.worker = Worker(self._job)  # it is asked once it is loaded
        else:
            self.worker.send(request)

    def take(self) -> None:
        """Take what has come from the worker.

        Raises:
            TargetError: The target could not be loaded, or kvfuzz failed.
            GivenUp: Its workers have ended too often.
        """
        for message in self.worker.messages():
            match message:
                case Loaded(version, surfaces, config=config, dialect=dialect):
                    self.version, self.surfaces, self.dialect = version, surfaces, dialect
                    self.config = config
                    if self._opened is not None:
                        self.worker.send(self._opened)
                    if self._asked is not None:
                        self.worker.send(self._asked)
                case Replies() | Told():
                    self.answer = message
                case Fault(text):
                    raise TargetError(text)
        crash = self.worker.crash
        if self.worker.done and crash is not None:
            if not self.worker.loaded:
                how = f"{crash.symptom} {crash.exception}".strip()
                raise TargetError(f"{self.uri} could not be loaded: its process ended with {how}.")
            self._deaths += 1
            if self._deaths > self._job.limits.deaths:
                raise GivenUp(f"{self._deaths} workers of {self.uri} had to be ended or died")
            self.answer = crash

    def end(self) -> None:
        """End its worker."""
        self.worker.end()


class Sides:
    """Both targets, loading from here on.

    Args:
        targets: Both.
        limits: Of their workers.
        stop: Says when to stop: then any of the methods raises Stopped.
    """

    def __init__(
        self, targets: tuple[Prepared, Prepared], limits: Limits, stop: Callable[[], bool]
    ) -> None:
        self._stop = stop
        self.sides = (Side(targets[0], limits), Side(targets[1], limits))

    def loaded(self) -> None:
        """Wait until both are loaded.

        Raises:
            TargetError: One of them cannot be.
        """
        self._wait(lambda side: side.dialect is not None)

    def open(self, surface: str, dialect: Dialect) -> None:
        """Ask both on that surface from here on."""
        for side in self.sides:
            side.open(surface, dialect)

    def chunk(
        self, request: Chunk, mix_at: Callable[[int], Scenario]
    ) -> tuple[list[msgspec.Raw], list[msgspec.Raw]]:
        """The replies of both to a chunk. A mix that ends a worker has that for a reply.

        Args:
            request: The chunk.
            mix_at: The scenario of a number in it.
        """
        ended: dict[Side, dict[int, Crash]] = {side: {} for side in self.sides}
        replies: dict[Side, list[msgspec.Raw]] = {}
        while left := [side for side in self.sides if side not in replies]:
            for side in left:
                side.ask(msgspec.structs.replace(request, skip=tuple(ended[side])))
            self._wait(lambda side: side.answer is not None)
            for side in left:
                if isinstance(side.answer, Replies):
                    replies[side] = side.answer.replies
                    continue
                place = side.worker.place
                # What leaked ends a worker over many calls, whatever it was asked last.
                if side.answer != LEAK and place is not None and isinstance(side.answer, Crash):
                    ended[side][place.number] = side.answer
        for side, crashes in ended.items():
            for number, crash in crashes.items():
                if number < len(replies[side]):
                    reply = crash_reply(crash, mix_at(number))
                    replies[side][number] = msgspec.Raw(msgspec.json.encode(reply))
        one, other = self.sides
        return replies[one], replies[other]

    def told(self, scenario: Scenario, seconds: float | None = None) -> tuple[Told, Told]:
        """What both say to one scenario.

        Args:
            scenario: The scenario.
            seconds: That a call in a fork may take; None is a call in the worker.
        """
        for side in self.sides:
            side.ask(Ask(scenario, seconds))
        self._wait(lambda side: side.answer is not None)
        one, other = (_told(side.answer, scenario) for side in self.sides)
        return one, other

    def _wait(self, ready: Callable[[Side], bool]) -> None:
        waiting: Sequence[Side] = self.sides
        while waiting := [side for side in waiting if not ready(side)]:
            if self._stop():
                raise Stopped
            listen(side.worker for side in waiting)
            for side in waiting:
                side.take()

    def end(self) -> None:
        """End both workers."""
        for side in self.sides:
            side.end()


def _told(answer: _Answer | None, scenario: Scenario) -> Told:
    if isinstance(answer, Crash):
        return Told(crash_reply(answer, scenario), ())
    assert isinstance(answer, Told)
    return answer
