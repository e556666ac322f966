"""A small engine's cache specs, in vLLM's own terms: what a layer's pages hold and take."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from math import prod
from typing import Any, ClassVar

import torch


def cdiv(number: int, by: int) -> int:
    return -(-number // by)


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    block_size: int
    page_size_padded: int | None = None
    is_draft: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.page_size_padded is not None and self.page_size_padded < self.data_bytes:
            raise ValueError("page_size_padded is less than what the page holds")

    @property
    def data_bytes(self) -> int:
        """Bytes of a page without padding."""
        raise NotImplementedError

    @property
    def page_size_bytes(self) -> int:
        return self.page_size_padded or self.data_bytes

    def blocks(self, vllm_config: Any) -> int:
        """Blocks that one longest request takes."""
        raise NotImplementedError

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        return self.blocks(vllm_config) * self.page_size_bytes

    def max_num_blocks_per_req(self, vllm_config: Any, max_len: int) -> int:
        """Entries of a row of a block table: each token's block has its place."""
        sharing = vllm_config.parallel_config.decode_context_parallel_size
        return cdiv(max_len, self.block_size * sharing)


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    causal: bool = True

    #: Vectors of a token: a key and a value.
    vectors: ClassVar[int] = 2

    @property
    def data_bytes(self) -> int:
        token = self.vectors * self.num_kv_heads * self.head_size * self.dtype.itemsize
        return self.block_size * token

    def whole(self, vllm_config: Any) -> int:
        """Blocks that hold every token of one longest request."""
        sharing = vllm_config.parallel_config.decode_context_parallel_size
        return cdiv(cdiv(vllm_config.model_config.max_model_len, sharing), self.block_size)


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    def blocks(self, vllm_config: Any) -> int:
        return self.whole(vllm_config)


@dataclass(frozen=True, kw_only=True)
class MLAAttentionSpec(FullAttentionSpec):
    vectors: ClassVar[int] = 1


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    sliding_window: int

    def kept(self, vllm_config: Any) -> int:
        """Blocks that hold the window and what is in flight, wherever in a block that begins."""
        tokens = self.sliding_window - 1 + vllm_config.max_in_flight_tokens
        return cdiv(tokens, self.block_size) + 1

    def blocks(self, vllm_config: Any) -> int:
        return min(self.kept(vllm_config), self.whole(vllm_config))


@dataclass(frozen=True, kw_only=True)
class MambaSpec(KVCacheSpec):
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    @property
    def data_bytes(self) -> int:
        states = zip(self.shapes, self.dtypes, strict=True)
        return sum(prod(shape) * dtype.itemsize for shape, dtype in states)

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        states = cdiv(vllm_config.model_config.max_model_len, self.block_size)
        mode = vllm_config.cache_config.mamba_cache_mode
        if mode != "all":
            states = min(states, 2 if mode == "align" else 1)
        return states * self.page_size_bytes

    def blocks(self, vllm_config: Any) -> int:
        return self.max_memory_usage_bytes(vllm_config) // self.page_size_bytes

    def max_num_blocks_per_req(self, vllm_config: Any, max_len: int) -> int:
        return cdiv(max_len, self.block_size)


@dataclass(frozen=True, kw_only=True)
class MixedSpecs(KVCacheSpec):
    """The specs of a group whose layers keep each its own."""

    kv_cache_specs: dict[str, KVCacheSpec]

    @property
    def data_bytes(self) -> int:
        return sum(spec.page_size_bytes for spec in self.kv_cache_specs.values())

    def blocks(self, vllm_config: Any) -> int:
        return max(spec.blocks(vllm_config) for spec in self.kv_cache_specs.values())

    def max_num_blocks_per_req(self, vllm_config: Any, max_len: int) -> int:
        specs = self.kv_cache_specs.values()
        widths = {spec.max_num_blocks_per_req(vllm_config, max_len) for spec in specs}
        if len(widths) > 1:
            raise AssertionError("one table for layers whose rows differ")
        return widths.pop()


class KVCacheLayout(Enum):
    """L layers, B blocks, and what is inside a page."""

    LBHNC = auto()
    BLHNC = auto()
    LHBNC = auto()  # cuts pages


class KVCacheSpecKind(Enum):
    FULL = auto()
    WINDOW = auto()
    STATE = auto()
    MIXED = auto()
    UNKNOWN = auto()


def get_kv_cache_spec_kind(spec: KVCacheSpec) -> KVCacheSpecKind:
    if isinstance(spec, MixedSpecs):
        return KVCacheSpecKind.MIXED
    if isinstance(spec, SlidingWindowSpec):
        return KVCacheSpecKind.WINDOW
    return KVCacheSpecKind.STATE if isinstance(spec, MambaSpec) else KVCacheSpecKind.FULL


@dataclass
class KVCacheTensor:
    """As since 0.29: a run of layers in the one buffer."""

    size: int
    layers: list[str]
    layer_stride: int
    block_stride: int
    offset: int


@dataclass
class SharedTensor:
    """As until 0.28: a buffer that a layer of each group shares."""

    size: int
    shared_by: list[str]


@dataclass
class KVCacheGroupSpec:
    layer_names: list[str]
    kv_cache_spec: KVCacheSpec
    is_eagle_group: bool = False


@dataclass
class KVCacheConfig:
    num_blocks: int
    kv_cache_tensors: list[Any]
    kv_cache_groups: list[KVCacheGroupSpec]
