"""Dialects, sources and questions about mixes that the tests of strategies share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise

from kvfuzz.pages import FULL_DIALECT, Dialect, PageRules, mix_page_sizes
from kvfuzz.specs import KINDS, QUANT_MODES, MLAAttentionSpec, Scenario, SlidingWindowMLASpec
from kvfuzz.strategies.builders import Shape, stream
from kvfuzz.strategies.choices import SeededChoices

_NEWER = {
    "num_head_slots",
    "state_content_bytes",
    "indexes_kv_by_block_stride",
    "extra_retained_tokens",
    "non_causal",
    "non_causal_multi_token_decode",
}

#: Like the releases around 0.22: page sizes by rule, few fields.
OLD_DIALECT = Dialect(
    rules=PageRules(
        value_head=False,
        ds_mla_records=True,
        v4_windows_are_records=True,
        per_token_head_scales=True,
        int4_packs_mla=True,
    ),
    fields={kind: frozenset(cls.__struct_fields__) - _NEWER for kind, cls in KINDS.items()},
    quant_modes=frozenset(QUANT_MODES) - {"int4_per_token_head", "turboquant"},
)

#: The least that a planner of MLA mixes can know.
BARE_DIALECT = Dialect(
    rules=PageRules(value_head=False),
    fields={
        kind: frozenset({"block_size", "num_kv_heads", "head_size", "dtype", "sliding_window"})
        for kind in KINDS
    },
    quant_modes=frozenset({"none"}),
)

DIALECTS = {"full": FULL_DIALECT, "old": OLD_DIALECT, "bare": BARE_DIALECT}


def mixes(
    count: int,
    *,
    seed: int = 0,
    shape: Shape = "any",
    dialect: Dialect = FULL_DIALECT,
    max_layers: int = 64,
) -> Iterator[Scenario]:
    """The first mixes that the fast source gives."""
    found = stream(SeededChoices(seed), shape=shape, dialect=dialect, max_layers=max_layers)
    for _, scenario in islice(found, count):
        yield scenario


def first(condition: Callable[[Scenario], bool], *, seed: int, within: int) -> int:
    """How many mixes it takes to the first that meets `condition`; fails past `within`."""
    for number, scenario in enumerate(mixes(within, seed=seed), 1):
        if condition(scenario):
            return number
    raise AssertionError(f"none of {within} mixes of seed {seed} meets the condition")


def page_sizes(scenario: Scenario, dialect: Dialect = FULL_DIALECT) -> set[int]:
    return set(mix_page_sizes(scenario, dialect.rules).values())


def mla(scenario: Scenario) -> list[MLAAttentionSpec]:
    return [spec for _, spec in scenario if isinstance(spec, MLAAttentionSpec)]


def windows(scenario: Scenario) -> list[SlidingWindowMLASpec]:
    return [spec for _, spec in scenario if isinstance(spec, SlidingWindowMLASpec)]


def both_kinds(scenario: Scenario) -> bool:
    return bool(mla(scenario) and windows(scenario))


def uniform(scenario: Scenario) -> bool:
    return both_kinds(scenario) and len(page_sizes(scenario)) == 1


def near_miss(scenario: Scenario) -> bool:
    """Both kinds, and two page sizes that differ by an eighth or less."""
    sizes = sorted(page_sizes(scenario))
    return both_kinds(scenario) and any(8 * large <= 9 * small for small, large in pairwise(sizes))


def mixed(scenario: Scenario) -> bool:
    return both_kinds(scenario) and len(page_sizes(scenario)) > 1


def single_kind(scenario: Scenario) -> bool:
    return not both_kinds(scenario)


def no_full_mla(scenario: Scenario) -> bool:
    return not mla(scenario)


def several_mla_blocks(scenario: Scenario) -> bool:
    return len({spec.block_size for spec in mla(scenario)}) > 1


def long(scenario: Scenario) -> bool:
    return len(scenario) >= 20


def mla_pages_differ(scenario: Scenario) -> bool:
    rules = FULL_DIALECT.rules
    full = Scenario(tuple((n, s) for n, s in scenario if isinstance(s, MLAAttentionSpec)))
    return bool(windows(scenario)) and len(set(mix_page_sizes(full, rules).values())) > 1
