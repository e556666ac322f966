"""A small planner that is right: groups of one spec each, pages padded to the largest.

It is naive on purpose, and each decision is a method of its own, so that a
sabotaged one differs in one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from math import lcm
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

from kvfuzz.targets.base import Target
from kvfuzz.targets.eras import adapt
from tests.sabotage import engine
from tests.sabotage.engine import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheLayout,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    MixedSpecs,
    MLAAttentionSpec,
    SharedTensor,
    SlidingWindowSpec,
    cdiv,
)

Specs = dict[str, KVCacheSpec]
Groups = list[KVCacheGroupSpec]
#: What layers have in common -> their names, and -> the one spec that they get.
Parts = dict[Hashable, list[str]]
Planned = dict[Hashable, KVCacheSpec]

#: Groups that layers of one spec may be spread over.
GROUPS_A_SPEC = 8
#: And a common page is at most so many times the largest.
MOST_PAGE = 4


def page_of(group: KVCacheGroupSpec, name: str) -> int:
    spec = group.kv_cache_spec
    return (spec.kv_cache_specs[name] if isinstance(spec, MixedSpecs) else spec).page_size_bytes


def needed(config: Any, groups: Groups) -> int:
    """Blocks that one longest request takes."""
    return sum(group.kv_cache_spec.blocks(config) for group in groups)


def by_layer(specs: Specs, names: list[str]) -> MixedSpecs:
    return MixedSpecs(block_size=1, kv_cache_specs={name: specs[name] for name in names})


class Planner:
    """See the module. Its own `interface` and `utils` are what a target is made of."""

    #: Blocks that no request gets.
    null_blocks: ClassVar[int] = 1
    #: Above so many times what layers take by themselves all go into one group, if that is less.
    dear: ClassVar[float] = 3

    def interface(self) -> ModuleType:
        """The module of its spec classes."""
        module = ModuleType("interface")
        vars(module).update({k: v for k, v in vars(engine).items() if not k.startswith("_")})
        return module

    def utils(self) -> ModuleType:
        """The module of its functions."""
        module = ModuleType("utils")
        vars(module).update(get_kv_cache_groups=self.groups, get_kv_cache_configs=self.configs)
        return module

    # Groups.

    def groups(self, config: Any, specs: Specs) -> Groups:
        """Layers of one spec together, in groups of about one size."""
        given, specs = specs, self.promoted(config, specs)
        page = self.page(specs)
        # Drafts first, then by what they are, so that the order in a model is no matter.
        texts = {spec: repr(replace(spec, is_draft=False)) for spec in set(given.values())}
        keys = {spec: self.key(spec) for spec in set(specs.values())}
        parts: Parts = {}
        for name in sorted(specs, key=lambda n: (not specs[n].is_draft, texts[given[n]])):
            parts.setdefault(keys[specs[name]], []).append(name)
        planned = {key: self.planned([specs[n] for n in parts[key]], page) for key in parts}
        size, is_best = self.group_size(config, specs, parts, planned)
        own = sum(spec.max_memory_usage_bytes(config) for spec in specs.values())
        mixed = [self.group(specs, names, by_layer(specs, names)) for names in self.rows(specs)]
        groups = []
        for key, names in parts.items():
            for first in range(0, len(names), size):
                run, spec = names[first : first + size], planned[key]
                spec = spec if is_best else by_layer(dict.fromkeys(run, spec), run)
                groups.append(self.group(specs, run, spec))
        need = self.need(config, groups)
        return mixed if need > self.dear * own and need > self.need(config, mixed) else groups

    def rows(self, specs: Specs) -> list[list[str]]:
        """Layers whose block tables can be one."""
        made: dict[Hashable, list[str]] = {}
        for name, spec in specs.items():
            made.setdefault((spec.block_size, type(spec)), []).append(name)
        return list(made.values())

    def need(self, config: Any, groups: Groups) -> int:
        """Bytes of one longest request, beyond a block of each group."""
        return (needed(config, groups) - len(groups)) * sum(self.slots(groups))

    def promoted(self, config: Any, specs: Specs) -> Specs:
        """Without the hybrid manager, windows that free nothing become full attention."""
        if not config.scheduler_config.disable_hybrid_kv_cache_manager:
            return dict(specs)
        made = {}
        for name, spec in specs.items():
            if isinstance(spec, SlidingWindowSpec) and spec.blocks(config) == spec.whole(config):
                kept = (field.name for field in fields(FullAttentionSpec))
                spec = FullAttentionSpec(**{name: getattr(spec, name) for name in kept})
            made[name] = spec
        return made

    def page(self, specs: Specs) -> int:
        """Bytes of all pages: of the largest, and up to whole rows of every MLA layer."""
        largest = max(spec.page_size_bytes for spec in specs.values())
        rows = {n: s.page_size_bytes for n, s in specs.items() if isinstance(s, MLAAttentionSpec)}
        row = lcm(*rows.values())
        page = cdiv(largest, row) * row
        if page > MOST_PAGE * largest:
            self.refuse_rows(max(rows, key=rows.__getitem__))
        return page

    def refuse_rows(self, name: str) -> None:
        raise ValueError(f"no page holds whole rows of {name} and of others: change block_size")

    def key(self, spec: KVCacheSpec) -> Hashable:
        """Layers of one key go together: alike but for how many tokens a block has."""
        if isinstance(spec, MambaSpec):
            return spec
        return type(spec), replace(spec, block_size=1 << 20, page_size_padded=None)

    def planned(self, specs: list[KVCacheSpec], page: int) -> KVCacheSpec:
        """The spec of the layers of a part: blocks grow as far as the page does."""
        largest = max(specs, key=lambda spec: spec.page_size_bytes)
        tokens = page // largest.page_size_bytes * largest.block_size
        made = replace(largest, block_size=tokens, page_size_padded=None, is_draft=False)
        return made if made.data_bytes == page else replace(made, page_size_padded=page)

    def group_size(
        self, config: Any, specs: Specs, parts: Parts, planned: Planned
    ) -> tuple[int, bool]:
        """The size of groups that takes the fewest pages, and whether no other would take fewer.

        Drafts of one part are to fit into one group, and groups to be few.
        """
        taken = [(len(names), planned[key].blocks(config)) for key, names in parts.items()]
        most = max(count for count, _ in taken)
        least = max(1, *(sum(specs[n].is_draft for n in names) for names in parts.values()))
        allowed = GROUPS_A_SPEC * len(set(specs.values()))
        costs = {}
        for size in range(most, 0, -1):
            counts = [cdiv(count, size) for count, _ in taken]
            pages = sum(n * blocks for n, (_, blocks) in zip(counts, taken, strict=True))
            costs[size] = (size < least or sum(counts) > allowed, size * pages)
        best = min(costs, key=costs.__getitem__)
        return best, costs[best][1] == min(pages for _, pages in costs.values())

    def group(self, specs: Specs, names: list[str], spec: KVCacheSpec) -> KVCacheGroupSpec:
        return KVCacheGroupSpec(names, spec, any(specs[name].is_draft for name in names))

    # Blocks, memory and tensors.

    def configs(self, config: Any, ranks: list[Specs], memory: list[int]) -> list[KVCacheConfig]:
        """One plan for all ranks, of which each has its layers."""
        groups = self.groups(config, {n: spec for specs in ranks for n, spec in specs.items()})
        shares = [self.share(groups, specs) for specs in ranks]
        blocks = self.blocks(config, shares, memory)
        self.fit(config, groups, min(blocks) - self.null_blocks)
        return [
            KVCacheConfig(count, self.tensors(config, share, count), share)
            for share, count in zip(shares, blocks, strict=True)
        ]

    def share(self, groups: Groups, specs: Specs) -> Groups:
        """A rank's layers of each group."""
        return [replace(g, layer_names=[n for n in g.layer_names if n in specs]) for g in groups]

    def slots(self, share: Groups) -> list[int]:
        """Bytes of each slot of a block: the first layer of any group has the first, and so on."""
        pages = [[page_of(group, name) for name in group.layer_names] for group in share]
        return [max(slot) for slot in zip_longest(*pages, fillvalue=0)]

    def blocks(self, config: Any, shares: list[Groups], memory: Sequence[int]) -> list[int]:
        """Blocks of each rank: as many on each."""
        override = config.cache_config.num_gpu_blocks_override
        if override is not None:
            return [override] * len(shares)
        sizes = [sum(self.slots(share)) for share in shares]
        fitting = [self.fitting(m, size) for m, size in zip(memory, sizes, strict=True) if size]
        return [min(fitting)] * len(shares)

    def fitting(self, memory: int, size: int) -> int:
        return memory // size

    def fit(self, config: Any, groups: Groups, usable: int) -> None:
        """Take the longest request that fits, or say what is in the way."""
        model = config.model_config
        wanted = model.max_model_len
        if needed(config, groups) <= usable:
            return
        if model.original_max_model_len == -1:
            model.max_model_len = 1
            if needed(config, groups) <= usable:
                model.max_model_len = self.longest(config, groups, usable, wanted)
                return
            model.max_model_len = wanted
        self.refuse_memory(config.cache_config.num_gpu_blocks_override)

    def refuse_memory(self, override: int | None) -> None:
        if override is not None:
            raise ValueError(f"num_gpu_blocks_override={override} is too few for one request")
        raise ValueError("too little memory: decrease max_model_len")

    def longest(self, config: Any, groups: Groups, usable: int, wanted: int) -> int:
        """The longest request that fits; one token does, `wanted` do not."""
        fits = 1
        while wanted - fits > 1:
            config.model_config.max_model_len = (fits + wanted) // 2
            if needed(config, groups) <= usable:
                fits = config.model_config.max_model_len
            else:
                wanted = config.model_config.max_model_len
        return fits

    def tensors(self, config: Any, share: Groups, blocks: int) -> list[Any]:
        """Where pages are: slot by slot in a block, or block by block in a slot."""
        slots = self.slots(share)
        outermost = config.cache_config.get_resolved_kv_cache_layout() is KVCacheLayout.BLHNC
        made = []
        for group in share:
            names = group.layer_names
            runs = [[n] for n in names] if len(set(slots)) > 1 else [names] if names else []
            first = 0
            for run in runs:
                page = slots[first]
                made.append(
                    KVCacheTensor(
                        size=sum(slots) * blocks,
                        layers=list(run),
                        layer_stride=page if outermost else page * blocks,
                        block_stride=sum(slots) if outermost else page,
                        offset=sum(slots[:first]) * (1 if outermost else blocks),
                    )
                )
                first += len(run)
        return made


class OlderPlanner(Planner):
    """The same with buffers that a layer of each group shares."""

    def tensors(self, config: Any, share: Groups, blocks: int) -> list[Any]:
        names = zip_longest(*(group.layer_names for group in share))
        return [
            SharedTensor(size * blocks, [name for name in shared if name is not None])
            for size, shared in zip(self.slots(share), names, strict=True)
        ]


class Caught(NamedTuple):
    """What must catch a planner, alone, in so many scenarios."""

    surface: str
    invariant: str
    symptom: str
    scenarios: int = 100


def target_of(make: Callable[[], Planner] = Planner, uri: str = "engine") -> Target:
    """A target that is such a planner."""
    planner = make()
    return adapt(planner.interface(), planner.utils(), uri, "0")
