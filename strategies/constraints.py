"""What makes a spec valid, row by row, each with where it comes from.

Builders keep every row by construction; `invalid.py` breaks them one at a
time; `broken` tells people and tests which rows a spec breaks. Paths are
those of vLLM's source tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from kvfuzz.pages import Dialect, page_size_bytes, unpadded_page_size_bytes
from kvfuzz.specs import DTYPE_BYTES, LayerSpec, MLAAttentionSpec

#: Cache format -> dtypes that a cache of it may have. None allows any.
#: `auto` follows the model's dtype. A platform may store fp8 either as raw
#: bytes or in a float8 dtype.
FORMAT_DTYPES: Final[dict[str, frozenset[str] | None]] = {
    "auto": None,
    "float16": frozenset({"float16"}),
    "bfloat16": frozenset({"bfloat16"}),
    "fp8": frozenset({"uint8", "float8_e4m3fn"}),
    "fp8_e4m3": frozenset({"uint8", "float8_e4m3fn"}),
    "fp8_e5m2": frozenset({"uint8", "float8_e5m2"}),
    "fp8_inc": frozenset({"float8_e4m3fn"}),
    "fp8_ds_mla": frozenset({"uint8"}),
    "int8_per_token_head": frozenset({"int8"}),
    "fp8_per_token_head": frozenset({"uint8"}),
    "int4_per_token_head": frozenset({"uint8"}),
    "nvfp4": frozenset({"uint8"}),
    "turboquant_k8v4": frozenset({"uint8"}),
    "turboquant_4bit_nc": frozenset({"uint8"}),
    "turboquant_k3v4_nc": frozenset({"uint8"}),
    "turboquant_3bit_nc": frozenset({"uint8"}),
}

_RAW: Final = frozenset({"uint8"})

#: Quantisation mode -> dtypes that a cache in it may have; "none" allows any.
#: The first named is the one that the modes' own formats use.
MODE_DTYPES: Final[dict[str, tuple[str, ...]]] = {
    "none": tuple(DTYPE_BYTES),
    "fp8_per_tensor": ("uint8", "float8_e4m3fn", "float8_e5m2"),
    "int8_per_token_head": ("int8",),
    "fp8_per_token_head": ("uint8",),
    "int4_per_token_head": ("uint8",),
    "nvfp4": ("uint8",),
    "turboquant": ("uint8",),
    "turboquant_k8v4": ("uint8",),
    "turboquant_4bit_nc": ("uint8",),
    "turboquant_k3v4_nc": ("uint8",),
    "turboquant_3bit_nc": ("uint8",),
}

#: Compress ratios that DeepSeek V4 has: none, sparse and heavily compressed.
V4_RATIOS: Final = frozenset({1, 4, 128})

#: Fields that count something, and so are at least one if they are set.
_COUNTS: Final = (
    "block_size",
    "num_kv_heads",
    "head_size",
    "num_head_slots",
    "state_content_bytes",
    "alignment",
    "compress_ratio",
    "sliding_window",
    "attention_chunk_size",
)


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    Attributes:
        name: Its name, which `broken` gives and `invalid_specs` takes.
        claim: What holds of a valid spec, in one sentence.
        source: Where that comes from.
        holds: Whether it does. Called only on specs that keep the rows above.
    """

    name: str
    claim: str
    source: str
    holds: Callable[[LayerSpec, Dialect], bool]


def _counts(spec: LayerSpec, _: Dialect) -> bool:
    values = (getattr(spec, name, None) for name in _COUNTS)
    return all(value is None or value >= 1 for value in values)


def _cache_format(spec: LayerSpec, _: Dialect) -> bool:
    if spec.cache_dtype_str is None:
        return True
    if spec.cache_dtype_str not in FORMAT_DTYPES:
        return False
    dtypes = FORMAT_DTYPES[spec.cache_dtype_str]
    return dtypes is None or spec.dtype in dtypes


def _one_window(spec: LayerSpec, _: Dialect) -> bool:
    if not isinstance(spec, MLAAttentionSpec):
        return True
    return spec.sliding_window is None or spec.attention_chunk_size is None


