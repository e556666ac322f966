"""Who does the jobs of a campaign: worker processes of this machine, or of a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

import msgspec

from kvfuzz.engine.messages import FuzzJob, Job, Message, ShrinkJob
from kvfuzz.engine.places import Place
from kvfuzz.engine.supervisor import Worker
from kvfuzz.outcomes import Crash


class Task(Protocol):
    """A job that is being done.

    Attributes:
        job: The job.
        crash: How its worker came to a bad end, or None.
        done: Whether no message will follow.
    """

    job: Job
    crash: Crash | None
    done: bool

    @property
    def loaded(self) -> bool:
        """Whether the target was loaded."""
        ...

    @property
    def place(self) -> Place | None:
        """Where the mix in hand is, or was when the worker ended; None before the first."""
        ...

    def messages(self) -> Iterator[Message]:
        """The messages that have come; after the last of them `done` is set."""
        ...

    def end(self) -> None:
        """End it, if it has not ended."""
        ...


class Crew(Protocol):
    """Starts jobs.

    Attributes:
        slots: How many searching jobs it does at a time.
        task_seconds: The longest that one may search, or None.
    """

    slots: int
    task_seconds: float | None

    def start(self, job: Job, seconds: float | None, left: float | None) -> Task:
        """Start a job.

        Args:
            job: The job.
            seconds: How long it may search, or None.
            left: How long it may shrink what it finds, or None.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


def timed(job: Job, seconds: float | None, left: float | None) -> Job:
    """The job, with its times counted from now; see `Crew.start`."""
    now = time.monotonic()
    if isinstance(job, FuzzJob) and seconds is not None:
        job = msgspec.structs.replace(job, deadline=now + seconds)
    if isinstance(job, FuzzJob | ShrinkJob) and left is not None:
        job = msgspec.structs.replace(job, end=now + left)
    return job


class LocalCrew:
    """Worker processes of this machine.

    Args:
        slots: How many searching jobs at a time.
    """

    task_seconds: float | None = None

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def start(self, job: Job, seconds: float | None, left: float | None) -> Worker:
        """Start a job in a process of its own."""
        return Worker(timed(job, seconds, left))

    def close(self) -> None:
        """Nothing to let go of: each worker ends by itself or is ended."""
