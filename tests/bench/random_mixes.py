"""Mixes as a user writes them who knows the specs: usual values, a few specs, repeated.

Meant to be good: what the mutants need is all in these lists, and layers share specs as they do
in models. `pick` may be `random.choice` or anything else that picks one of a few values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from kvfuzz.pages import page_size_bytes
from kvfuzz.specs import LayerSpec, MLAAttentionSpec, SlidingWindowMLASpec
from tests.bench.mutants import RULES, Mix

Pick: TypeAlias = Callable[[Sequence[Any]], Any]

VALUES: dict[str, tuple[Any, ...]] = {
    "block_size": (16, 32, 64, 128, 256),
    "num_kv_heads": (1, 2, 4, 8),
    "head_size": (64, 128, 192, 256, 512, 576, 584),
    "dtype": ("float32", "bfloat16", "uint8", "int8", "float8_e4m3fn"),
    "compress_ratio": (1, 1, 1, 4),
}
WINDOWS = (64, 128, 512, 1024)
MOST_SPECS = 6
MOST_LAYERS = 32


def padded(spec: LayerSpec) -> LayerSpec:
    """The spec with its page padded to a power of two."""
    page = page_size_bytes(spec, RULES)
    return msgspec.structs.replace(spec, page_size_padded=1 << (page - 1).bit_length())


def random_spec(pick: Pick) -> LayerSpec:
    """A spec, each field picked by itself."""
    fields = {name: pick(values) for name, values in VALUES.items()}
    spec: LayerSpec
    if pick((True, False)):
        spec = MLAAttentionSpec(**fields)
    else:
        spec = SlidingWindowMLASpec(**fields, sliding_window=pick(WINDOWS))
    return padded(spec) if pick((True, False, False, False)) else spec


def random_mix(pick: Pick) -> Mix:
    """A mix of up to six specs, each layer's picked by itself."""
    specs = [random_spec(pick) for _ in range(pick(range(1, MOST_SPECS + 1)))]
    return {f"layers.{i}": pick(specs) for i in range(pick(range(1, MOST_LAYERS + 1)))}
