"""How one call of a planner ends: classifying what it raises, and stopping it in time.

A call is stopped from inside where that is possible, since the failure can
then be shrunk in the same process; `engine.supervisor` ends, from outside,
whatever does not heed this.
"""

from __future__ import annotations

import dis
import linecache
import re
import signal
import time
from types import FrameType, TracebackType
from typing import Any, Final

import msgspec
import psutil

from kvfuzz.outcomes import Crash, Refusal


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long things may take, how large they may get and how often they may fail.

    Attributes:
        load_seconds: Loading a target, its imports included.
        call_seconds: One call. It takes well under a millisecond.
        call_bytes: Bytes by which one call may make its process grow.
        shrink_call_seconds: One call while a time-out is shrunk: most of the
            mixes tried hang too.
        shrink_seconds: Shrinking one finding; then the smallest so far will do.
        shrinks: Findings of one surface that are shrunk. A planner that fails
            otherwise on every mix has thousands: those that follow stay as
            they were met, but for time-outs and the like, which are to be
            seen again.
        findings: Findings of one surface after which its search is given up:
            more of them say nothing more, and each is a file and is kept in
            memory.
        silent_seconds: A trial, which is a few calls, each of them stopped
            from inside where that works. A worker is ended after that.
        deaths: Workers of one surface that may die before its search is given
            up: each costs a start, and by then the findings say why.
    """

    load_seconds: float = 180.0
    call_seconds: float = 2.0
    call_bytes: int = 1 << 30
    shrink_call_seconds: float = 0.25
    shrink_seconds: float = 30.0
    shrinks: int = 100
    findings: int = 10_000
    silent_seconds: float = 10.0
    deaths: int = 20

    @property
    def growth_bytes(self) -> int:
        """Bytes by which a worker may grow over its size when loaded."""
        return 2 * self.call_bytes


DEFAULT_LIMITS: Final = Limits()

#: Symptoms that a busy machine can have, rather than the planner: only those
#: that come back count.
PASSING: Final = ("time-out", "memory")

#: The most text of an exception that is kept.
_MOST_TEXT: Final = 2_000

_RAISE: Final = dis.opmap["RAISE_VARARGS"]
_TWO_WORDS: Final = re.compile(r"[A-Za-z]{2,}\W+[A-Za-z]{2,}")


class CallStopped(BaseException):
    """Raised into a call that ran or grew beyond its limit."""

    def __init__(self, outcome: Crash) -> None:
        self.outcome = outcome
        super().__init__(outcome.symptom)


class Watch:
    """Stops the call in progress when it takes too long or too much memory.

    One periodic timer looks at the call, so that a call itself costs no
    system call. Works in the main thread of a POSIX process; for planners
    that loop in Python.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.deadline = 0.0  # monotonic seconds; 0 while no call is in progress
        self._seen = 0.0  # that of the last tick, which tells one call from the next
        self._bytes = limits.call_bytes
        self._tick_seconds = min(0.1, limits.shrink_call_seconds / 2)
        self._process = psutil.Process()
        self._base = self._process.memory_info().rss

    def start(self) -> None:
        """Begin watching this process."""
        signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, self._tick_seconds, self._tick_seconds)

    def stop(self) -> None:
        """End watching."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _tick(self, _signal: int, _frame: FrameType | None) -> None:
        size = self._process.memory_info().rss
        if self.deadline and time.monotonic() > self.deadline:
            self.deadline = 0.0
            raise CallStopped(Crash(symptom="time-out"))
        if self.deadline and size - self._base > self._bytes:
            self.deadline = 0.0
            raise CallStopped(Crash(symptom="memory"))
        if self.deadline != self._seen or not self.deadline:
            # Another call than at the last tick, if any: not to be blamed for
            # what those before it have kept.
            self._seen, self._base = self.deadline, size


def _last(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _text(error: BaseException) -> str:
    """The error's message; it may be of any length and encoding, and fail to be made."""
    try:
        text = str(error)[:_MOST_TEXT]
    except Exception:
        return ""
    return text.encode(errors="backslashreplace").decode()


def classify(error: BaseException) -> Refusal | Crash:
    """What an exception out of a planner is: a refusal, or a crash.

    A refusal is a ValueError or NotImplementedError that code raised on
    purpose (not the interpreter, as in `max` of nothing) with a message of
    more than one word. The message of a bare assertion is the source line
    that failed, so that two assertions of one function are told apart.
    """
    kind = type(error).__name__
    message = _text(error)
    at = _last(error.__traceback__)
    if (
        isinstance(error, ValueError | NotImplementedError)
        and _TWO_WORDS.search(message)
        and at is not None
        and at.tb_frame.f_code.co_code[at.tb_lasti] == _RAISE
    ):
        return Refusal(exception=kind, message=message)
    function = at.tb_frame.f_code.co_name if at is not None else ""
    message = message or _line(at)
    return Crash(symptom="exception", exception=kind, function=function, message=message)


def _line(at: TracebackType | None) -> str:
    """The source line that raised."""
    if at is None:
        return ""
    return linecache.getline(at.tb_frame.f_code.co_filename, at.tb_lineno).strip()


def unusable_answer(answer: Any, error: BaseException) -> Crash:
    """The crash that an answer amounts to if it is no plan at all."""
    text = _text(error) or _line(_last(error.__traceback__))
    return Crash(
        symptom="exception",
        exception="UnusableAnswer",
        message=f"returned {type(answer).__name__}: {text}",
    )
