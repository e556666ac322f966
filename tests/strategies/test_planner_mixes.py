"""Scenarios for a whole planner: what they reach, how often, and what they shrink to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import islice, pairwise
from typing import Any

import pytest

from kvfuzz.catalogue import Catalogue, FieldForm, KindForm
from kvfuzz.engine.shrink import shrink
from kvfuzz.invariants import Violation
from kvfuzz.invariants.grouping import PartitionViolation
from kvfuzz.planner_config import PLAIN_CONFIG, PlannerConfig
from kvfuzz.specs import OpenSpec, Scenario, open_spec
from kvfuzz.strategies import planner_mixes
from kvfuzz.strategies.choices import SeededChoices, replayed
from kvfuzz.strategies.planner_mixes import build_planner_mix
from kvfuzz.strategies.spaces import EngineMixes, space_of
from tests.sabotage import engine_planner

TARGET = engine_planner.target_of()
DIALECT = TARGET.dialect
COUNT = 4_000

_FULL = DIALECT.catalogue["full_attention"].fields
#: As releases have them: kinds that no layer is given, others that few have, and one of tomorrow.
WIDE: Catalogue = {
    **DIALECT.catalogue,
    "chunked_local_attention": KindForm(
        "C", {**_FULL, "attention_chunk_size": FieldForm(type="int", required=True)}
    ),
    "encoder_only_attention": KindForm("E", _FULL),
    "hi_sparse_hot": KindForm("H", _FULL),
    "hi_sparse_resident": KindForm("H", _FULL),
    "compressed": KindForm("P", {**_FULL, "compress_ratio": FieldForm(type="int", default=1)}),
    "tomorrows": KindForm("T", {**_FULL, "way": FieldForm(type="name", names=("a", "b"))}),
}
GIVEN = {*WIDE} - {"encoder_only_attention", "hi_sparse_hot", "hi_sparse_resident"}


@cache
def _scenarios(count: int = COUNT, *, memory: bool = True, wide: bool = False) -> list[Scenario]:
    choices = SeededChoices(1)
    catalogue = WIDE if wide else DIALECT.catalogue
    return [
        build_planner_mix(
            choices.choose, catalogue=catalogue, layouts=DIALECT.layouts, memory=memory
        )
        for _ in range(count)
    ]


def _specs(scenario: Scenario) -> set[OpenSpec]:
    specs = {spec for _, spec in scenario}
    assert all(isinstance(spec, OpenSpec) for spec in specs)
    return specs  # type: ignore[return-value]


def _share(condition: Callable[[Scenario], Any], scenarios: list[Scenario] | None = None) -> float:
    scenarios = scenarios or _scenarios()
    return sum(bool(condition(scenario)) for scenario in scenarios) / len(scenarios)


def test_every_kind_that_a_layer_can_have_comes():
    kinds = Counter(spec.kind for s in _scenarios(wide=True) for spec in _specs(s))
    assert set(kinds) == GIVEN
    # Common kinds more often than others, and none of those rarely.
    assert kinds["full_attention"] > 2 * kinds["tomorrows"] > 200


def test_every_field_is_set_but_marks():
    set_ = {
        (spec.kind, name)
        for s in _scenarios(wide=True)
        for spec in _specs(s)
        for name, _ in spec.fields
    }
    forms = {(kind, name) for kind in GIVEN for name in WIDE[kind].fields}
    marks = {(kind, "is_draft") for kind in GIVEN}
    assert set_ == forms - marks


def test_every_number_of_layers_and_specs_comes():
    layers = Counter(map(len, _scenarios()))
    assert set(layers) == set(range(1, 65))
    specs = Counter(len(_specs(scenario)) for scenario in _scenarios())
    assert {1, 2, 3, 4, 5} <= set(specs)
    assert min(specs[number] for number in (1, 2, 3, 4)) > COUNT / 10


def test_layers_are_named_by_their_places():
    for scenario in _scenarios(200):
        assert [name for name, _ in scenario] == [f"layers.{i}" for i in range(len(scenario))]


def test_no_more_layers_than_are_wanted():
    choices = SeededChoices(2)
    lengths = {
        len(build_planner_mix(choices.choose, catalogue=DIALECT.catalogue, max_layers=3))
        for _ in range(300)
    }
    assert lengths == {1, 2, 3}


def _pages(scenario: Scenario) -> list[int]:
    """The distinct pages of attention and states, smallest first; of what the target takes."""
    pages = set()
    for spec in _specs(scenario):
        try:
            pages.add(TARGET.page_size(spec, TARGET.translate(spec)))
        except ValueError:  # padded to less than it holds
            continue
    return sorted(pages)


def test_pages_are_equal_multiples_and_neither():
    several = [scenario for scenario in _scenarios() if len(_specs(scenario)) > 1]

    def equal(scenario: Scenario) -> bool:
        return len(_pages(scenario)) == 1

    def multiples(scenario: Scenario) -> bool:
        pages = _pages(scenario)
        return len(pages) > 1 and all(large % small == 0 for small, large in pairwise(pages))

    def others(scenario: Scenario) -> bool:
        return not equal(scenario) and not multiples(scenario)

    def near(scenario: Scenario) -> bool:
        return any(4 * large < 5 * small for small, large in pairwise(_pages(scenario)))

    assert _share(equal, several) > 0.1
    assert _share(multiples, several) > 0.15
    assert _share(others, several) > 0.2
    assert _share(near, several) > 0.02


@pytest.mark.parametrize("field", PlannerConfig.__struct_fields__)
def test_every_setting_is_off_its_default(field: str):
    default = getattr(PLAIN_CONFIG, field)
    values = Counter(getattr(scenario.config, field) for scenario in _scenarios())
    assert values[default] > 0
    assert sum(values.values()) - values[default] > COUNT / 100


def test_values_of_settings():
    configs = [scenario.config for scenario in _scenarios()]
    assert {config.layout for config in configs} == {None, "LBHNC", "BLHNC"}
    assert {config.mamba_cache_mode for config in configs} == {"none", "align", "all"}
    assert {config.concurrent_batches for config in configs} == {1, 2}
    assert {config.decode_context_parallel_size for config in configs} == {1, 2, 4}
    assert {config.speculative_method for config in configs} == {None, "eagle", "mtp"}
    assert {config.num_speculative_tokens for config in configs} == {1, 2, 3}
    assert {0, 1, 4} < {config.num_gpu_blocks_override for config in configs}
    assert {-1, 0, 1, None} < {config.spare_blocks for config in configs}
    assert {config.spare_bytes for config in configs} == {-1, 0, 1}
    # A plain engine is common, since it is what is easiest to read.
    assert 0.05 < _share(lambda it: it.config == PLAIN_CONFIG) < 0.12
    without = _scenarios(memory=False)
    assert 0.15 < _share(lambda it: it.config == PLAIN_CONFIG, without) < 0.3


def test_an_engine_shares_no_context_over_windows_and_chunks():
    for scenario in _scenarios(wide=True):
        bounded = any(s.sliding_window or s.attention_chunk_size for s in _specs(scenario))
        assert not bounded or scenario.config.decode_context_parallel_size == 1


def test_layouts_are_those_of_the_target():
    choices = SeededChoices(3)
    for _ in range(300):
        scenario = build_planner_mix(choices.choose, catalogue=DIALECT.catalogue, memory=True)
        assert scenario.config.layout is None


def test_memory_and_ranks_come_where_they_matter_only():
    for scenario in _scenarios(memory=False):
        config = scenario.config
        assert scenario.ranks == ()
        assert (config.spare_blocks, config.spare_bytes) == (None, 0)
        assert (config.num_gpu_blocks_override, config.auto_fit) == (None, False)


def test_ranks_are_runs_of_layers():
    counts: Counter[int] = Counter()
    for scenario in _scenarios():
        ranks = scenario.ranks
        assert not ranks or len(ranks) == len(scenario)
        assert list(ranks) == sorted(ranks)
        counts[max(ranks, default=0) + 1] += 1
    assert set(counts) == {1, 2, 3, 4}
    assert min(counts.values()) > COUNT / 25
    assert 0.4 < counts[1] / COUNT < 0.6
    # A rank without a layer comes, and is rare.
    skipped = _share(lambda it: it.ranks and set(range(max(it.ranks) + 1)) != {*it.ranks})
    assert 0.01 < skipped < 0.2


def test_drafts_are_the_last_layers_of_an_engine_that_speculates():
    drafts = Counter(scenario.drafts for scenario in _scenarios())
    assert {0, 1, 2, 3} <= set(drafts)
    assert 0.1 < 1 - drafts[0] / COUNT < 0.35
    for scenario in _scenarios():
        assert scenario.drafts < len(scenario)
        assert (scenario.config.speculative_method is not None) == (scenario.drafts > 0)
    alike = _share(lambda it: it.drafts > 1 and len({s for _, s in it.mix[-it.drafts :]}) == 1)
    assert alike > 0.04


def test_one_in_five_is_a_model(monkeypatch: pytest.MonkeyPatch):
    built = []

    def counted(*args: Any, **options: Any) -> Any:
        built.append(model := planner_mixes_build(*args, **options))
        return model

    planner_mixes_build = planner_mixes.build_model
    monkeypatch.setattr(planner_mixes, "build_model", counted)
    choices = SeededChoices(4)
    models = 0
    for number in range(1_000):
        scenario = build_planner_mix(choices.choose, catalogue=DIALECT.catalogue)
        if len(built) > models:
            models += 1
            assert [spec for _, spec in scenario] == list(built[-1].specs), number
            assert scenario.drafts == built[-1].drafts
    assert 150 < models < 250


def test_a_block_holds_whole_states():
    specs = [
        spec
        for scenario in _scenarios(wide=True)
        for spec in _specs(scenario)
        if spec.kind == "compressed" and spec.compress_ratio
    ]
    assert {spec.compress_ratio for spec in specs} == {4, 128}
    assert all(spec.block_size % spec.compress_ratio == 0 for spec in specs)


@pytest.mark.parametrize("surface", ["groups", "config"])
def test_what_the_stream_records_builds_the_same_scenario(surface: str):
    space = space_of(surface, DIALECT)
    assert isinstance(space, EngineMixes)
    assert space.never_set == ()
    recorded = space.stream(SeededChoices(6), record=True)
    plain = space.stream(SeededChoices(6))
    for (choices, scenario), (none, same) in islice(zip(recorded, plain, strict=True), 200):
        assert space.build(replayed(choices)) == scenario == same
        assert none == []


# What it shrinks to.

SIMPLEST = open_spec(
    "full_attention", {"block_size": 16, "num_kv_heads": 1, "head_size": 64, "dtype": "bfloat16"}
)


def test_the_simplest_is_one_full_layer_and_a_plain_engine():
    for surface in ("groups", "config"):
        simplest = space_of(surface, DIALECT).build(lambda low, _: low)
        assert simplest == Scenario((("layers.0", SIMPLEST),))


def _shrunk(condition: Callable[[Scenario], Any], seed: int = 1) -> Scenario:
    """What the first scenario that meets the condition shrinks to."""
    space = space_of("config", DIALECT)

    def broken(scenario: Scenario) -> Violation | None:
        if condition(scenario):
            return PartitionViolation(symptom="lost", got="", expected="")
        return None

    stream = space.stream(SeededChoices(seed), record=True)
    choices = next(choices for choices, scenario in stream if broken(scenario) is not None)
    found = shrink(choices, space.strategy(), broken, seconds=60)
    assert found is not None
    return found[0]


def test_any_shrinks_to_the_simplest():
    assert _shrunk(lambda it: True) == Scenario((("layers.0", SIMPLEST),))


def test_two_specs_shrink_to_two_layers():
    shrunk = _shrunk(lambda it: len(_specs(it)) > 1 and len(it) > 9)
    assert len(_specs(shrunk)) == 2
    assert 10 <= len(shrunk) <= 12
    assert (shrunk.config, shrunk.drafts, shrunk.ranks) == (PLAIN_CONFIG, 0, ())


def test_a_window_shrinks_to_one_plain_window():
    shrunk = _shrunk(lambda it: any(spec.sliding_window for spec in _specs(it)))
    window = open_spec("sliding_window", {**dict(SIMPLEST.fields), "sliding_window": 128})
    assert shrunk == Scenario((("layers.0", window),))


def test_a_setting_shrinks_to_itself():
    shrunk = _shrunk(lambda it: it.config.num_gpu_blocks_override == 4)
    assert shrunk.mix == (("layers.0", SIMPLEST),)
    assert shrunk.config == PlannerConfig(num_gpu_blocks_override=4)
    assert shrunk.ranks == ()


# A model's layers stay a model's, and are two without a draft: the last pass takes away by hand.


@pytest.mark.parametrize("seed", range(3))
def test_ranks_shrink_to_two(seed: int):
    shrunk = _shrunk(lambda it: len({*it.ranks}) > 1, seed)
    (spec,) = _specs(shrunk)
    assert spec.kind == "full_attention"
    assert (shrunk.ranks, shrunk.config, shrunk.drafts) == ((0, 1), PLAIN_CONFIG, 0)


@pytest.mark.parametrize("seed", range(3))
def test_drafts_shrink_to_one(seed: int):
    shrunk = _shrunk(lambda it: it.drafts, seed)
    (spec,) = _specs(shrunk)
    assert spec.kind == "full_attention"
    assert len(shrunk) <= 3
    assert (shrunk.drafts, shrunk.ranks) == (1, ())
    assert shrunk.config == PlannerConfig(speculative_method="eagle")
