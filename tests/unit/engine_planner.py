"""A small planner of an engine, formed as upstream's: right, or wrong as `BROKEN` says."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

INTERFACE = """
from __future__ import annotations

import torch
from dataclasses import dataclass
from enum import Enum


class KVCacheLayout(Enum):
    LBHNC = 1
    BLHNC = 2


class KVCacheSpecKind(Enum):
    FULL = 1
    UNKNOWN = 2


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    block_size: int

    @property
    def page_size_bytes(self) -> int:
        return self.block_size * self.head_size * 4

    def max_memory_usage_bytes(self, config):
        if BROKEN == "few blocks":
            return self.page_size_bytes
        return -(-config.model_config.max_model_len // self.block_size) * self.page_size_bytes

    def max_num_blocks_per_req(self, config, max_len):
        more = {"narrow": -3, "wide": hasattr(self, "of_many")}.get(BROKEN, 0)
        return -(-max_len // self.block_size) + more


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(KVCacheSpec):
    head_size: int
    dtype: torch.dtype
    causal: bool = True
    is_draft: bool = False


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(FullAttentionSpec):
    sliding_window: int

    def max_memory_usage_bytes(self, config):
        needed = super().max_memory_usage_bytes(config)
        return needed + self.page_size_bytes if BROKEN == "dear window" else needed


def get_kv_cache_spec_kind(spec):
    return KVCacheSpecKind.UNKNOWN if hasattr(spec, "of_many") else KVCacheSpecKind.FULL


BROKEN = ""
"""

PLANNER = """
import dataclasses
from types import SimpleNamespace as Made

BROKEN = ""
CALLS = []


def get_kv_cache_groups(config, specs):
    CALLS.append(1)
    if BROKEN == "crash":
        return {}["x"]
    if BROKEN == "hang":
        return [None for _ in iter(int, 1)]
    if BROKEN == "lacking":
        config.other_config
    if BROKEN == "says nothing":
        raise ValueError("it cannot be done")
    if BROKEN == "says why":
        raise ValueError("lower max_model_len to 17")
    layers = {}
    for name, spec in specs.items():
        layers.setdefault(spec, []).append(name)
    if BROKEN == "order" and [*specs][0] != "layers.0":
        layers = {spec: [name] for name, spec in specs.items()}
    groups = [
        Made(layer_names=names, kv_cache_spec=spec, is_eagle_group=False)
        for spec, names in layers.items()
    ]
    largest = max(spec.page_size_bytes for spec in layers)
    for group in groups if BROKEN != "two pages" else ():
        spec = group.kv_cache_spec
        size = spec.block_size * largest // spec.page_size_bytes
        group.kv_cache_spec = dataclasses.replace(spec, block_size=size)
    if config.speculative_config is not None and BROKEN != "unmarked":
        assert config.speculative_config.use_eagle()
        for group in groups:
            group.is_eagle_group = group.kv_cache_spec.is_draft
    if BROKEN == "lost":
        groups[0].layer_names.pop()
    if BROKEN == "empty":
        groups.append(Made(layer_names=[], kv_cache_spec=groups[0].kv_cache_spec))
    if BROKEN == "impure":
        specs.popitem()
    if BROKEN == "fickle" and len(CALLS) % 2:
        groups.reverse()
    if BROKEN == "odd blocks":
        for group in groups:
            spec = group.kv_cache_spec
            group.kv_cache_spec = dataclasses.replace(spec, block_size=spec.block_size + 1)
    if BROKEN in ("causal", "small page"):
        change = {"causal": False} if BROKEN == "causal" else {"head_size": 1}
        for group in groups:
            group.kv_cache_spec = dataclasses.replace(group.kv_cache_spec, **change)
    if BROKEN == "kind":
        for group in groups:
            window = {**vars(group.kv_cache_spec), "sliding_window": 8}
            group.kv_cache_spec = type(groups[1].kv_cache_spec)(**window)
    if BROKEN in ("one group", "no kind"):
        names = [name for group in groups for name in group.layer_names]
        groups = [Made(layer_names=names, kv_cache_spec=groups[0].kv_cache_spec)]
    if BROKEN in ("no kind", "wide"):
        object.__setattr__(groups[0].kv_cache_spec, "of_many", True)
    if BROKEN == "scattered":
        groups = [
            Made(layer_names=[name], kv_cache_spec=group.kv_cache_spec)
            for group in groups
            for name in group.layer_names
        ]
    if BROKEN == "asserts":
        try:
            assert not groups
        except AssertionError:
            pass
        else:
            groups.reverse()
    if BROKEN == "unreadable":
        groups[0].kv_cache_spec = dataclasses.replace(groups[0].kv_cache_spec, head_size=None)
    return groups


def get_kv_cache_configs(config, ranks, memory, groups=None):
    together = {name: spec for specs in ranks for name, spec in specs.items()}
    if BROKEN == "split" and len(ranks) > 1:
        together = {n: dataclasses.replace(s, causal=False) for n, s in together.items()}
    if BROKEN != "groups are given":
        groups = get_kv_cache_groups(config, together)
    elif groups is None:
        raise ValueError("no_groups were given")
    made = []
    for specs, available in zip(ranks, memory):
        pages = {name: specs[name].page_size_bytes for name in specs}
        blocks = available // sum(pages.values()) if pages else 1 << 40
        made.append([specs, pages, blocks])
    blocks = min(blocks for _, _, blocks in made)
    length = config.model_config.max_model_len
    needed = sum(-(-length // group.kv_cache_spec.block_size) for group in groups)
    fits = blocks - 1 >= needed or BROKEN == "too few"
    if not fits or (BROKEN == "refuses what fits" and memory[0] < 1 << 60):
        raise ValueError("raise gpu_memory_utilization")
    override = config.cache_config.num_gpu_blocks_override
    if override is not None and BROKEN != "no override":
        blocks = override
    blocks += {"too much": 1, "too little": -1}.get(BROKEN, 0)
    if BROKEN == "short":
        config.model_config.max_model_len = 16
    if BROKEN == "needless":
        for group in groups:
            group.kv_cache_spec = dataclasses.replace(group.kv_cache_spec, block_size=1)
    if BROKEN == "many groups":
        groups = groups * 20
    if BROKEN == "impure":
        ranks[0].popitem()
    configs = []
    for number, (specs, pages, _) in enumerate(made):
        places = {name: name for name in specs}
        if BROKEN == "foreign":
            places = together
        tensors = [
            Made(shared_by=[name], size=together[name].page_size_bytes * blocks)
            for name in places
        ]
        if BROKEN == "overlap":
            tensors = [Made(shared_by=[*specs], size=tensors[0].size)]
        if BROKEN == "outside":
            for tensor in tensors:
                tensor.offset = 8
        parts = [
            Made(**{**vars(g), "layer_names": [n for n in g.layer_names if n in specs]})
            for g in groups
        ]
        count = blocks + number if BROKEN == "uneven" else blocks
        configs.append(Made(num_blocks=count, kv_cache_tensors=tensors, kv_cache_groups=parts))
    return configs
"""

GLOBAL = """
def get_global_kv_cache_groups(config, ranks):
    return get_kv_cache_groups(config, {n: s for specs in ranks for n, s in specs.items()})
"""


def load(monkeypatch: pytest.MonkeyPatch, more: str = "") -> tuple[ModuleType, ModuleType]:
    """The modules of its classes and of its functions, in `sys.modules` until the test ends.

    Args:
        monkeypatch: Undoes it.
        more: Further source of the second.
    """
    for name in ("vllm", "vllm.v1", "vllm.v1.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    interface = ModuleType("vllm.v1.kv_cache_interface")
    utils = ModuleType("vllm.v1.core.kv_cache_utils")
    for module, source in ((interface, INTERFACE), (utils, PLANNER + more)):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(source, vars(module))
    return interface, utils


def install(folder: Path, how: str) -> None:
    """Write the modules into the package `vllm` of a folder, wrong as `how` says."""
    core = folder / "vllm" / "v1" / "core"
    core.mkdir(parents=True, exist_ok=True)
    source = PLANNER.replace('BROKEN = ""', f"BROKEN = {how!r}")
    (core.parent / "kv_cache_interface.py").write_text(INTERFACE)
    (core / "kv_cache_utils.py").write_text(source)
