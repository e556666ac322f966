"""What an exception is, and that a call can be stopped."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import pytest

from kvfuzz.engine.calls import CallStopped, Limits, Watch, classify
from kvfuzz.engine.isolate import isolated
from kvfuzz.outcomes import Crash, Refusal


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize("kind", [ValueError, NotImplementedError])
def test_a_documented_error_is_a_refusal(kind: type[Exception]):
    outcome = classify(_raised(kind("page sizes do not divide")))
    assert outcome == Refusal(exception=kind.__name__, message="page sizes do not divide")


@pytest.mark.parametrize("error", [ValueError(), ValueError("42"), NotImplementedError("no")])
def test_an_error_that_says_nothing_is_a_crash(error: Exception):
    assert isinstance(classify(_raised(error)), Crash)


def test_an_error_that_the_interpreter_raised_is_a_crash():
    try:
        max([])
    except ValueError as error:
        outcome = classify(error)
    assert isinstance(outcome, Crash)
    assert outcome.exception == "ValueError"
    assert outcome.function == "test_an_error_that_the_interpreter_raised_is_a_crash"


def test_a_bare_assertion_is_named_by_its_condition():
    layers = 0
    try:
        # Raised by hand: pytest rewrites assert statements.
        if not layers > 0:
            raise AssertionError
    except AssertionError as error:
        outcome = classify(error)
    assert outcome == Crash(
        symptom="exception",
        exception="AssertionError",
        function="test_a_bare_assertion_is_named_by_its_condition",
        message="raise AssertionError",
    )


def test_a_call_that_loops_is_stopped():
    def loop() -> None:
        while True:
            pass

    watch = Watch()
    watch.start()
    try:
        watch.deadline = time.monotonic() + 0.05
        with pytest.raises(CallStopped) as stopped:
            loop()
    finally:
        watch.stop()
    assert stopped.value.outcome == Crash(symptom="time-out")


def test_isolated_work_comes_back():
    assert isolated(lambda: b"x" * 300_000) == b"x" * 300_000


def test_isolated_work_may_die():
    def die() -> bytes:
        os.kill(os.getpid(), signal.SIGSEGV)
        return b""

    assert isolated(die) == Crash(symptom="died", exception="SIGSEGV")
    assert isolated(lambda: os._exit(3)) == Crash(symptom="died", exception="exit status 3")


def test_isolated_work_may_hang():
    def hang() -> bytes:
        while True:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})

    assert isolated(hang, seconds=0.1) == Crash(symptom="time-out")


def test_a_call_is_not_blamed_for_what_those_before_it_have_kept(monkeypatch: pytest.MonkeyPatch):
    watch = Watch(Limits(call_bytes=100))
    size = 0
    memory = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=size))
    monkeypatch.setattr(watch, "_process", memory)
    watch._base = 0
    for number in range(10):  # a tick falls into every call, and none between two
        watch.deadline = time.monotonic() + 60 + number
        size += 60
        watch._tick(0, None)
    size += 60
    watch._tick(0, None)
    size += 60
    with pytest.raises(CallStopped) as stopped:
        watch._tick(0, None)
    assert stopped.value.outcome == Crash(symptom="memory")
