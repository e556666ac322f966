"""The search loop beside a bare loop that makes the same calls and judges nothing.

    python tests/bench/hot_loop.py [TARGET...]

For mixes of 12 and of 61 layers: `bare` calls the planner on prebuilt mixes;
`kvfuzz` builds the same mixes from choices, translates, calls and judges them
with every invariant, as `kvfuzz run` does (rules that call again on one mix
in eight). The loops take turns, so that a noisy machine disturbs both; the
figures are medians over the turns, to be read as ratios.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

from kvfuzz.engine.session import Session, Tally
from kvfuzz.specs import Scenario
from kvfuzz.strategies.builders import build_mix
from kvfuzz.strategies.choices import SeededChoices, replayed
from kvfuzz.targets.base import Target
from kvfuzz.targets.load import load, prepare

MIXES = 400
TURNS = 9
LAYERS = (12, 61)


def recorded_mixes(target: Target, layers: int) -> tuple[list[list[int]], list[Scenario]]:
    """Choices of mixes of so many layers, and the mixes."""
    recorded, mixes = [], []
    number = 0
    while len(mixes) < MIXES:
        number += 1
        choices = SeededChoices(0, number)
        choices.record()
        mix = build_mix(choices.choose, dialect=target.dialect)
        if len(mix) == layers:
            recorded.append(choices.recorded)
            mixes.append(mix)
    return recorded, mixes


def timed(loop: Callable[[], None]) -> float:
    start = time.perf_counter()
    loop()
    return time.perf_counter() - start


def measure(uri: str, target: Target, layers: int) -> None:
    recorded, mixes = recorded_mixes(target, layers)
    native = {spec: target.translate(spec) for mix in mixes for _, spec in mix}
    built = [{name: native[spec] for name, spec in mix} for mix in mixes]

    def bare() -> None:
        for mix in built:
            # Upstream asserts on mixes that it does not expect.
            with contextlib.suppress(AssertionError):
                target.call("pack", mix)

    session = Session(target, "pack")
    tally = Tally()
    build = partial(build_mix, dialect=target.dialect)

    def kvfuzz() -> None:
        for number, choices in enumerate(recorded):
            session.judge(build(replayed(choices)), tally, number)

    bare(), kvfuzz()
    turns = [(timed(bare), timed(kvfuzz)) for _ in range(TURNS)]
    bare_us, kvfuzz_us = (1e6 * statistics.median(t) / MIXES for t in zip(*turns, strict=True))
    ratio = statistics.median(b / k for b, k in turns)
    print(
        f"{uri:16} {layers:3} layers   bare {bare_us:6.1f} us a mix   "
        f"kvfuzz {kvfuzz_us:6.1f} us ({1e6 / kvfuzz_us:,.0f} mixes/s)   ratio {ratio:.2f}"
    )


def main() -> None:
    for uri in sys.argv[1:] or ["vllm==0.28.0", "reference"]:
        target = load(prepare(uri))
        for layers in LAYERS:
            measure(uri, target, layers)


if __name__ == "__main__":
    main()
