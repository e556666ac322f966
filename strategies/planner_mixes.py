"""Scenarios for a whole planner: layers of one to five specs, and the engine they are for.

A geometry is drawn first, and each spec's page as a ratio of it, so that
pages that are equal, multiples, near misses and coprime are all common. Specs
are of any kind that a planner's catalogue has; now and then fields are set
beyond the required ones, picked from the catalogue and not from a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from kvfuzz.catalogue import Catalogue, FieldForm
from kvfuzz.planner_config import PLAIN_CONFIG, MambaCacheMode, PlannerConfig
from kvfuzz.specs import DTYPE_BYTES, OpenSpec, Scenario, Value, open_spec
from kvfuzz.strategies.choices import Choose, pick
from kvfuzz.strategies.layers import MOST_LAYERS, named
from kvfuzz.strategies.models import build_model
from kvfuzz.strategies.open_mixes import changes_of, values_of, whole_states

#: Kinds of which no layer hands a spec to a planner: an encoder-only layer has
#: no cache, and the planner itself makes those of HiSparse.
_NOT_GIVEN: Final = ("encoder_only_attention", "hi_sparse_hot", "hi_sparse_resident")
#: Kinds that most models are made of, simplest first; drawn more often than others.
_COMMON: Final = (
    "full_attention",
    "sliding_window",
    "mla_attention",
    "mamba",
    "sliding_window_mla",
    "chunked_local_attention",
    "hidden_state_cache",
)

#: How many distinct specs a mix has.
_SPECS: Final = (1, 2, 2, 2, 3, 3, 3, 4, 4, 5)
#: Layers of one spec: uneven on purpose, from one odd layer to a whole model.
_COUNTS: Final = (1, 1, 2, 2, 3, 4, 5, 6, 8, 10, 12, 20, 30)
_BLOCKS: Final = (16, 16, 64, 128, 32, 256, 1, 8, 544)
_HEADS: Final = (1, 8, 4, 2, 16)
_SIZES: Final = (64, 128, 256, 96, 80, 192)
_DTYPES: Final = ("bfloat16", "float16", "uint8", "float32", "float8_e4m3fn")
_WINDOWS: Final = (128, 1024, 512, 4096, 8)
_CHUNKS: Final = (8192, 128)
#: A spec's page by that of the geometry, as (times, through).
_RATIOS: Final = (
    (1, 1),
    (1, 1),
    (1, 1),
    (2, 1),
    (1, 2),
    (4, 1),
    (1, 1),
    (2, 1),
    (1, 4),
    (1, 1),
    (2, 1),
    (1, 2),
    (1, 1),
    (3, 1),
    (3, 4),
    (3, 2),
    (97, 128),
)
#: What a page is padded by, in eighths of the geometry's.
_PADDINGS: Final = (0, 1, 2, 8, 24)
#: Fields beyond the required ones that a spec has.
_CHANGED: Final = (0, 0, 0, 0, 0, 0, 0, 1, 1, 2)
#: Bytes of a state layer that is like none of the geometry.
_STATES: Final = ((16, 16), (3, 1024), (32, 128, 128), (8, 64, 128), (1,))

_STATE_MODES: Final[tuple[MambaCacheMode, ...]] = (*("none",) * 12, *("align",) * 7, "all")
#: Ranks that share a context.
_SHARING: Final = (1, 1, 1, 1, 1, 2, 4)
_LENGTHS: Final = (4096, 256, 65536, 1024, 131072, 17, 128, 1)
_BATCHES: Final = (2048, 8192, 64, 1)
#: Blocks that are set, whatever one longest request takes.
_OVERRIDES: Final = (100_000, 1000, 10_000, 4, 100_000, 1, 1000, 0)
#: Blocks beyond those, and bytes beyond that; or blocks that lack where a length is fitted.
_SPARE_BLOCKS: Final = (0, 1, 0, 2, 100, 0, -1)
_LACKING_BLOCKS: Final = (0, 1, 0, 2, 10, 0, 1)
_SPARE_BYTES: Final = (0, 0, 0, 1, -1)


class _Geometry(msgspec.Struct, frozen=True):
    """What the specs of a mix are built around: tokens, heads, elements a head, dtype."""

    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: str

    @property
    def page(self) -> int:
        """Bytes of a page of keys and values."""
        element = DTYPE_BYTES[self.dtype]
        return 2 * self.block_size * self.num_kv_heads * self.head_size * element


@lru_cache(maxsize=16)
def _kinds(names: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds that a layer can have, common ones first and thrice."""
    given = [name for name in names if name not in _NOT_GIVEN]
    common = [name for name in _COMMON if name in given]
    return (*common, *given, *common, *common)


