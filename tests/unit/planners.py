"""Planners that misbehave now and then, so that a run is seen to go on afterwards.

Most are those of `tests.sabotage.planners`, on few mixes.
"""

from __future__ import annotations

import os
import random
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from kvfuzz.reference import group_and_unify_kv_cache_specs as reference
from kvfuzz.targets.base import NeutralPlanner
from tests.sabotage import planners
from tests.sabotage.planners import Groups, Mix


def bad(specs: Mix) -> bool:
    """Whether this is one of the few mixes: about one in two hundred.

    A full layer and two windows, of one block size, and nothing else.
    """
    windows = {spec.sliding_window for spec in specs.values()}
    blocks = {spec.block_size for spec in specs.values()}
    return len(specs) == len(windows) == 3 and len(blocks) == 1


def _now_and_then(misbehave: Callable[[Mix], Any]) -> NeutralPlanner:
    def planner(specs: Mix) -> Any:
        return misbehave(specs) if bad(specs) else reference(specs)

    return planner


def loops_forever() -> NeutralPlanner:
    return _now_and_then(planners.loops_forever())


def sleeps_through_alarms() -> NeutralPlanner:
    return _now_and_then(planners.sleeps_through_alarms())


def dies_by_signal() -> NeutralPlanner:
    return _now_and_then(planners.dies_by_signal())


def exits() -> NeutralPlanner:
    return _now_and_then(planners.exits())


def exits_as_if_all_were_well() -> NeutralPlanner:
    return _now_and_then(lambda specs: os._exit(0))


def eats_memory() -> NeutralPlanner:
    return _now_and_then(planners.eats_memory())


def raises_system_exit() -> NeutralPlanner:
    def leave(specs: Mix) -> Groups:
        raise SystemExit(2)

    return _now_and_then(leave)


def raises_keyboard_interrupt() -> NeutralPlanner:
    def interrupt(specs: Mix) -> Groups:
        raise KeyboardInterrupt

    return _now_and_then(interrupt)


def raises_what_cannot_be_told() -> NeutralPlanner:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def fail(specs: Mix) -> Groups:
        raise Unspeakable

    return _now_and_then(fail)


def returns_a_string() -> NeutralPlanner:
    return _now_and_then(lambda specs: "layers")


def returns_groups_of_ints() -> NeutralPlanner:
    return _now_and_then(lambda specs: [[1, 2], [3]])


def returns_a_generator_that_raises() -> NeutralPlanner:
    def groups(specs: Mix) -> Iterator[list[str]]:
        yield list(specs)
        raise KeyError("gone")

    return _now_and_then(groups)


def returns_a_generator_without_end() -> NeutralPlanner:
    def groups(specs: Mix) -> Iterator[list[str]]:
        while True:
            yield from ()

    return _now_and_then(groups)


def answers_at_random() -> NeutralPlanner:
    """Turns the order of the groups around, or does not."""
    toss = random.Random(0)

    def answer(specs: Mix) -> Groups:
        groups = reference(specs)
        return groups if groups is None or toss.random() < 0.5 else groups[::-1]

    return answer


def hangs_in_a_fork() -> NeutralPlanner:
    """Leaves a process behind that never ends, wherever it is called."""

    def answer(specs: Mix) -> Groups:
        if os.fork() == 0:
            while True:
                signal.pause()
        os._exit(3)

    return _now_and_then(answer)


def is_slow_once() -> NeutralPlanner:
    """Hangs on the first of the few mixes of each process that it is loaded into."""
    calls = 0

    def answer(specs: Mix) -> Groups:
        nonlocal calls
        calls += 1
        while calls == 1:
            pass
        return reference(specs)

    return _now_and_then(answer)


def waits() -> NeutralPlanner:
    """Never comes back from its first call, and heeds no alarm."""

    def answer(specs: Mix) -> Groups:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        while True:
            pass

    return answer


def wrong_and_then_deadly() -> NeutralPlanner:
    """Plans wrongly on the few mixes, and ends the process when asked more than once or so.

    That is while it is shrunk: a search asks four times at most about one mix.
    """
    asked = 0

    def answer(specs: Mix) -> Groups:
        nonlocal asked
        asked += 1
        if asked > 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        # Breaks `partition` and, by the mix, `uniform-is-none` or `single-page-size`.
        return [list(specs), list(specs)[:1]]

    return _now_and_then(answer)


_SYLLABLES = ("ba", "ce", "di", "fo", "gu", "hy", "ka", "le", "mi", "no")


def crashes_anew_each_time() -> NeutralPlanner:
    """Fails in other words on each mix: a mix has its words, and most mixes have their own."""

    def planner(specs: Mix) -> Groups:
        number = zlib.crc32(repr(list(specs.items())).encode())
        raise RuntimeError("".join(_SYLLABLES[int(digit)] for digit in str(number)))

    return planner


def is_wrong_at_first() -> NeutralPlanner:
    """Leaves a layer out the first time that a process is asked about one of the few mixes."""
    asked: set[str] = set()

    def answer(specs: Mix) -> Groups:
        if (key := repr(list(specs.items()))) in asked:
            return reference(specs)
        asked.add(key)
        return [list(specs)[1:]]

    return _now_and_then(answer)


def leaks() -> NeutralPlanner:
    """Right, and keeps 8 MiB of each call."""
    kept = []

    def planner(specs: Mix) -> Groups:
        kept.append(b"x" * (8 << 20))
        time.sleep(0.02)  # no more at a time than the run can watch
        return reference(specs)

    return planner
