"""Worker processes, watched from outside.

A planner may loop in C, die by a signal or eat memory: then its worker is
ended here, and the heartbeat tells which mix did it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from kvfuzz.engine.calls import CALL_BYTES, CALL_SECONDS
from kvfuzz.engine.isolate import died
from kvfuzz.engine.messages import Fault, Finished, Heartbeat, Job, Loaded, Message, Place
from kvfuzz.outcomes import Crash

#: Seconds that a target may take to load, its imports included.
LOAD_SECONDS = 180.0
#: Seconds without a heartbeat after which a worker is held to hang. A trial
#: is a few calls, each of which is stopped from inside where that works.
SILENT_SECONDS = 5 * CALL_SECONDS
#: Bytes by which a worker may grow over its size when loaded.
GROWTH_BYTES = 2 * CALL_BYTES

# A Tally's Counters are the only types here that msgspec does not know.
_DECODER = msgspec.json.Decoder(Message, dec_hook=lambda _, value: Counter(value))


class Worker:
    """One worker process doing one job.

    Attributes:
        job: The job.
        crash: How the process came to a bad end, or None.
        done: Whether no message will follow.
    """

    def __init__(self, form: type[Any], **fields: Any) -> None:
        self._path, self._heartbeat = Heartbeat.create()
        self.job: Job = form(heartbeat=self._path, **fields)
        self.crash: Crash | None = None
        self.done = False
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            # The working folder is on the path, as it is for `python -m`.
            [sys.executable, "-m", "kvfuzz.engine.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(self.job))
            self._process.stdin.close()
        os.set_blocking(self._process.stdout.fileno(), False)
        self._buffer = b""
        self._count = 0
        self._moved = time.monotonic()
        self._loaded_size: int | None = None

    @property
    def place(self) -> Place:
        """Where the mix in hand is, or was when the process ended."""
        return self._heartbeat.read()[1]

    def messages(self) -> Iterator[Message]:
        """The messages that have come; after the last of them `done` is set."""
        assert self._process.stdout is not None
        while not self.done:
            piece = self._process.stdout.read(1 << 16)
            if piece is None:  # nothing more for now
                self._look()
                if not self.done:
                    return
                continue
            self._buffer += piece
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                message = _DECODER.decode(line)
                if isinstance(message, Loaded):
                    self._loaded_size = self._size()
                    self._moved = time.monotonic()
                if isinstance(message, Finished | Fault):
                    self.end()
                yield message
            if not piece and not self.done:
                self.crash = died(self._process.wait())
                self.end()

    def _size(self) -> int:
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(self._process.pid).memory_info().rss)
        return 0

    def _look(self) -> None:
        """End the process if it hangs or has grown too large."""
        now = time.monotonic()
        count = self._heartbeat.read()[0]
        if count != self._count:
            self._count, self._moved = count, now
        limit = LOAD_SECONDS if self._loaded_size is None else SILENT_SECONDS
        if now - self._moved > limit:
            self.crash = Crash(symptom="time-out")
        elif self._loaded_size is not None and self._size() - self._loaded_size > GROWTH_BYTES:
            self.crash = Crash(symptom="memory")
        if self.crash is not None:
            self.end()

    @property
    def loaded(self) -> bool:
        """Whether the target was loaded."""
        return self._loaded_size is not None

    def end(self) -> None:
        """End the process, if it has not ended, and forget what it held."""
        if not self.done:
            self.done = True
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            with contextlib.suppress(OSError):
                Path(self._path).unlink()


def pause() -> None:
    """Wait a moment for workers to get on."""
    time.sleep(0.02)


def run_to_end(worker: Worker) -> Iterator[Message]:
    """All messages of a worker, waiting for them."""
    try:
        while not worker.done:
            yield from worker.messages()
            pause()
    finally:
        worker.end()
