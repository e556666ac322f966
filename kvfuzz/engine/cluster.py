"""A campaign on many machines: its jobs are tasks of a Dask cluster.

A task is a job and a time of at most _TASK_SECONDS; what comes back is
everything that its worker process said. A Dask worker that dies takes its
task with it, which the scheduler gives to another: nothing of it was counted.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from kvfuzz import __version__
from kvfuzz.engine.crew import timed
from kvfuzz.engine.messages import Fault, FuzzJob, Job, Message, decode
from kvfuzz.engine.places import Place
from kvfuzz.engine.supervisor import Worker, run_to_end
from kvfuzz.errors import KvfuzzError, TargetError, UsageError
from kvfuzz.files import printable
from kvfuzz.outcomes import Crash
from kvfuzz.targets.load import prepare

#: The longest that a task searches: as much is lost when a worker dies.
_TASK_SECONDS = 20.0
#: For the scheduler to answer, and for a worker of it to be there.
_CONNECT_SECONDS = 30
#: How often Dask gives a task to another worker when one dies or fails, and
#: how many tasks in a row may be lost for good.
_RETRIES = 3
_MOST_LOST = 5


class Remains(msgspec.Struct, frozen=True):
    """What a task leaves: all that its worker process said, and how that ended."""

    messages: list[Message]
    crash: Crash | None = None
    loaded: bool = False
    place: Place | None = None


def run_task(version: str, data: bytes, seconds: float | None, left: float | None) -> bytes:
    """Do a job on the machine of a Dask worker, in a process of its own.

    Args:
        version: Of the kvfuzz that asks.
        data: The job, as JSON.
        seconds: How long it may search, or None.
        left: How long it may shrink what it finds, or None.

    Returns:
        Its `Remains`, as JSON.
    """
    try:
        if version != __version__:
            raise TargetError(f"it has kvfuzz {__version__}, and this is {version}; install one.")
        job: Job = decode(data, Job)
        # Paths are this machine's own, and so is the cache of releases.
        job = msgspec.structs.replace(job, target=prepare(job.target.uri))
    except KvfuzzError as error:
        return msgspec.json.encode(Remains([Fault(f"On a Dask worker: {error}")]))
    with TemporaryDirectory(prefix="kvfuzz-", ignore_cleanup_errors=True) as claims:
        if isinstance(job, FuzzJob):
            job = msgspec.structs.replace(job, claims=claims)
        worker = Worker(timed(job, seconds, left))
        messages = list(run_to_end(worker))
    return msgspec.json.encode(Remains(messages, worker.crash, worker.loaded, worker.place))


class RemoteTask:
    """A job that a Dask worker is doing; see `crew.Task`."""

    def __init__(self, job: Job, future: Future[bytes], crew: DaskCrew) -> None:
        self.job = job
        self.crash: Crash | None = None
        self.done = False
        self.loaded = True  # as far as one can tell
        self.place: Place | None = None
        self._future = future
        self._crew = crew

    def messages(self) -> Iterator[Message]:
        """All of them, once the task is done.

        Raises:
            TargetError: Too many tasks have been lost.
        """
        if self.done or not self._future.done():
            return
        self.done = True
        try:
            remains: Remains = decode(self._future.result(), Remains)
        except (Exception, CancelledError) as error:
            self._crew.lose(error)
            return
        self._crew.lost = 0
        self.crash, self.loaded, self.place = remains.crash, remains.loaded, remains.place
        yield from remains.messages

    def end(self) -> None:
        """Want no more of it. A worker that is at it ends it within its time."""
        self.done = True
        self._future.cancel()


class DaskCrew:
    """The workers of a Dask cluster.

    Args:
        address: Of its scheduler, such as tcp://scheduler:8786.
        slots: Tasks at a time, or None for as many as its workers have threads.

    Attributes:
        lost: Tasks that were lost in a row.

    Raises:
        UsageError: The package distributed is missing, the scheduler does not
            answer, or no worker is there.
    """

    task_seconds: float | None = _TASK_SECONDS

    def __init__(self, address: str, slots: int | None) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise UsageError(
                "--dask needs the package distributed: pip install 'kvfuzz[dask]'."
            ) from None
        connect: Any = Client  # it is not typed
        shown = printable(address)
        # What goes wrong there is told in our own words.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        try:
            self._client = connect(address, timeout=_CONNECT_SECONDS, set_as_default=False)
        except Exception as error:  # whatever its transports raise
            raise UsageError(
                f"No Dask scheduler answers at {shown} ({type(error).__name__}); start one with "
                "`dask scheduler`, or leave out --dask."
            ) from None
        try:
            self._client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except Exception:
            self.close()
            raise UsageError(
                f"The Dask scheduler at {shown} has no workers; start some with "
                f"`dask worker {shown}`."
            ) from None
        self.slots = slots or sum(self._client.nthreads().values())
        self.lost = 0
        self._executor = self._client.get_executor(pure=False, retries=_RETRIES)

    def start(self, job: Job, seconds: float | None, left: float | None) -> RemoteTask:
        """Give a job to the cluster."""
        data = msgspec.json.encode(job)
        future = self._executor.submit(run_task, __version__, data, seconds, left)
        return RemoteTask(job, future, self)

    def lose(self, error: BaseException) -> None:
        """Take note that a task was lost for good; its part of the stream is dealt out again.

        Raises:
            TargetError: That was one too many.
        """
        self.lost += 1
        if self.lost >= _MOST_LOST:
            raise TargetError(
                f"The Dask cluster lost {self.lost} tasks in a row "
                f"({type(error).__name__}: {printable(str(error))}); see to its workers. What was "
                "found is kept, and --resume goes on from here."
            )

    def close(self) -> None:
        """Leave the cluster."""
        with contextlib.suppress(Exception):
            self._client.close(timeout=5)
