"""Scenarios for an engine: taken apart, written, read back, refused, and made simpler."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kvfuzz.cases import Case, decode_case
from kvfuzz.engine.simplify import complexity, is_plain, simplified
from kvfuzz.errors import UsageError
from kvfuzz.invariants import Violation
from kvfuzz.invariants.grouping import PartitionViolation
from kvfuzz.planner_config import PlannerConfig
from kvfuzz.specs import OpenSpec, Scenario, open_spec, scenario_to_json
from tests.sabotage import engine_planner

_HEADS: dict[str, Any] = {"num_kv_heads": 1, "head_size": 64, "dtype": "float32"}
FULL = open_spec("full_attention", {"block_size": 16, **_HEADS})
WINDOW = open_spec("sliding_window", {"block_size": 16, "sliding_window": 128, **_HEADS})
ODD = open_spec("full_attention", {"block_size": 16, "causal": False, **_HEADS})
CONFIG = PlannerConfig(
    hybrid_manager=False,
    layout="BLHNC",
    max_model_len=17,
    auto_fit=True,
    speculative_method="mtp",
    num_speculative_tokens=3,
    spare_blocks=-1,
)
SCENARIO = Scenario(
    (("a", FULL), ("b", WINDOW), ("c", FULL), ("d", ODD), ("e", ODD)), CONFIG, 2, (0, 0, 1, 1, 2)
)
JSON = {
    "mix": [
        {"name": name, "kind": spec.kind, **dict(spec.fields)}
        for name, spec in SCENARIO.mix
        if isinstance(spec, OpenSpec)
    ],
    "config": {
        "hybrid_manager": False,
        "layout": "BLHNC",
        "max_model_len": 17,
        "auto_fit": True,
        "speculative_method": "mtp",
        "num_speculative_tokens": 3,
        "spare_blocks": -1,
    },
    "drafts": 2,
    "ranks": [0, 0, 1, 1, 2],
}


# Taking, renaming, respeccing.


def test_draft_names():
    assert SCENARIO.draft_names() == ("d", "e")
    assert msgspec.structs.replace(SCENARIO, drafts=0).draft_names() == ()


@pytest.mark.parametrize(
    ("places", "names", "drafts", "ranks"),
    [
        ([0, 1, 2, 3, 4], "abcde", 2, (0, 0, 1, 1, 2)),
        ([4, 3, 2, 1, 0], "cbaed", 2, (1, 0, 0, 2, 1)),
        ([3, 0], "ad", 1, (0, 1)),
        ([2, 1], "cb", 0, (1, 0)),
        ([4], "e", 1, (2,)),
    ],
)
def test_taking(places: list[int], names: str, drafts: int, ranks: tuple[int, ...]):
    taken = SCENARIO.taking(places)
    assert [name for name, _ in taken] == [*names]
    assert (taken.drafts, taken.ranks, taken.config) == (drafts, ranks, CONFIG)
    assert all(SCENARIO.specs()[name] == spec for name, spec in taken)
    assert set(taken.draft_names()) <= set(SCENARIO.draft_names())


def test_taking_of_one_rank():
    taken = msgspec.structs.replace(SCENARIO, ranks=()).taking([4, 1])
    assert (taken.ranks, taken.drafts, len(taken)) == ((), 1, 2)


def test_renamed_and_respecced_keep_the_engine():
    renamed = SCENARIO.taking([1, 4]).renamed()
    assert renamed == Scenario((("layers.0", WINDOW), ("layers.1", ODD)), CONFIG, 1, (0, 2))
    other = renamed.respecced([FULL, FULL])
    assert other == Scenario((("layers.0", FULL), ("layers.1", FULL)), CONFIG, 1, (0, 2))
    with pytest.raises(ValueError, match="zip"):
        renamed.respecced([FULL])


# Files.


def _case(surface: str = "config", **scenario: Any) -> bytes:
    return json.dumps({"format": 1, "surface": surface, "scenario": scenario}).encode()


def test_a_scenario_as_json():
    assert scenario_to_json(SCENARIO) == JSON
    plain = Scenario((("a", FULL),))
    assert scenario_to_json(plain) == {"mix": JSON["mix"][:1]}  # type: ignore[index]


@pytest.mark.parametrize("surface", ["groups", "config", "merge"])
def test_json_is_read_back(surface: str):
    assert decode_case(_case(surface, **JSON), "it", Case)[1] == SCENARIO
    plain = Scenario((("a", FULL),))
    assert decode_case(_case(surface, **scenario_to_json(plain)), "it", Case)[1] == plain


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "more drafts than layers": ({"drafts": 6}, "6 draft layers of 5 - at `$.scenario.drafts`."),
    "fewer drafts than none": ({"drafts": -1}, "Expected `int` >= 0 - at `$.scenario.drafts`."),
    "drafts by name": ({"drafts": ["e"]}, "Expected `int`, got `array` - at `$.scenario.drafts`."),
    "fewer ranks than layers": ({"ranks": [0]}, "1 ranks for 5 layers - at `$.scenario.ranks`."),
    "more ranks than layers": ({"ranks": 6 * [0]}, "6 ranks for 5 layers - at `$.scenario.ranks`."),
    "too many ranks": (
        {"ranks": [0, 0, 0, 0, 64]},
        "Expected `int` <= 63 - at `$.scenario.ranks[4]`.",
    ),
    "a rank below none": (
        {"ranks": [0, 0, 0, 0, -1]},
        "Expected `int` >= 0 - at `$.scenario.ranks[4]`.",
    ),
    "an unknown setting": (
        {"config": {"colour": "red"}},
        "Object contains unknown field `colour` - at `$.scenario.config`.",
    ),
    "a layout in small letters": (
        {"config": {"layout": "blhnc"}},
        r"Expected `str` matching regex '\\A[A-Z]*\\Z' - at `$.scenario.config.layout`.",
    ),
    "a layout of other letters": (
        {"config": {"layout": "\x1b[2J"}},
        r"Expected `str` matching regex '\\A[A-Z]*\\Z' - at `$.scenario.config.layout`.",
    ),
    "a layout that is long": (
        {"config": {"layout": 17 * "B"}},
        "Expected `str` of length <= 16 - at `$.scenario.config.layout`.",
    ),
    "no tokens": (
        {"config": {"max_model_len": 0}},
        "Expected `int` >= 1 - at `$.scenario.config.max_model_len`.",
    ),
    "many tokens": (
        {"config": {"max_model_len": 2**40}},
        "Expected `int` <= 2147483648 - at `$.scenario.config.max_model_len`.",
    ),
    "an unknown method": (
        {"config": {"speculative_method": "guess"}},
        "Invalid enum value 'guess' - at `$.scenario.config.speculative_method`.",
    ),
    "much memory": (
        {"config": {"spare_bytes": 2**41}},
        "Expected `int` <= 1099511627776 - at `$.scenario.config.spare_bytes`.",
    ),
    "a config that is none": (
        {"config": None},
        "Expected `object`, got `null` - at `$.scenario.config`.",
    ),
    "an unknown part": (
        {"memory": 1},
        "Object contains unknown field `memory` - at `$.scenario`.",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_hostile_engine_is_one_sentence(name: str):
    changed, sentence = BAD[name]
    with pytest.raises(UsageError) as caught:
        decode_case(_case(**{**JSON, **changed}), "it", Case)
    assert str(caught.value) == f"it: {sentence}"


# The last pass of shrinking.

DIALECT = engine_planner.target_of().dialect


def _simplest(scenario: Scenario, condition: Any) -> Scenario:
    def broken(candidate: Scenario) -> Violation | None:
        if condition(candidate):
            return PartitionViolation(symptom="lost", got="", expected="")
        return None

    assert condition(scenario)
    return simplified(scenario, broken, DIALECT)


def _full(*names: str) -> tuple[tuple[str, OpenSpec], ...]:
    return tuple((name, FULL) for name in names)


def test_all_that_is_no_matter_goes():
    plain = _simplest(SCENARIO, lambda scenario: True)
    assert plain == Scenario(_full("layers.0"))
    assert is_plain(plain, DIALECT)
    assert complexity(plain) < complexity(SCENARIO)


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        ("hybrid_manager", True),
        ("layout", None),
        ("max_model_len", 4096),
        ("auto_fit", False),
        ("speculative_method", None),
        ("num_speculative_tokens", 1),
        ("spare_blocks", None),
    ],
)
def test_a_setting_that_matters_stays(setting: str, default: Any):
    simplest = _simplest(SCENARIO, lambda it: getattr(it.config, setting) != default)
    kept = PlannerConfig(**{setting: getattr(CONFIG, setting)})
    assert simplest == Scenario(_full("layers.0"), kept)
    assert not is_plain(simplest, DIALECT)


def test_drafts_that_matter_stay_at_the_end():
    simplest = _simplest(SCENARIO, lambda it: it.drafts > 0 and len(it) > it.drafts)
    # All layers of the other specs went first, then what the draft layer's own spec set.
    assert simplest == Scenario((("layers.0", WINDOW), ("layers.1", FULL)), drafts=1)
    assert not is_plain(simplest, DIALECT)


def test_ranks_that_matter_stay_with_their_layers():
    simplest = _simplest(SCENARIO, lambda it: len(set(it.ranks)) > 1)
    assert len(simplest) == 2
    assert simplest.ranks in {(0, 1), (0, 2), (1, 2)}
    assert (simplest.config, simplest.drafts) == (PlannerConfig(), 0)
    assert not is_plain(simplest, DIALECT)


def test_complexity_counts_the_engine():
    bare = Scenario(_full("layers.0", "layers.1"))
    for changed in (
        {"config": PlannerConfig(auto_fit=True)},
        {"ranks": (0, 1)},
        {"drafts": 10},
    ):
        assert complexity(msgspec.structs.replace(bare, **changed)) > complexity(bare)