def _padding(spec: LayerSpec, dialect: Dialect) -> bool:
    padded = spec.page_size_padded
    # Where padding is asked for and alignment replaces it, it is never looked at.
    unaligned = msgspec.structs.replace(spec, alignment=None)
    return padded is None or padded >= unpadded_page_size_bytes(unaligned, dialect.rules)


def _alignment(spec: LayerSpec, dialect: Dialect) -> bool:
    bare = msgspec.structs.replace(spec, page_size_padded=None)
    try:
        page_size_bytes(bare, dialect.rules)
    except ValueError:
        return False
    return True


CONSTRAINTS: Final[tuple[Constraint, ...]] = (
    Constraint(
        name="counts",
        claim="Sizes, counts, windows and ratios are at least 1.",
        source="vllm/config/cache.py (block_size gt=0); a page of no bytes cannot be allocated",
        holds=_counts,
    ),
    Constraint(
        name="expressible",
        claim="The dialect has the kind, every field that is set and the quantisation mode.",
        source="the target's own spec classes, as its adapter found them",
        holds=lambda spec, dialect: dialect.lacks(spec) is None,
    ),
    Constraint(
        name="model-version",
        claim="The model version is None or deepseek_v4.",
        source="vllm/v1/kv_cache_interface.py, SlidingWindowMLASpec: asserted",
        holds=lambda spec, _: spec.model_version in (None, "deepseek_v4"),
    ),
    Constraint(
        name="whole-states",
        claim="The block size is a multiple of the compress ratio.",
        source="vllm/v1/kv_cache_interface.py, storage_block_size: the division floors, so that"
        " tokens of a last, partial state would have no place",
        holds=lambda spec, _: spec.block_size % spec.compress_ratio == 0,
    ),
    Constraint(
        name="v4-ratio",
        claim="A spec of DeepSeek V4 has a compress ratio of 1, 4 or 128.",
        source="vllm/v1/attention/backends/mla/sparse_swa.py: others raise ValueError",
        holds=lambda spec, _: spec.model_version is None or spec.compress_ratio in V4_RATIOS,
    ),
    Constraint(
        name="cache-format",
        claim="The cache format is known and allows the dtype; fp8_ds_mla means uint8.",
        source="vllm/config/cache.py, CacheDType; vllm/utils/torch_utils.py,"
        " STR_DTYPE_TO_TORCH_DTYPE",
        holds=_cache_format,
    ),
    Constraint(
        name="quant-dtype",
        claim="The quantisation mode allows the dtype.",
        source="vllm/utils/torch_utils.py, STR_DTYPE_TO_TORCH_DTYPE: a mode is set by the cache"
        " format of its name",
        holds=lambda spec, _: spec.dtype in MODE_DTYPES[spec.kv_quant_mode],
    ),
    Constraint(
        name="int4-pairs",
        claim="A head of int4 elements, two to a byte, has an even number of them.",
        source="vllm/v1/kv_cache_interface.py, MLAAttentionSpec: head_size // 2 floors",
        holds=lambda spec, _: (
            spec.kv_quant_mode != "int4_per_token_head" or spec.head_size % 2 == 0
        ),
    ),
    Constraint(
        name="one-window",
        claim="A full MLA layer has a sliding window or an attention chunk, not both.",
        source="vllm/v1/kv_cache_interface.py, FullAttentionSpec.merge: asserted",
        holds=_one_window,
    ),
    Constraint(
        name="padding-holds",
        claim="A padded page is never smaller than its data and scales.",
        source="vllm/v1/kv_cache_interface.py, page_size_bytes: asserted",
        holds=_padding,
    ),
    Constraint(
        name="alignment-holds",
        claim="Where scales are added to a page, aligning its data leaves room for them.",
        source="vllm/v1/kv_cache_interface.py up to 0.25: the page is padded by its data alone,"
        " then asserted to hold the scales too",
        holds=_alignment,
    ),
)


def broken(spec: LayerSpec, dialect: Dialect) -> list[str]:
    """Names of the constraints that `spec` breaks in `dialect`; empty if it is valid.

    Only "counts" is named for a spec that breaks it: the other rows divide by
    what it guards.
    """
    if not _counts(spec, dialect):
        return ["counts"]
    return [row.name for row in CONSTRAINTS if not row.holds(spec, dialect)]
