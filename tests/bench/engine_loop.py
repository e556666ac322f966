"""The search of `groups` and `config` beside a bare loop that makes the same calls.

    python tests/bench/engine_loop.py [TARGET]     # vllm==0.28.0 unless named

For scenarios of 10 to 14 layers: `bare` calls the planner on specs, config and memory that are
there already, as often as the rules do; `kvfuzz` draws the scenario, translates,
calls, makes the answer neutral and judges it by every invariant. Both take turns, and CPU time is
taken; the figures are medians over the turns, to be read as ratios.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from kvfuzz.engine.session import Session, Tally
from kvfuzz.outcomes import NotExpressible
from kvfuzz.specs import Scenario
from kvfuzz.strategies.choices import SeededChoices
from kvfuzz.strategies.spaces import space_of
from kvfuzz.targets.base import Target
from kvfuzz.targets.load import load, prepare
from kvfuzz.targets.planned import _by_rank

TURNS = 15
DRAWN = 1000
LAYERS = range(10, 15)


def timed(loop: Callable[[], Any]) -> float:
    start = time.process_time()
    loop()
    return time.process_time() - start


class Bare:
    """A planner, called on what is built beforehand."""

    def __init__(self, target: Any, surface: str, scenario: Scenario) -> None:
        planner = target._planner
        natives = {name: target.translate(spec) for name, spec in scenario}
        self._config = planner.configs.make(scenario.config)
        self._length = scenario.config.max_model_len
        if surface == "groups":
            self._call = lambda: planner._get_groups(self._config, dict(natives))
            return
        ranks = _by_rank(natives, scenario)
        spare = scenario.config.spare_blocks
        memory = [1 << 60] * len(ranks)
        if spare is not None:
            memory = planner._memory([dict(specs) for specs in ranks], scenario.config)
        self._call = lambda: planner._plan([dict(specs) for specs in ranks], memory, self._config)

    def __call__(self) -> None:
        self._config.model_config.max_model_len = self._length  # auto-fit writes into it
        with contextlib.suppress(Exception):
            self._call()


def calls_of(target: Any, surface: str, scenario: Scenario, number: int) -> int:
    """How often the search calls the planner for the scenario, as one of many."""
    counted = []
    call = target.call
    target.call = lambda *asked: counted.append(asked) or call(*asked)
    try:
        Session(target, surface).judge(scenario, Tally(), number)
    finally:
        del target.call
    return len(counted)


def turn(target: Target, surface: str, seed: int) -> tuple[float, float, int]:
    """CPU seconds a scenario of the bare loop and of kvfuzz, and scenarios."""
    space = space_of(surface, target.dialect)
    stream = space.stream(SeededChoices(seed))
    session = Session(target, surface)
    asked = []
    drawn, drawing = 0, 0.0
    for _ in range(DRAWN):
        start = time.process_time()
        _, scenario = next(stream)
        took = time.process_time() - start
        if len(scenario) in LAYERS:
            drawn, drawing = drawn + 1, drawing + took
            # A planner that fails with memory in plenty has no bare call to compare with.
            outcome = Session(target, surface).ask(scenario)[0].outcome
            if not isinstance(outcome, NotExpressible):
                with contextlib.suppress(Exception):
                    asked.append((scenario, Bare(target, surface, scenario)))

    calls = [calls_of(target, surface, s, number) for number, (s, _) in enumerate(asked)]

    def bare() -> None:
        for (_, call), times in zip(asked, calls, strict=True):
            for _ in range(times):
                call()

    def judged() -> None:
        tally = Tally()
        for number, (scenario, _) in enumerate(asked):
            session.judge(scenario, tally, number)

    count = len(asked)
    return timed(bare) / count, timed(judged) / count + drawing / drawn, count


def main() -> None:
    uri = (sys.argv[1:] or ["vllm==0.28.0"])[0]
    target = load(prepare(uri))
    for surface in ("groups", "config"):
        turns = [turn(target, surface, seed) for seed in range(TURNS + 1)][1:]
        bare, kvfuzz, _ = (statistics.median(t) for t in zip(*turns, strict=True))
        ratio = statistics.median(bare / kvfuzz for bare, kvfuzz, _ in turns)
        print(
            f"{uri:16} {surface:7} bare {1e6 * bare:6.0f} us a scenario   "
            f"kvfuzz {1e6 * kvfuzz:6.0f} us ({1 / kvfuzz:,.0f}/s)   ratio {ratio:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
