"""Page-size arithmetic, and the dialect of a target.

A page is one block of one layer. How many bytes it takes follows from the
spec's fields by rules that releases have changed; `PageRules` names each rule
that has differed, and a target's adapter finds out by probing the real
classes which of them hold. Source: `page_size_bytes` of the spec classes in
`vllm/v1/kv_cache_interface.py`, 0.20.0 to 0.28.0; the live tests compare this
module with those classes field by field.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from kvfuzz.catalogue import Catalogue, common_catalogue, lacks
from kvfuzz.specs import (
    DTYPE_BYTES,
    KINDS,
    QUANT_MODES,
    LayerSpec,
    OpenSpec,
    Scenario,
    SlidingWindowMLASpec,
)

#: Bytes that DeepSeek V4 stores of one token under fp8_ds_mla: 448 of the
#: rotation-free part, 128 of the rotary part and 8 of scales.
DS_V4_RECORD_BYTES: Final = 584
#: The same for earlier DeepSeek models: 512 + 128 + 16 of scales.
DS_V3_RECORD_BYTES: Final = 656

#: Kind -> field -> default; a field without one has a value of its own there.
DEFAULTS: Final = {
    kind: {field.name: field.default for field in msgspec.structs.fields(cls)}
    for kind, cls in KINDS.items()
}

PER_TOKEN_HEAD_MODES: Final = frozenset(
    {"int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"}
)


class PageRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the page-size rules that have changed a target follows.

    The defaults are those of 0.28, where the attention backend publishes
    what it packs (`state_content_bytes`, `num_head_slots`).

    Attributes:
        value_head: The page also holds `head_size_v` elements a head.
        ds_mla_records: A spec of format fp8_ds_mla has fixed records a token.
        v4_windows_are_records: A DeepSeek V4 sliding window has them whatever
            its format (0.20 to 0.22).
        per_token_head_scales: Two float32 scales a token and head are added
            to a page in a per-token-head mode.
        int4_packs_mla: INT4_PER_TOKEN_HEAD halves the head of a full MLA layer.
    """

    value_head: bool = True
    ds_mla_records: bool = False
    v4_windows_are_records: bool = False
    per_token_head_scales: bool = False
    int4_packs_mla: bool = False


@lru_cache(maxsize=256)
def _lacking(kind: str, names: frozenset[str]) -> tuple[tuple[str, Any], ...]:
    """The fields of a kind that are none of `names`, each with its default."""
    return tuple((name, value) for name, value in DEFAULTS[kind].items() if name not in names)


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """What a target can be told: its page rules, fields and names.

    Attributes:
        rules: Page-size rules that hold.
        fields: Kind -> names of the fields that its spec class has. A kind
            that is missing does not exist there.
        quant_modes: Names of the quantisation modes it knows.
        catalogue: What open specs it can be told.
        layouts: Names of the physical layouts that it can be told, the
            plain one first.
        facts: What its plan for an engine says of itself by yes or no.
        functions: Function of an engine's planner -> the module that it is
            in, of those that it has.
    """

    rules: PageRules
    fields: dict[str, frozenset[str]]
    quant_modes: frozenset[str]
    catalogue: Catalogue = {}
    layouts: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    functions: dict[str, str] = {}

    def lacks(self, spec: LayerSpec) -> str | None:
        """Why `spec` cannot be expressed in this dialect, or None if it can."""
        if isinstance(spec, OpenSpec):
            return lacks(self.catalogue, spec)
        kind = spec.kind
        names = self.fields.get(kind)
        if names is None:
            return f"no spec class for the kind {kind}"
        for name, default in _lacking(kind, names):
            if getattr(spec, name) != default:
                return f"no field {name} in the spec class of {kind}"
        if spec.kv_quant_mode not in self.quant_modes:
            return f"no quantisation mode {spec.kv_quant_mode}"
        return None


def common_dialect(one: Dialect, other: Dialect) -> Dialect:
    """What both targets can be told; page rules are those of the first."""
    return Dialect(
        rules=one.rules,
        fields={
            kind: names & other.fields[kind]
            for kind, names in one.fields.items()
            if kind in other.fields
        },
        quant_modes=one.quant_modes & other.quant_modes,
        catalogue=common_catalogue(one.catalogue, other.catalogue),
        layouts=tuple(layout for layout in one.layouts if layout in other.layouts),
        facts=tuple(fact for fact in one.facts if fact in other.facts),
    )


