"""The mutants of `tests/bench` need just the layers that they say, and no layer too many."""

from __future__ import annotations

from typing import Any

import pytest

from kvfuzz.reference import group_and_unify_kv_cache_specs
from kvfuzz.specs import LayerSpec, MLAAttentionSpec, SlidingWindowMLASpec
from tests.bench.mutants import MUTANTS, Mix, Mutant, fails
from tests.bench.random_mixes import VALUES, WINDOWS

PLAIN: dict[str, Any] = {"block_size": 64, "num_kv_heads": 1, "dtype": "uint8"}


def _full(head_size: int = 512, **fields: Any) -> LayerSpec:
    return MLAAttentionSpec(head_size=head_size, **{**PLAIN, **fields})


def _window(head_size: int = 512, **fields: Any) -> LayerSpec:
    return SlidingWindowMLASpec(head_size=head_size, **{**PLAIN, "sliding_window": 128, **fields})


WITNESSES: dict[str, list[LayerSpec]] = {
    "compressed_fp8_beside_two_blocks": [
        _full(dtype="float8_e4m3fn", compress_ratio=4),
        _window(),
        _window(block_size=16),
    ],
    "twenty_layers": [_window(256), *[_window()] * 19],
    "int8_page_of_three": [_window(192), _full(576, dtype="int8")],
    "interleaved_at_the_end": [_full(), _window(), _full(256)],
    "odd_layer_last": [_full(), _full(), _window(256), _window(256), _window()],
    "three_windows_of_one_shape": [
        _full(256),
        *(_window(sliding_window=tokens) for tokens in WINDOWS[:3]),
    ],
    "coprime_pages": [_full(584), _window(576)],
    "nearly_equal_pages": [_window(576), _window(584)],
    "padded_to_anothers_page": [
        _full(),
        _window(256),
        _window(256, sliding_window=512, page_size_padded=64 * 512),
    ],
    "seventeenth_of_a_group": [_full(256), _full(), *[_window(dtype="int8")] * 17],
    "five_pages_and_one_alone": [
        *(_window(size) for size in (64, 128, 192, 256) for _ in range(2)),
        _full(),
    ],
}


def _mix(specs: list[LayerSpec]) -> Mix:
    return {f"layers.{i}": spec for i, spec in enumerate(specs)}


def _id(mutant: Mutant) -> str:
    return mutant.name


@pytest.mark.parametrize("mutant", MUTANTS, ids=_id)
def test_a_witness_has_the_fewest_layers_and_needs_each(mutant: Mutant):
    specs = WITNESSES[mutant.name]
    assert len(specs) == mutant.layers
    assert fails(mutant.planner, _mix(specs))
    for number in range(len(specs)):
        assert not fails(mutant.planner, _mix(specs[:number] + specs[number + 1 :]))


@pytest.mark.parametrize("mutant", MUTANTS, ids=_id)
def test_plain_random_mixes_can_hold_the_witness(mutant: Mutant):
    for spec in WITNESSES[mutant.name]:
        assert all(getattr(spec, name) in values for name, values in VALUES.items())
        assert spec.sliding_window in (None, *WINDOWS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=_id)
def test_the_reference_takes_the_witness(mutant: Mutant):
    assert not fails(group_and_unify_kv_cache_specs, _mix(WITNESSES[mutant.name]))
