"""Worker processes, watched from outside.

A planner may loop in C, die by a signal or eat memory: then its worker is
ended here, and the heartbeat tells which mix did it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import psutil

from kvfuzz.engine.isolate import died
from kvfuzz.engine.messages import Fault, Finished, Heartbeat, Job, Loaded, Message, Request, decode
from kvfuzz.engine.places import Place
from kvfuzz.outcomes import Crash

#: The end of a worker that grew too large over many mixes: not by the one in hand.
LEAK: Final = Crash(symptom="memory", message="over many calls")

#: Pieces of 64 KiB that are read of a worker in one go: far more than a pipe
#: holds. One that has more to say than can be kept track of has to wait, not
#: the run, which looks at its clock and for Ctrl-C in between.
_PIECES = 16
#: Seconds from the end of a process's output to its own.
_EXIT_SECONDS = 5.0


class Worker:
    """One worker process doing one job.

    Attributes:
        job: The job.
        crash: How the process came to a bad end, or None.
        done: Whether no message will follow.
    """

    def __init__(self, job: Job) -> None:
        shared, self._heartbeat = Heartbeat.create()
        self.job = msgspec.structs.replace(job, heartbeat=shared.fileno())
        self.crash: Crash | None = None
        self.done = False
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with shared:
            self._process = subprocess.Popen(
                # The working folder is on the path, as it is for `python -m`.
                [sys.executable, "-m", "kvfuzz.engine.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=environment,
                pass_fds=(shared.fileno(),),
                process_group=0,  # with what it forks, so that they end together
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._write(self.job)
        os.set_blocking(self._process.stdout.fileno(), False)
        self._buffer = b""
        self._count = 0
        self._moved = time.monotonic()
        self._loaded_size: int | None = None
        self._grown = 0  # bytes over that, when the count was last seen to move

    def _write(self, what: Job | Request) -> None:
        assert self._process.stdin is not None
        line = memoryview(msgspec.json.encode(what) + b"\n")
        with contextlib.suppress(BrokenPipeError):
            while line:  # a signal can cut a write short
                line = line[self._process.stdin.write(line) :]

    def send(self, request: Request) -> None:
        """Ask something of a worker whose job is to answer."""
        if not self.done:
            self._moved = time.monotonic()  # until now it had nothing to say
            self._write(request)

    @property
    def place(self) -> Place | None:
        """Where the mix in hand is, or was when the process ended; None before the first."""
        count, place = self._heartbeat.read()
        return place if count else None

    def messages(self) -> Iterator[Message]:
        """Messages that have come; after the last of all `done` is set."""
        assert self._process.stdout is not None
        for _ in range(_PIECES):
            if self.done:
                return
            # Asked before reading, so that what it said last is read; and asked
            # at all, since a fork that it left keeps its output open.
            ended = self._process.poll() is not None
            piece = self._process.stdout.read(1 << 16)
            if piece is None and not ended:  # nothing more for now
                self._look()
                if not self.done:
                    return
                continue
            self._buffer += piece or b""
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                message: Message = decode(line, Message)
                if isinstance(message, Loaded):
                    self._loaded_size = self._size()
                    self._moved = time.monotonic()
                if isinstance(message, Finished | Fault):
                    self.end()
                yield message
            if not piece and not self.done:
                try:
                    self.crash = died(self._process.wait(_EXIT_SECONDS))
                except subprocess.TimeoutExpired:  # the planner closed what was not its own
                    self.crash = Crash(symptom="time-out")
                self.end()
        if not self.done:  # it talks faster than we listen, and may grow all the same
            self._look()

    def _size(self) -> int:
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(self._process.pid).memory_info().rss)
        return 0

    def _look(self) -> None:
        """End the process if it hangs or has grown too large."""
        now = time.monotonic()
        count = self._heartbeat.read()[0]
        size, limits = self._loaded_size, self.job.limits
        grown = 0 if size is None else self._size() - size
        mixes, growth = count - self._count, grown - self._grown
        if mixes:
            self._count, self._moved, self._grown = count, now, grown
        if now - self._moved > (limits.load_seconds if size is None else limits.silent_seconds):
            self.crash = Crash(symptom="time-out")
        elif grown > limits.growth_bytes:
            # By those since the last look, or by the one that is still in hand.
            alone = growth > limits.call_bytes * max(1, mixes)
            self.crash = Crash(symptom="memory") if alone else LEAK
        if self.crash is not None:
            self.end()

    @property
    def loaded(self) -> bool:
        """Whether the target was loaded."""
        return self._loaded_size is not None

    def fileno(self) -> int:
        """What its messages come on."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def end(self) -> None:
        """End the process and all that it forked, if it has not ended."""
        if not self.done:
            self.done = True
            # Its own end may leave a fork that hangs.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()


def pause() -> None:
    """Wait a moment for workers to get on."""
    time.sleep(0.02)


def listen(workers: Iterable[Worker]) -> None:
    """Wait a moment, or until one of the workers says something; none of them may be done."""
    select.select([worker.fileno() for worker in workers], [], [], 0.02)


def run_to_end(worker: Worker) -> Iterator[Message]:
    """All messages of a worker, waiting for them."""
    try:
        while not worker.done:
            yield from worker.messages()
            pause()
    finally:
        worker.end()
