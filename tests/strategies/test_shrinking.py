"""What failures shrink to: pinned, since people read what comes out.

Found through Hypothesis alone, and from recorded choices of the fast source
that are handed to it, as the engine does.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, find, settings

from kvfuzz.engine.shrink import shrink
from kvfuzz.invariants.grouping import PartitionViolation
from kvfuzz.specs import LayerSpec, MLAAttentionSpec, Scenario, SlidingWindowMLASpec
from kvfuzz.strategies import mla_specs, sliding_window_mla_specs, spec_mixes
from kvfuzz.strategies.builders import build_mix
from kvfuzz.strategies.choices import SeededChoices
from tests.strategies.common import (
    long,
    mla_pages_differ,
    near_miss,
    no_full_mla,
    page_sizes,
    several_mla_blocks,
    uniform,
    windows,
)

Condition = Callable[[Scenario], bool]

_SETTINGS = settings(
    max_examples=2000,
    database=None,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)

_MLA = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype="float32")
_WINDOW = SlidingWindowMLASpec(
    block_size=16, num_kv_heads=1, head_size=64, dtype="float32", sliding_window=128
)


def _specs(scenario: Scenario) -> list[LayerSpec]:
    return [spec for _, spec in scenario]


def _pages_differ_without_mla(scenario: Scenario) -> bool:
    return no_full_mla(scenario) and len(page_sizes(scenario)) > 1


def _three_keys(scenario: Scenario) -> bool:
    return len({(spec.block_size, spec.sliding_window) for spec in windows(scenario)}) >= 3


def _long_with_two_mla_pages(scenario: Scenario) -> bool:
    return long(scenario) and mla_pages_differ(scenario)


def _departures(spec: LayerSpec) -> int:
    """Fields that are not as in the simplest spec of that kind."""
    plain = _MLA if isinstance(spec, MLAAttentionSpec) else _WINDOW
    return sum(getattr(spec, name) != getattr(plain, name) for name in spec.__struct_fields__)


@pytest.mark.parametrize(
    ("condition", "layers", "departures"),
    [
        (uniform, 2, 0),
        # Of two pages one is another's: which field makes it so is a matter of luck.
        (mla_pages_differ, 3, 1),
        (_pages_differ_without_mla, 2, 1),
    ],
)
def test_hypothesis_shrinks_to(condition: Condition, layers: int, departures: int) -> None:
    specs = _specs(find(spec_mixes(), condition, settings=_SETTINGS))
    assert len(specs) <= layers
    assert sum(map(_departures, specs)) == departures


def _shrunk(condition: Condition, seed: int) -> Scenario:
    """What the first mix of a seed that meets `condition` is shrunk to."""
    count = 1
    choose = SeededChoices(seed).choose
    while not condition(build_mix(choose)):
        count += 1
    choices = SeededChoices(seed)
    for _ in range(count - 1):
        build_mix(choices.choose)
    choices.record()
    assert condition(build_mix(choices.choose))

    def broken(scenario: Scenario) -> PartitionViolation | None:
        if condition(scenario):
            return PartitionViolation(symptom="made up", got="", expected="")
        return None

    shrunk = shrink(choices.recorded, spec_mixes(), broken, seconds=60)
    assert shrunk is not None
    return shrunk[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_uniform_mix_that_the_fast_source_found_becomes_two_plain_layers(seed: int) -> None:
    assert _specs(_shrunk(uniform, seed)) == [_MLA, _WINDOW]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("condition", "layers"),
    [
        (mla_pages_differ, 3),
        (near_miss, 2),
        (several_mla_blocks, 2),
        (_pages_differ_without_mla, 2),
        (_three_keys, 3),
        (_long_with_two_mla_pages, 20),
    ],
)
def test_a_recorded_mix_loses_every_layer_it_can(
    condition: Condition, layers: int, seed: int
) -> None:
    assert len(_shrunk(condition, seed)) <= layers + (condition in _MAY_KEEP_ONE_MORE)


#: A class that stands behind one that is not needed cannot always take its place;
#: the engine's last pass takes that one away.
_MAY_KEEP_ONE_MORE: set[Condition] = {near_miss, several_mla_blocks, _three_keys}


def test_specs_shrink_to_the_simplest() -> None:
    def anything(_: LayerSpec) -> bool:
        return True

    assert find(mla_specs(), anything, settings=_SETTINGS) == _MLA
    assert find(sliding_window_mla_specs(), anything, settings=_SETTINGS) == _WINDOW


def test_a_spec_shrinks_to_the_one_field_that_matters() -> None:
    spec = find(mla_specs(), lambda s: s.compress_ratio > 1, settings=_SETTINGS)
    assert spec == msgspec.structs.replace(_MLA, block_size=64, compress_ratio=4)
    spec = find(mla_specs(), lambda s: s.dtype == "uint8", settings=_SETTINGS)
    assert spec == msgspec.structs.replace(_MLA, dtype="uint8", head_size=256)
