"""A verification: every pattern of a few layers put to a target, in pieces if need be.

It is a search whose workers enumerate (`engine.enumerator`) in place of drawing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvfuzz.engine import patterns
from kvfuzz.engine.crew import Task
from kvfuzz.engine.events import Event, Verified
from kvfuzz.engine.messages import FuzzJob, Message, ShrinkJob, Shrunk, VerifyJob
from kvfuzz.engine.search import Search
from kvfuzz.engine.settings import Settings


class VerifySettings(Settings, frozen=True, kw_only=True):
    """What to verify.

    Attributes:
        layers: The most layers of a pattern.
    """

    layers: int


class Verification(Search):
    """One surface of one target, enumerated by several workers."""

    _enumerated = True

    def __init__(self, settings: Settings, *rest: Any) -> None:
        assert isinstance(settings, VerifySettings)
        super().__init__(settings, *rest)
        self._layers = settings.layers
        self.report.verified = Verified(
            layers=settings.layers,
            patterns=patterns.total(settings.layers),
            mixes=patterns.mixes(settings.layers),
        )

    def _job(self, lane: int) -> FuzzJob:
        return VerifyJob(**msgspec.structs.asdict(super()._job(lane)), layers=self._layers)

    def _take(self, task: Task, message: Message) -> Iterator[Event]:
        yield from super()._take(task, message)
        assert self.report.verified is not None
        job = task.job
        match message:
            case Shrunk(digest, None) if isinstance(job, ShrinkJob) and job.fingerprint is None:
                if digest not in self._kept:
                    # Judged again, the mix ended no process: something else had.
                    self.report.tally.violated["plan-or-refusal"] -= 1
        finished = self.exhausted and not self.report.stopped
        self.report.verified = msgspec.structs.replace(self.report.verified, finished=finished)

    def _adopt(self, version: str) -> Iterator[Event]:
        yield from super()._adopt(version)
        assert self.report.verified is not None
        self.report.verified = msgspec.structs.replace(
            self.report.verified, resumed=self.report.tally.mixes
        )
