"""Print what building a mix costs, and the shares of what "any" draws.

    python tests/bench/builder_rate.py [SECONDS]

Rates depend on the machine and its load: compare two of one run, not of two.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from itertools import pairwise
from statistics import median

from hypothesis import HealthCheck, Phase, given, settings

from kvfuzz.pages import FULL_DIALECT, mix_page_sizes
from kvfuzz.specs import MLAAttentionSpec, Scenario
from kvfuzz.strategies import spec_mixes
from kvfuzz.strategies.builders import build_mix
from kvfuzz.strategies.choices import SeededChoices

MIXES = 20_000


def traits(scenario: Scenario) -> set[str]:
    """Names of the shares that a mix counts towards."""
    pages = sorted(set(mix_page_sizes(scenario, FULL_DIALECT.rules).values()))
    mla = [s for _, s in scenario if isinstance(s, MLAAttentionSpec)]
    kinds = {s.kind for _, s in scenario}
    found = {"layers >= 20"} if len(scenario) >= 20 else set()
    if len(kinds) == 2:
        if len(pages) == 1:
            found.add("uniform, both kinds")
        elif any(b <= a * 9 / 8 for a, b in pairwise(pages)):
            found.add("near-miss, both kinds")
        else:
            found.add("mixed, both kinds")
    else:
        found.add("single kind")
    if not mla:
        found.add("no full MLA layer")
    if len({s.block_size for s in mla}) > 1:
        found.add("several MLA block sizes")
    if len({s.block_size for s in mla}) == 1 and len(kinds) == 2 and len(pages) > 1:
        found.add("one MLA block size, both kinds, pages differ")
    if len(scenario) == 1:
        found.add("one layer")
    return found


def rate(low: int, high: int, seconds: float) -> None:
    """Microseconds a mix of the fast source, over chunks that are timed by size."""
    choices = SeededChoices(1)
    spent, mixes, layers = 0.0, 0, 0
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        scenario = build_mix(choices.choose)
        took = time.perf_counter() - now
        if low <= len(scenario) <= high:
            spent, mixes, layers = spent + took, mixes + 1, layers + len(scenario)
    mean = layers / mixes
    print(f"{low:>3}-{high} layers (mean {mean:.0f}): {spent / mixes * 1e6:6.1f} us a mix")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    choices = SeededChoices(0)
    for _ in range(MIXES):  # fill the tables
        build_mix(choices.choose)
    for low, high in ((11, 13), (58, 64), (1, 64)):
        rate(low, high, seconds)

    choices = SeededChoices(0)
    fast = Counter(t for _ in range(MIXES) for t in traits(build_mix(choices.choose)))
    slow: Counter[str] = Counter()
    drawn = 0

    @settings(
        max_examples=3000,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(spec_mixes())
    def draw(scenario: Scenario) -> None:
        nonlocal drawn
        drawn += 1
        slow.update(traits(scenario))

    started = time.perf_counter()
    draw()
    print(f"Hypothesis: {drawn / (time.perf_counter() - started):.0f} mixes/s")
    print(f"{'share of mixes':46}{'fast':>8}{'Hypothesis':>12}")
    for name, count in fast.most_common():
        print(f"{name:46}{count / MIXES:8.1%}{slow[name] / drawn:12.1%}")

    counts = []
    for seed in range(101):
        choices = SeededChoices(seed)
        n = 1
        while "uniform, both kinds" not in traits(build_mix(choices.choose)):
            n += 1
        counts.append(n)
    print("median mixes to a uniform one with both kinds:", median(counts))


if __name__ == "__main__":
    main()