def _geometry(choose: Choose) -> _Geometry:
    return _Geometry(
        pick(choose, _BLOCKS),
        pick(choose, _HEADS),
        pick(choose, _SIZES),
        pick(choose, _DTYPES),
    )


def _sized(choose: Choose, kind: str, base: _Geometry) -> dict[str, Value]:
    """The fields of a spec that make its page, by a ratio to the geometry's."""
    times, through = pick(choose, _RATIOS)
    where = choose(0, 2)
    block, heads, size = base.block_size, base.num_kv_heads, base.head_size
    if "mla" in kind:  # one vector a token, where others have a key and a value
        like = 2 * heads * size
        heads, size = 1, (like, 576, 512)[max(0, choose(0, 8) - 6)]
    if where == 0 and block * times % through == 0:
        block = block * times // through
    elif where == 1 and heads * times % through == 0:
        heads = heads * times // through
    else:
        size = max(1, size * times // through)
    return {"block_size": block, "num_kv_heads": heads, "head_size": size, "dtype": base.dtype}


def _state(choose: Choose, base: _Geometry) -> dict[str, Value]:
    """The fields of a state layer: one state, or two, whose bytes are like a page."""
    times, through = pick(choose, _RATIOS)
    # About every third is like no page of attention, as those of models without care for it.
    unlike = choose(0, 3 * len(_STATES)) - 2 * len(_STATES) - 1
    element = DTYPE_BYTES[base.dtype]
    shape = _STATES[unlike] if unlike >= 0 else (max(1, base.page * times // through // element),)
    shapes: tuple[Value, ...] = (shape,)
    if choose(0, 3) == 3:
        shapes = (shape, (4, 16))
    dtypes = (base.dtype,) * len(shapes)
    return {"block_size": base.block_size, "shapes": shapes, "dtypes": dtypes}  # type: ignore[dict-item]


def _spec(choose: Choose, catalogue: Catalogue, base: _Geometry) -> OpenSpec:
    """A spec of any kind around the geometry."""
    kinds = _kinds(tuple(catalogue))
    kind = pick(choose, kinds)
    forms = catalogue[kind].fields
    fields = _state(choose, base) if "shapes" in forms else _sized(choose, kind, base)
    for name, form in forms.items():
        if form.required and name not in fields:
            fields[name] = _required(choose, name, form)
    for _ in range(pick(choose, _CHANGED)):
        changes = _changes(forms)
        if changes:
            name, values = pick(choose, changes)
            fields[name] = pick(choose, values)
            if name == "page_size_padded":
                fields[name] = base.page + pick(choose, _PADDINGS) * base.page // 8
    whole_states(fields)
    return open_spec(kind, {name: value for name, value in fields.items() if name in forms})


def _required(choose: Choose, name: str, form: FieldForm) -> Value:
    if name == "sliding_window":
        return pick(choose, _WINDOWS)
    if name == "attention_chunk_size":
        return pick(choose, _CHUNKS)
    return pick(choose, values_of(name, form))


# By identity: a catalogue is one object for as long as it is searched with.
_CHANGES: dict[int, tuple[Mapping[str, FieldForm], list[tuple[str, tuple[Value, ...]]]]] = {}


def _changes(forms: Mapping[str, FieldForm]) -> list[tuple[str, tuple[Value, ...]]]:
    """The fields of a kind that may be set; marks, which are no part of a spec, are not."""
    kept = _CHANGES.get(id(forms))
    if kept is None:  # the forms are kept with it, so that no other ones get their id
        found = [change for change in changes_of(forms) if not forms[change[0]].mark]
        kept = _CHANGES[id(forms)] = forms, found
    return kept[1]


def _config(choose: Choose, layouts: tuple[str, ...], *, shared_context: bool) -> PlannerConfig:
    """Settings that decide how layers are grouped and what they cost.

    An engine has no context parallelism if a layer has a window or chunks.
    """
    if choose(0, 3) == 0:
        return PLAIN_CONFIG
    layout = choose(0, 2 * len(layouts)) if layouts else 0
    sharing = _SHARING if shared_context else _SHARING[:1]
    return PlannerConfig(
        hybrid_manager=choose(0, 7) != 7,
        layout=layouts[layout - 1] if 0 < layout <= len(layouts) else None,
        max_model_len=pick(choose, _LENGTHS),
        max_num_batched_tokens=pick(choose, _BATCHES),
        decode_context_parallel_size=pick(choose, sharing),
        concurrent_batches=choose(1, 2),
        mamba_cache_mode=pick(choose, _STATE_MODES),
    )


def _memory(choose: Choose, config: PlannerConfig) -> PlannerConfig:
    """The settings with memory at an edge, a number of blocks set, or memory in plenty."""
    auto_fit = choose(0, 4) == 4
    match choose(0, 5):
        case 0 | 1 | 2:
            return msgspec.structs.replace(config, auto_fit=auto_fit) if auto_fit else config
        case 3 | 4:
            blocks = pick(choose, _LACKING_BLOCKS if auto_fit else _SPARE_BLOCKS)
            return msgspec.structs.replace(
                config,
                auto_fit=auto_fit,
                # Auto-fit has something to do where there is less than the longest request takes.
                spare_blocks=-blocks if auto_fit else blocks,
                spare_bytes=pick(choose, _SPARE_BYTES),
            )
        case _:
            override = pick(choose, _OVERRIDES)
            return msgspec.structs.replace(
                config, auto_fit=auto_fit, num_gpu_blocks_override=override
            )


def build_planner_mix(
    choose: Choose,
    *,
    catalogue: Catalogue,
    layouts: tuple[str, ...] = (),
    memory: bool = False,
    max_layers: int = MOST_LAYERS,
) -> Scenario:
    """Layers of one to five specs, and the engine that they are planned for.

    Args:
        choose: The source.
        catalogue: What a target can be told; one kind at least.
        layouts: The physical layouts that it can be told.
        memory: Whether to draw memory, ranks and a number of blocks, too.
        max_layers: The most layers.
    """
    if choose(0, 4) == 4:
        model = build_model(choose, catalogue=catalogue)
        return _planned(
            choose, list(model.specs)[:max_layers], model.drafts, layouts, memory=memory
        )
    base = _geometry(choose)
    layers: list[OpenSpec] = []
    number = pick(choose, _SPECS)
    parts = []
    for _ in range(number):
        spec = _spec(choose, catalogue, base)
        parts.append((spec, pick(choose, _COUNTS)))
    if choose(0, 1) == 0:
        for spec, count in parts:
            layers += [spec] * count
    else:  # by turns, as models have them
        most = max(count for _, count in parts)
        for turn in range(most):
            for spec, count in parts:
                layers += [spec] * ((turn + 1) * count // most - turn * count // most)
    layers = layers[:max_layers]
    drafts = min(len(layers) - 1, choose(1, 3)) if choose(0, 5) == 5 else 0
    return _planned(choose, layers, drafts, layouts, memory=memory)


def _planned(
    choose: Choose,
    layers: Sequence[OpenSpec],
    drafts: int,
    layouts: tuple[str, ...],
    *,
    memory: bool,
) -> Scenario:
    """The scenario of these layers, for an engine that is drawn."""
    # By identity: layers of one spec share it, and to hash it takes longer.
    distinct = {id(spec): spec for spec in layers}.values()
    bounded = any(spec.sliding_window or spec.attention_chunk_size for spec in distinct)
    config = _config(choose, layouts, shared_context=not bounded)
    if drafts > 0:
        config = msgspec.structs.replace(
            config,
            speculative_method=("eagle", "mtp")[choose(0, 1)],
            num_speculative_tokens=choose(1, 3),
        )
    ranks: tuple[int, ...] = ()
    if memory:
        config = _memory(choose, config)
        count = (1, 1, 1, 2, 2, 3, 4)[choose(0, 6)]
        if count > 1:
            ranks = _ranks(choose, len(layers), count)
    return Scenario(tuple(named(layers)), config, max(drafts, 0), ranks)


def _ranks(choose: Choose, layers: int, count: int) -> tuple[int, ...]:
    """The rank of each layer: runs of layers, as pipelines have them, cut where it falls."""
    # A rank without any layer is rare: a stage of nothing but parts that have no cache.
    least = 0 if choose(0, 9) == 9 else 1
    cuts = sorted(choose(least, max(layers - least, least)) for _ in range(count - 1))
    return tuple(sum(cut <= layer for cut in cuts) for layer in range(layers))