def _fields(dialect: Dialect) -> dict[str, frozenset[str]]:
    """Kind -> its fields, in typed and in open specs."""
    had = dict(dialect.fields)
    for kind, form in dialect.catalogue.items():
        had[kind] = had.get(kind, frozenset()) | form.fields.keys()
    return had


def beyond(dialect: Dialect, common: Dialect) -> tuple[str, ...]:
    """What only `dialect` has, of two with so much in common: kinds, "kind.field", layouts."""
    shared = _fields(common)
    left = []
    for kind, names in _fields(dialect).items():
        if kind not in shared:
            left.append(kind)
        else:
            left += [f"{kind}.{name}" for name in sorted(names - shared[kind])]
    return (*left, *(f"layout {name}" for name in dialect.layouts if name not in common.layouts))


#: The dialect of the reference planner: every field, the rules of 0.28.
FULL_DIALECT: Final = Dialect(
    rules=PageRules(),
    fields={kind: frozenset(cls.__struct_fields__) for kind, cls in KINDS.items()},
    quant_modes=frozenset(QUANT_MODES),
)


def state_bytes(spec: LayerSpec, rules: PageRules) -> int:
    """Bytes of one stored state of `spec` over all its heads, before padding."""
    slots = spec.num_kv_heads if spec.num_head_slots is None else spec.num_head_slots
    if spec.state_content_bytes is not None:
        return slots * spec.state_content_bytes
    elements = spec.head_size
    int4 = spec.kv_quant_mode == "int4_per_token_head"
    if rules.int4_packs_mla and int4 and not isinstance(spec, SlidingWindowMLASpec):
        elements //= 2
    if rules.value_head:
        elements += spec.head_size_v or 0
    return slots * elements * DTYPE_BYTES[spec.dtype]


def real_page_size_bytes(spec: LayerSpec, rules: PageRules) -> int:
    """Bytes of the data in one page of `spec`, without scales and padding."""
    states = spec.block_size // spec.compress_ratio
    v4 = spec.model_version == "deepseek_v4"
    if rules.ds_mla_records and spec.cache_dtype_str == "fp8_ds_mla":
        if v4:
            return states * DS_V4_RECORD_BYTES
        if not isinstance(spec, SlidingWindowMLASpec):
            return spec.block_size * DS_V3_RECORD_BYTES
    if rules.v4_windows_are_records and v4 and isinstance(spec, SlidingWindowMLASpec):
        return states * DS_V4_RECORD_BYTES
    return states * state_bytes(spec, rules)


def unpadded_page_size_bytes(spec: LayerSpec, rules: PageRules) -> int:
    """Bytes that one page of `spec` needs at least: its data and its scales."""
    unpadded = real_page_size_bytes(spec, rules)
    if rules.per_token_head_scales and spec.kv_quant_mode in PER_TOKEN_HEAD_MODES:
        unpadded += 2 * spec.block_size * spec.num_kv_heads * DTYPE_BYTES["float32"]
    return unpadded


def page_size_bytes(spec: LayerSpec, rules: PageRules) -> int:
    """Bytes of one page of `spec`: what a planner must compare.

    Alignment, where it changes anything, replaces the padding asked for.

    Raises:
        ValueError: The padded size is below what the page needs; no release
            takes such a spec.
    """
    padded = spec.page_size_padded
    if spec.alignment is not None:
        real = real_page_size_bytes(spec, rules)
        aligned = -(-real // spec.alignment) * spec.alignment
        if aligned != real:
            padded = aligned
    unpadded = unpadded_page_size_bytes(spec, rules)
    if padded is None:
        return unpadded
    if padded < unpadded:
        raise ValueError(f"a page padded to {padded} bytes cannot hold its {unpadded} bytes")
    return padded


def mix_page_sizes(scenario: Scenario, rules: PageRules) -> dict[str, int]:
    """Layer name -> page size in bytes, for every layer of the mix."""
    return {name: page_size_bytes(spec, rules) for name, spec in scenario}
