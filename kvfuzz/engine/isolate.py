"""Running a piece of work in a fork of this process, where it may hang, die or eat memory."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import selectors
import signal
import time
import warnings
from collections.abc import Callable

import psutil

from kvfuzz.engine.calls import DEFAULT_LIMITS
from kvfuzz.outcomes import Crash

_POLL_SECONDS = 0.05


def _in_child(work: Callable[[], bytes], pipe: int) -> None:
    status = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.disable()  # a death is an outcome here, told by its signal
        with os.fdopen(pipe, "wb") as out:
            out.write(work())
        status = 0
    finally:
        # Not sys.exit: nothing of the parent's may run in its copy.
        os._exit(status)


def isolated(
    work: Callable[[], bytes],
    *,
    seconds: float = DEFAULT_LIMITS.call_seconds,
    size: int = DEFAULT_LIMITS.call_bytes,
) -> bytes | Crash:
    """What `work` returns, run in a fork; a Crash if it hangs, dies or eats memory.

    Args:
        work: Must not raise, and return something.
        seconds: Wall-clock limit.
        size: Bytes by which the fork may grow.
    """
    base = psutil.Process().memory_info().rss
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # numpy and torch keep idle threads; the fork only computes and exits.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(reader)
        _in_child(work, writer)
    os.close(writer)
    deadline = time.monotonic() + seconds
    data = bytearray()
    verdict: Crash | None = None
    with os.fdopen(reader, "rb", buffering=0) as pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        child = psutil.Process(pid)
        while verdict is None:
            if selector.select(_POLL_SECONDS):
                piece = pipe.read(1 << 16)
                if not piece:
                    break
                data += piece
            elif time.monotonic() > deadline:
                verdict = Crash(symptom="time-out")
            else:
                with contextlib.suppress(psutil.Error):
                    if child.memory_info().rss - base > size:
                        verdict = Crash(symptom="memory")
    if verdict is not None:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if verdict is not None:
        return verdict
    # A planner may end the process itself, and call that a success.
    return bytes(data) if status == 0 and data else died(status)


def died(status: int) -> Crash:
    """The crash of a process that ended with `status` (negative: by that signal)."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return Crash(symptom="died", exception=signal.Signals(-status).name)
    return Crash(symptom="died", exception=f"exit status {status}")
