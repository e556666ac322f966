"""A campaign on many machines: its jobs are tasks of a Dask cluster.

A task is a job and a time of at most _TASK_SECONDS; what comes back is
everything that its worker process said. A Dask worker that dies takes its
task with it, which the scheduler gives to another: nothing of it was counted.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

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
#: What a task gives up of its time to begin on another machine and to come
#: back in time, and the part of a short time that this is at most.
_WAY_SECONDS = 1.5
_WAY_PART = 0.25
#: For the scheduler to answer, and for a worker of it to be there.
_CONNECT_SECONDS = 30
#: How often we see whether they still are, how long that may take, and how
#: long it may go without success. A scheduler that is started again is waited for.
_LOOK_SECONDS = 5.0
_ANSWER_SECONDS = 2.0
_GONE_SECONDS = 45.0
#: How often one task may be lost. Dask itself gives it to another worker
#: several times when one dies; it is lost then, when it raises, and with its scheduler.
_MOST_LOST = 3
#: What Dask takes for an address; what it cannot read it leaves half open.
_ADDRESS = re.compile(r"(?:\w+://)?(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):(\d{1,5})")
_KEPT = "What was found is kept, and --resume goes on from here."


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
        return msgspec.json.encode(Remains([Fault(str(error))]))
    with TemporaryDirectory(prefix="kvfuzz-", ignore_cleanup_errors=True) as claims:
        if isinstance(job, FuzzJob):
            job = msgspec.structs.replace(job, claims=claims)
        worker = Worker(timed(job, seconds, left))
        messages = list(run_to_end(worker))
    return msgspec.json.encode(Remains(messages, worker.crash, worker.loaded, worker.place))


class RemoteTask:
    """A job that a Dask worker is doing; see `crew.Task`. If it is lost, it is given out again."""

    def __init__(self, job: Job, seconds: float | None, left: float | None, crew: DaskCrew) -> None:
        self.job = job
        self.crash: Crash | None = None
        self.done = False
        self.loaded = True  # as far as one can tell
        self.place: Place | None = None
        self._crew = crew
        now = time.monotonic()
        self._until = [None if t is None else now + t for t in (seconds, left)]
        self._lost = 0
        self._future = crew.submit(job, seconds, left)

    def messages(self) -> Iterator[Message]:
        """All of them, once the task is done.

        Raises:
            TargetError: It has been lost too often, or the cluster is gone.
        """
        if self.done:
            return
        if not self._future.done():
            self._crew.look()
            return
        try:
            remains: Remains = decode(self._future.result(), Remains)
        except Exception as error:  # whatever a worker or Dask has raised
            if not self._crew.given_up:
                self._again(error)
            return
        self.done = True
        self.crash, self.loaded, self.place = remains.crash, remains.loaded, remains.place
        for message in remains.messages:
            if isinstance(message, Fault):
                yield Fault(f"On a Dask worker: {message.message}")
            else:
                yield message

    def _again(self, error: Exception) -> None:
        """Give it out again after it was lost."""
        self._lost += 1
        if self._lost > _MOST_LOST:
            self._crew.give_up(
                f"The Dask cluster lost a task {self._lost} times, at last with "
                f"{type(error).__name__}: {printable(str(error))}; see to its workers."
            )
        now = time.monotonic()
        seconds, left = (None if t is None else max(0.0, t - now) for t in self._until)
        self._future = self._crew.submit(self.job, seconds, left)

    def end(self) -> None:
        """Want no more of it. A worker that is at it ends it within its time."""
        self.done = True
        if self._crew.connected:
            self._future.cancel()


class DaskCrew:
    """The workers of a Dask cluster.

    Args:
        address: Of its scheduler, such as tcp://scheduler:8786.
        slots: Tasks at a time, or None for as many as its workers have threads.

    Attributes:
        given_up: Whether it was found to be of no use any more.

    Raises:
        UsageError: The package distributed is missing, the address is none, the
            scheduler does not answer, or no worker is there that has this kvfuzz.
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
        form = _ADDRESS.fullmatch(address)
        if form is None or int(form[1]) >= 1 << 16:
            raise UsageError(f"--dask {shown} is no address: write it as tcp://HOST:8786.")
        # What goes wrong there is told in our own words. It has set levels of its own.
        for name in list(logging.root.manager.loggerDict):
            if name.partition(".")[0] == "distributed":
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
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
        try:
            workers = self._client.get_versions(packages=["kvfuzz"])["workers"]
            self.slots = slots or sum(self._client.nthreads().values())
        except Exception as error:  # one has just died, for instance
            self.close()
            raise UsageError(
                f"The workers of the Dask scheduler at {shown} do not answer "
                f"({type(error).__name__}); see to them, or leave out --dask."
            ) from None
        self._check(workers)
        self._shown = shown
        self._executor = self._client.get_executor(pure=False)
        self.given_up = False
        self._looked = self._seen = time.monotonic()

    def _check(self, workers: dict[str, Any]) -> None:
        """See that they have this kvfuzz: a task that it cannot import ends a Dask worker.

        Args:
            workers: What they have, by address.

        Raises:
            UsageError: One has another or none.
        """
        for address, versions in sorted(workers.items()):
            has = versions["packages"].get("kvfuzz") if versions else None
            if has != __version__:
                self.close()
                raise UsageError(
                    f"The Dask worker {printable(address)} has "
                    f"{f'kvfuzz {printable(str(has))}' if has else 'no kvfuzz'}, and this is "
                    f"{__version__}: install one version on all of them."
                )

    def start(self, job: Job, seconds: float | None, left: float | None) -> RemoteTask:
        """Give a job to the cluster.

        Raises:
            TargetError: It is gone.
        """
        seconds, left = (
            None if t is None else t - min(_WAY_SECONDS, _WAY_PART * t) for t in (seconds, left)
        )
        return RemoteTask(job, seconds, left, self)

    def submit(self, job: Job, seconds: float | None, left: float | None) -> Future[bytes]:
        """Hand a task to the scheduler.

        Raises:
            TargetError: It is gone.
        """
        try:
            future: Future[bytes] = self._executor.submit(
                run_task, __version__, msgspec.json.encode(job), seconds, left
            )
        except Exception:  # Dask has closed its client, having tried for long
            self._gone()
        return future

    @property
    def connected(self) -> bool:
        """Whether there is a scheduler that can be told something."""
        return bool(self._client.status == "running")

    def look(self) -> None:
        """See now and then whether the scheduler and workers are there: no task tells.

        Raises:
            TargetError: They have been gone for long.
        """
        now = time.monotonic()
        if self.given_up or now - self._looked < _LOOK_SECONDS:
            return
        with contextlib.suppress(Exception):  # it does not answer
            ask = self._client.scheduler.ncores
            if self.connected and self._client.sync(ask, callback_timeout=_ANSWER_SECONDS):
                self._seen = time.monotonic()
        self._looked = time.monotonic()
        if self._looked - self._seen > _GONE_SECONDS:
            self._gone()

    def _gone(self) -> NoReturn:
        self.give_up(f"The Dask cluster at {self._shown} has no scheduler or no workers any more.")

    def give_up(self, sentence: str) -> NoReturn:
        """End the campaign; what tasks have come back by then is still taken.

        Raises:
            TargetError: With that sentence.
        """
        self.given_up = True
        raise TargetError(f"{sentence} {_KEPT}")

    def close(self) -> None:
        """Leave the cluster."""
        with contextlib.suppress(Exception):
            self._client.close(timeout=5)
