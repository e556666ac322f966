"""What mixes of shape "any" reach, how soon, and how often, from both sources.

Conditions stand for planners that are wrong only where they hold. Each limit
is several times what was measured, and seeds are fixed: a failure means that
the distribution has changed, not bad luck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from kvfuzz.pages import FULL_DIALECT, page_size_bytes
from kvfuzz.specs import DTYPE_BYTES, Scenario
from kvfuzz.strategies import spec_mixes
from tests.strategies.common import (
    OLD_DIALECT,
    both_kinds,
    first,
    long,
    mixed,
    mixes,
    mla,
    mla_pages_differ,
    near_miss,
    no_full_mla,
    page_sizes,
    several_mla_blocks,
    single_kind,
    uniform,
    windows,
)

Condition = Callable[[Scenario], bool]


def _keys(scenario: Scenario) -> set[tuple[int, int]]:
    return {(spec.block_size, spec.sliding_window) for spec in windows(scenario)}


def _three_keys_and_a_dtype(scenario: Scenario) -> bool:
    return len(_keys(scenario)) >= 3 and any(s.dtype == "uint8" for s in mla(scenario))


def _three_conditions(scenario: Scenario) -> bool:
    return (
        _three_keys_and_a_dtype(scenario)
        and mla_pages_differ(scenario)
        and any(spec.num_kv_heads > 1 for spec in windows(scenario))
    )


def _long_and_mla_pages_differ(scenario: Scenario) -> bool:
    return long(scenario) and mla_pages_differ(scenario)


def _uint8_at_ratio_3(scenario: Scenario) -> bool:
    sizes = page_sizes(scenario)
    return any(
        spec.dtype == "uint8" and 3 * page_size_bytes(spec, FULL_DIALECT.rules) in sizes
        for spec in mla(scenario)
    )


def _float8_window_first(scenario: Scenario) -> bool:
    _, head = scenario.mix[0]
    return head.dtype == "float8_e5m2" and head in windows(scenario) and mixed(scenario)


def _out_of_order(scenario: Scenario) -> bool:
    # A larger page before a smaller one, and one kind between layers of the other.
    kinds = [spec.kind for _, spec in scenario]
    pages = [page_size_bytes(spec, FULL_DIALECT.rules) for _, spec in scenario]
    changes = sum(a != b for a, b in pairwise(kinds))
    return changes >= 2 and pages[0] > pages[-1] and kinds[0] == kinds[-1] == "sliding_window_mla"


def _one_key_many_pages(scenario: Scenario) -> bool:
    # A (block, window) pair that layers of several page sizes share.
    pages: dict[tuple[int, int], set[int]] = {}
    for spec in windows(scenario):
        size = page_size_bytes(spec, FULL_DIALECT.rules)
        pages.setdefault((spec.block_size, spec.sliding_window), set()).add(size)
    return bool(mla(scenario)) and any(len(sizes) > 1 for sizes in pages.values())


def _many_keys_one_page(scenario: Scenario) -> bool:
    return uniform(scenario) and len(_keys(scenario)) >= 3


def _only_windows_pages_differ(scenario: Scenario) -> bool:
    return no_full_mla(scenario) and len(page_sizes(scenario)) > 1


def _one_layer_differs(scenario: Scenario) -> bool:
    sizes = Counter(page_size_bytes(spec, FULL_DIALECT.rules) for _, spec in scenario)
    return both_kinds(scenario) and len(scenario) >= 12 and sorted(sizes.values())[:-1] == [1]


def _one_byte_differs(scenario: Scenario) -> bool:
    sizes = sorted(page_sizes(scenario))
    return both_kinds(scenario) and len(sizes) == 2 and sizes[1] - sizes[0] == 1


def _mla_with_a_window(scenario: Scenario) -> bool:
    return mixed(scenario) and any(spec.sliding_window for spec in mla(scenario))


def _uniform_by_padding(scenario: Scenario) -> bool:
    return uniform(scenario) and any(spec.page_size_padded for _, spec in scenario)


def _compressed_and_quantised(scenario: Scenario) -> bool:
    return mixed(scenario) and any(
        spec.compress_ratio > 1 and spec.kv_quant_mode == "int8_per_token_head"
        for _, spec in scenario
    )


@pytest.mark.parametrize(
    ("condition", "typical"),
    [
        (uniform, 3),
        (near_miss, 8),
        (several_mla_blocks, 8),
        (long, 12),
        (_three_keys_and_a_dtype, 40),
        (_long_and_mla_pages_differ, 60),
        (_uint8_at_ratio_3, 150),
        (_three_conditions, 150),
        (_float8_window_first, 300),
        (_out_of_order, 150),
        (_one_key_many_pages, 60),
        (_many_keys_one_page, 60),
        (_only_windows_pages_differ, 400),
        (_one_layer_differs, 200),
        (_one_byte_differs, 350),
        (_mla_with_a_window, 800),
        (_uniform_by_padding, 30),
        # Of spec classes alone: a stream lays each drawing of them out several times.
        (_compressed_and_quantised, 10_000),
    ],
)
def test_mixes_that_a_planner_may_get_wrong_come_soon(condition: Condition, typical: int) -> None:
    taken = [first(condition, seed=seed, within=20 * typical) for seed in range(21)]
    assert median(taken) <= typical


def test_every_dtype_layer_count_and_block_size_comes() -> None:
    dtypes: set[str] = set()
    counts: set[int] = set()
    blocks: set[int] = set()
    for scenario in mixes(6000):
        counts.add(len(scenario))
        dtypes |= {spec.dtype for _, spec in scenario}
        blocks |= {spec.block_size for _, spec in scenario}
    assert dtypes == set(DTYPE_BYTES)
    assert counts == set(range(1, 65))
    assert blocks >= {1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 48, 64, 128, 256}


#: Question -> the share that mixes need to have at least.
_SHARES: dict[Condition, float] = {
    uniform: 0.25,
    near_miss: 0.19,
    mixed: 0.40,
    single_kind: 0.05,
    no_full_mla: 0.03,
    several_mla_blocks: 0.10,
    long: 0.10,
}


def _shares(scenarios: list[Scenario]) -> dict[Condition, float]:
    return {condition: sum(map(condition, scenarios)) / len(scenarios) for condition in _SHARES}


def _drawn(count: int) -> list[Scenario]:
    found: list[Scenario] = []

    @seed(1)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(spec_mixes())
    def draw(scenario: Scenario) -> None:
        found.append(scenario)

    draw()
    return found


def test_shares_from_the_fast_source() -> None:
    for condition, share in _shares(list(mixes(8_000))).items():
        assert share >= _SHARES[condition], condition.__name__


def test_shares_in_an_old_dialect() -> None:
    scenarios = list(mixes(3000, dialect=OLD_DIALECT))
    shares = [both_kinds(s) and len(page_sizes(s, OLD_DIALECT)) == 1 for s in scenarios]
    assert sum(shares) / len(scenarios) >= 0.24


def test_both_sources_reach_the_same_with_like_frequencies() -> None:
    fast = _shares(list(mixes(3000, seed=2)))
    drawn = _shares(_drawn(1500))
    for condition, share in fast.items():
        # Hypothesis repeats and mutates what it drew, so its shares wander.
        assert share / 2 <= drawn[condition] <= share * 2, condition.__name__
    assert drawn[uniform] >= 0.25
