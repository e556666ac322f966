"""The search of `groups` and `config` beside a bare loop that makes the same calls.

    python tests/bench/engine_loop.py [TARGET]     # vllm==0.28.0 unless named

For scenarios of 10 to 14 layers: `bare` calls the planner on specs, config and memory that are
there already, and once more where a rule calls again; `kvfuzz` draws the scenario, translates,
calls, makes the answer neutral and judges it by every invariant. Drawing is billed at what a
scenario of the whole stream takes, which has twice the layers. Both take turns, and CPU time is
taken; the figures are medians over the turns, to be read as ratios.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from kvfuzz.engine.session import CALLS_AGAIN_SHARE, Session, Tally
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


def turn(target: Target, surface: str, seed: int) -> tuple[float, float, int]:
    """CPU seconds a scenario of the bare loop and of kvfuzz, and scenarios."""
    space = space_of(surface, target.dialect)
    drawn: list[Scenario] = []
    drawing = timed(
        lambda: drawn.extend(
            scenario for _, scenario in islice(space.stream(SeededChoices(seed)), DRAWN)
        )
    )
    session = Session(target, surface)
    asked = []
    for scenario in drawn:
        if len(scenario) in LAYERS:
            # A planner that fails with memory in plenty has no bare call to compare with.
            outcome = Session(target, surface).ask(scenario)[0].outcome
            if not isinstance(outcome, NotExpressible):
                with contextlib.suppress(Exception):
                    asked.append((scenario, Bare(target, surface, scenario)))

    def bare() -> None:
        for number, (_, call) in enumerate(asked):
            call()
            if number % CALLS_AGAIN_SHARE in (0, 4):
                call()

    def judged() -> None:
        tally = Tally()
        for number, (scenario, _) in enumerate(asked):
            session.judge(scenario, tally, number)

    count = len(asked)
    return timed(bare) / count, timed(judged) / count + drawing / DRAWN, count


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
