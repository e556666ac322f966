"""Planners that plan for an engine and give out its memory wrongly in one way each."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from types import ModuleType
from typing import Any

from tests.sabotage.engine import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    cdiv,
)
from tests.sabotage.engine_planner import Caught, Groups, OlderPlanner, Planner, Specs, needed


class ExchangesGroups(Planner):
    """Gives the first rank the groups of the last, and the other way round."""

    def configs(self, config: Any, ranks: list[Specs], memory: list[int]) -> list[KVCacheConfig]:
        made = super().configs(config, ranks, memory)
        first, last = made[0].kv_cache_groups, made[-1].kv_cache_groups
        made[0].kv_cache_groups, made[-1].kv_cache_groups = last, first
        return made


class DoublesPagesOfPipelines(Planner):
    """Takes twice the tokens a block where layers are on several ranks."""

    ranks = 1

    def page(self, specs: Specs) -> int:
        return super().page(specs) * (1 if self.ranks == 1 else 2)

    def configs(self, config: Any, ranks: list[Specs], memory: list[int]) -> list[KVCacheConfig]:
        self.ranks = len(ranks)
        return super().configs(config, ranks, memory)


class CountsBlocksByRank(Planner):
    """Lets each rank have as many blocks as fit there."""

    def blocks(self, config: Any, shares: list[Groups], memory: Sequence[int]) -> list[int]:
        least = super().blocks(config, shares, memory)
        if config.cache_config.num_gpu_blocks_override is not None:
            return least
        sizes = [sum(self.slots(share)) for share in shares]
        return [
            self.fitting(m, size) if size else fallback
            for m, size, fallback in zip(memory, sizes, least, strict=True)
        ]


class ForgetsTheNullBlock(Planner):
    """Counts on a block that no request gets."""

    null_blocks = 0


class OverridesByOneMore(Planner):
    """Adds the null block to a number of blocks that was set."""

    def blocks(self, config: Any, shares: list[Groups], memory: Sequence[int]) -> list[int]:
        extra = config.cache_config.num_gpu_blocks_override is not None
        return [count + extra for count in super().blocks(config, shares, memory)]


class RoundsUp(Planner):
    """Takes a last block that is there in part."""

    def fitting(self, memory: int, size: int) -> int:
        return cdiv(memory, size)


class LeavesABlock(Planner):
    """Leaves a block of memory where it can."""

    def blocks(self, config: Any, shares: list[Groups], memory: Sequence[int]) -> list[int]:
        blocks = super().blocks(config, shares, memory)
        spare = blocks[0] - self.null_blocks - needed(config, shares[0])
        override = config.cache_config.num_gpu_blocks_override
        return blocks if spare < 1 or override is not None else [count - 1 for count in blocks]


class ShortensByOneMore(Planner):
    """Takes a token less than fit, to be safe."""

    def longest(self, config: Any, groups: Groups, usable: int, wanted: int) -> int:
        return max(1, super().longest(config, groups, usable, wanted) - 1)


class WantsABlockMore(Planner):
    """Refuses memory that is just enough."""

    def fit(self, config: Any, groups: Groups, usable: int) -> None:
        spare = config.model_config.original_max_model_len != -1
        super().fit(config, groups, usable - spare)


class NeverShortens(Planner):
    """Refuses a request that is too long, though it may be shortened."""

    def fit(self, config: Any, groups: Groups, usable: int) -> None:
        if needed(config, groups) > usable:
            self.refuse_memory(config.cache_config.num_gpu_blocks_override)


# Buffers.


class ForgetsALayer(OlderPlanner):
    """Leaves the last layer of the last buffer that is shared without it."""

    def tensors(self, config: Any, share: Groups, blocks: int) -> list[Any]:
        tensors = super().tensors(config, share, blocks)
        if tensors and len(tensors[-1].shared_by) > 1:
            tensors[-1].shared_by.pop()
        return tensors


class BeginsLate(Planner):
    """Has MLA layers begin a byte late, and so end behind the buffer."""

    def tensors(self, config: Any, share: Groups, blocks: int) -> list[Any]:
        rows = {n for g in share if _is_mla(g.kv_cache_spec) for n in g.layer_names}
        return [
            replace(tensor, offset=tensor.offset + rows.issuperset(tensor.layers))
            for tensor in super().tensors(config, share, blocks)
        ]


def _is_mla(spec: KVCacheSpec) -> bool:
    return isinstance(spec, MLAAttentionSpec)


class StacksLayers(Planner):
    """Puts the layers of a run all in one place."""

    def tensors(self, config: Any, share: Groups, blocks: int) -> list[Any]:
        tensors = super().tensors(config, share, blocks)
        return [replace(tensor, layer_stride=0) for tensor in tensors]


class SquashesBlocks(Planner):
    """Begins each block of an only layer a byte before the one before it ends."""

    def tensors(self, config: Any, share: Groups, blocks: int) -> list[Any]:
        tensors = super().tensors(config, share, blocks)
        if sum(len(group.layer_names) for group in share) > 1:
            return tensors
        return [replace(t, block_stride=max(1, t.block_stride - 1)) for t in tensors]


class TurnsAGroupRound(Planner):
    """Has the blocks of a second group begin at the end of the buffer, and those of others not."""

    def tensors(self, config: Any, share: Groups, blocks: int) -> list[Any]:
        tensors = super().tensors(config, share, blocks)
        second = {name for group in share[1:2] for name in group.layer_names}
        for tensor in tensors:
            if second.issuperset(tensor.layers):
                tensor.offset += (blocks - 1) * tensor.block_stride
                tensor.block_stride *= -1
        return tensors


# Block tables.


class MixesRows(Planner):
    """Puts layers whose block tables differ into one group where that takes less."""

    dear = 1

    def rows(self, specs: Specs) -> list[list[str]]:
        return [list(specs)]


class LengthensRows(Planner):
    """Has groups whose tables have an entry more than their layers know of."""

    def group(self, specs: Specs, names: list[str], spec: KVCacheSpec) -> KVCacheGroupSpec:
        made, right = copy(spec), spec.max_num_blocks_per_req
        row = {"max_num_blocks_per_req": lambda config, length: right(config, length) + 1}
        vars(made).update(row)
        return super().group(specs, names, made)


class ShortensRows(Planner):
    """Makes the tables of MLA layers an eighth as wide as they must be, and the layers know it."""

    def interface(self) -> ModuleType:
        module = super().interface()
        row = {
            "__doc__": None,
            "max_num_blocks_per_req": lambda spec, config, length: length // spec.block_size // 8,
        }
        module.MLAAttentionSpec = type(  # type: ignore[attr-defined]
            "MLAAttentionSpec", (MLAAttentionSpec,), row
        )
        return module


#: Planner -> the one rule that must catch it.
SABOTAGED: dict[type[Planner], tuple[Caught, ...]] = {
    ExchangesGroups: (Caught("config", "ranks-own-their-layers", "groups of other layers"),),
    ForgetsALayer: (Caught("config", "ranks-own-their-layers", "buffers of other layers"),),
    DoublesPagesOfPipelines: (Caught("config", "split-agrees", "otherwise on ranks", 200),),
    CountsBlocksByRank: (Caught("config", "one-accounting", "ranks differ", 150),),
    ForgetsTheNullBlock: (
        Caught("config", "one-accounting", "accepts what cannot be served", 150),
    ),
    OverridesByOneMore: (Caught("config", "one-accounting", "override ignored", 150),),
    RoundsUp: (Caught("config", "one-accounting", "more memory than there is"),),
    LeavesABlock: (Caught("config", "one-accounting", "memory left"),),
    ShortensByOneMore: (Caught("config", "one-accounting", "shortened too far", 300),),
    WantsABlockMore: (Caught("config", "accepts-what-fits", "refused", 700),),
    NeverShortens: (Caught("config", "accepts-what-fits", "not shortened", 700),),
    BeginsLate: (Caught("config", "tensors-disjoint", "mla_attention outside its buffer"),),
    StacksLayers: (Caught("config", "tensors-disjoint", "layers of a group overlap"),),
    SquashesBlocks: (Caught("config", "tensors-disjoint", "blocks of a layer overlap"),),
    TurnsAGroupRound: (Caught("config", "tensors-disjoint", "blocks of several groups overlap"),),
    MixesRows: (Caught("config", "table-width", "layers differ", 400),),
    LengthensRows: (Caught("config", "table-width", "not as its layers"),),
    ShortensRows: (Caught("config", "table-width", "less than it takes"),),
}
