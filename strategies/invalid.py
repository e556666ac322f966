"""Specs that break exactly one constraint, for tests of refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from kvfuzz.pages import FULL_DIALECT, Dialect
from kvfuzz.specs import KINDS, LayerSpec
from kvfuzz.strategies.choices import Choose
from kvfuzz.strategies.classes import build_spec
from kvfuzz.strategies.constraints import CONSTRAINTS, broken

#: Makes a spec break one constraint; its second argument varies how.
_Break = Callable[[LayerSpec, int], LayerSpec]


def _replacing(*ways: dict[str, object]) -> _Break:
    return lambda spec, way: msgspec.structs.replace(spec, **ways[way % len(ways)])


def _small_padding(spec: LayerSpec, way: int) -> LayerSpec:
    # One byte too few, half, or next to nothing.
    states = spec.block_size * spec.num_kv_heads * spec.head_size
    padded = (states - 1, states // 2, 1)[way % 3]
    return msgspec.structs.replace(spec, dtype="uint8", page_size_padded=max(1, padded))


_BREAKS: Final[dict[str, _Break]] = {
    # Each is expressible in some dialect, and so no break at all there.
    "expressible": _replacing(
        {"num_head_slots": 1},
        {"state_content_bytes": 64},
        {"indexes_kv_by_block_stride": True},
        {"extra_retained_tokens": 1},
        {"non_causal": True},
        {"non_causal_multi_token_decode": True},
        {"dtype": "uint8", "kv_quant_mode": "int4_per_token_head"},
        {"dtype": "uint8", "kv_quant_mode": "nvfp4"},
    ),
    "counts": _replacing(
        {"block_size": 0},
        {"num_kv_heads": -1},
        {"head_size": 0},
        {"alignment": 0},
        {"compress_ratio": 0},
        {"sliding_window": 0},
    ),
    "model-version": _replacing(
        {"model_version": "deepseek_v5"}, {"model_version": ""}, {"model_version": "DeepSeek_V4"}
    ),
    "whole-states": _replacing(
        {"block_size": 18, "compress_ratio": 4},
        {"block_size": 64, "compress_ratio": 128},
        {"block_size": 1, "compress_ratio": 2},
    ),
    "v4-ratio": _replacing(
        {"block_size": 16, "compress_ratio": 2, "model_version": "deepseek_v4"},
        {"block_size": 24, "compress_ratio": 3, "model_version": "deepseek_v4"},
        {"block_size": 256, "compress_ratio": 64, "model_version": "deepseek_v4"},
    ),
    "cache-format": _replacing(
        {"dtype": "float32", "cache_dtype_str": "fp8_ds_mla"},
        {"dtype": "float16", "cache_dtype_str": "bfloat16"},
        {"dtype": "uint8", "cache_dtype_str": "int3"},
    ),
    "quant-dtype": _replacing(
        {"dtype": "float32", "kv_quant_mode": "fp8_per_tensor"},
        {"dtype": "uint8", "kv_quant_mode": "int8_per_token_head"},
        {"dtype": "bfloat16", "kv_quant_mode": "nvfp4"},
    ),
    "int4-pairs": _replacing(
        {"dtype": "uint8", "head_size": 63, "kv_quant_mode": "int4_per_token_head"},
        {"dtype": "uint8", "head_size": 1, "kv_quant_mode": "int4_per_token_head"},
    ),
    "one-window": _replacing(
        {"sliding_window": 128, "attention_chunk_size": 8192},
        {"sliding_window": 1, "attention_chunk_size": 1},
    ),
    "padding-holds": _small_padding,
    "alignment-holds": _replacing(
        {"dtype": "uint8", "kv_quant_mode": "fp8_per_token_head", "head_size": 3, "alignment": 5},
        {"dtype": "int8", "kv_quant_mode": "int8_per_token_head", "head_size": 7, "alignment": 2},
    ),
}


#: At least as many as any row above has ways.
_WAYS: Final = 8


def _attempt(name: str, spec: LayerSpec, way: int, dialect: Dialect) -> LayerSpec | None:
    try:
        spec = _BREAKS[name](spec, way)
    except TypeError:  # a kind that has no such field
        return None
    return spec if broken(spec, dialect) == [name] else None


def _ways(name: str, dialect: Dialect) -> list[tuple[LayerSpec, int]]:
    """Simplest specs, and the ways in which they break the constraint `name` alone."""
    found = []
    for kind in KINDS:
        if kind in dialect.fields:
            simplest = build_spec(lambda low, _: low, kind, dialect=dialect, plain=True)
            found += [
                (simplest, way)
                for way in range(_WAYS)
                if _attempt(name, simplest, way, dialect) is not None
            ]
    return found


def breakable(dialect: Dialect) -> list[str]:
    """Names of the constraints that a spec can break alone in `dialect`, in the table's order."""
    return [row.name for row in CONSTRAINTS if _ways(row.name, dialect)]


def build_invalid(
    choose: Choose, *, dialect: Dialect = FULL_DIALECT, constraint: str | None = None
) -> tuple[LayerSpec, str]:
    """A spec that breaks one constraint and no other, and that constraint's name.

    Args:
        choose: The source.
        dialect: Where it breaks it.
        constraint: Which to break, or None for any that can be broken.

    Raises:
        ValueError: No spec breaks `constraint` in that dialect.
    """
    names = breakable(dialect)
    if constraint is not None and constraint not in names:
        raise ValueError(f"no spec breaks {constraint!r} alone; there are: {', '.join(names)}")
    name = constraint or names[choose(0, len(names) - 1)]
    ways = _ways(name, dialect)
    simplest, way = ways[choose(0, len(ways) - 1)]
    spec = build_spec(choose, simplest.kind, dialect=dialect, plain=True)
    invalid = _attempt(name, spec, way, dialect) or _attempt(name, simplest, way, dialect)
    assert invalid is not None, f"_ways found that {name} breaks"
    return invalid, name
