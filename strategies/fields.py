"""Fields beyond the plain ones: what sets each, and what keeps them together valid.

A plain spec has a block size, heads, a head size, a dtype and a window; every
other field is at its default. A `Change` sets some of the others. Two kinds
are kept apart: `EXTRAS` set a field because models or backends do, and
`MISSES` make a page a little larger or smaller than it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from kvfuzz.pages import (
    DS_V3_RECORD_BYTES,
    DS_V4_RECORD_BYTES,
    PER_TOKEN_HEAD_MODES,
    Dialect,
    PageRules,
    page_size_bytes,
)
from kvfuzz.specs import DTYPE_BYTES, KINDS, QUANT_MODES, LayerSpec
from kvfuzz.strategies.constraints import FORMAT_DTYPES, MODE_DTYPES, V4_RATIOS

#: A spec's fields on the way to becoming one.
Fields = dict[str, Any]


class Change(msgspec.Struct, frozen=True):
    """One way to set fields.

    Attributes:
        names: Fields that a spec class must have for it.
        apply: Sets them. Its second argument is the plain page in bytes.
        mode: Quantisation mode that the dialect must know.
        needs: Whether it does what it should under the dialect's page rules.
    """

    names: tuple[str, ...]
    apply: Callable[[Fields, int], None]
    mode: str = "none"
    needs: Callable[[PageRules], bool] = lambda _: True


def _set(**values: Any) -> Callable[[Fields, int], None]:
    return lambda fields, _: fields.update(values)


def _one_byte(fields: Fields, dtype: str) -> None:
    """Another dtype of one byte, in a page of the same size."""
    fields["head_size"] *= DTYPE_BYTES[fields["dtype"]]
    fields["dtype"] = dtype


def _quantise(mode: str) -> Callable[[Fields, int], None]:
    def apply(fields: Fields, _: int) -> None:
        if fields["dtype"] not in MODE_DTYPES[mode]:
            _one_byte(fields, MODE_DTYPES[mode][0])
        fields["kv_quant_mode"] = mode

    return apply


_FORMAT_OF: Final = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "uint8": "fp8",
    "int8": "int8_per_token_head",
    "float8_e4m3fn": "fp8_inc",
    "float8_e5m2": "fp8_e5m2",
}


def _format(fields: Fields, _: int) -> None:
    fields["cache_dtype_str"] = _FORMAT_OF.get(fields["dtype"], "auto")


def _compress(ratio: int) -> Callable[[Fields, int], None]:
    def apply(fields: Fields, _: int) -> None:
        if "compress_ratio" not in fields:
            fields["block_size"] *= ratio
            fields["compress_ratio"] = ratio

    return apply


def _records(version: str | None, head: int, content: int) -> Callable[[Fields, int], None]:
    def apply(fields: Fields, _: int) -> None:
        fields.update(num_kv_heads=1, head_size=head, dtype="uint8", cache_dtype_str="fp8_ds_mla")
        fields["model_version"] = version
        # Dropped again by `finish` where the spec class has no such field:
        # there the rule `ds_mla_records` knows the size.
        fields["state_content_bytes"] = content

    return apply


def _slots(fields: Fields, _: int) -> None:
    fields.update(num_head_slots=fields["num_kv_heads"], num_kv_heads=1)


def _twice_the_slots(fields: Fields, _: int) -> None:
    fields["num_head_slots"] = 2 * fields["num_kv_heads"]


def _content(extra: int) -> Callable[[Fields, int], None]:
    def apply(fields: Fields, _: int) -> None:
        content = fields["head_size"] * DTYPE_BYTES[fields["dtype"]]
        fields["state_content_bytes"] = content + extra

    return apply


def _value_part(fields: Fields, _: int) -> None:
    fields["head_size_v"] = fields["head_size"] // 2
    fields["head_size"] -= fields["head_size_v"]


def _pad(factor: int, more: int) -> Callable[[Fields, int], None]:
    def apply(fields: Fields, page: int) -> None:
        fields["page_size_padded"] = page * factor + more

    return apply


#: Fields that models and backends set, simplest first.
EXTRAS: Final = (
    Change(("indexes_kv_by_block_stride",), _set(indexes_kv_by_block_stride=True)),
    Change(("extra_retained_tokens",), _set(extra_retained_tokens=1)),
    Change(("extra_retained_tokens",), _set(extra_retained_tokens=16)),
    Change(("non_causal",), _set(non_causal=True)),
    Change(("non_causal_multi_token_decode",), _set(non_causal_multi_token_decode=True)),
    # The two below are fields of a full MLA layer only; `changes_of` sees to it.
    Change(("attention_chunk_size", "sliding_window"), _set(sliding_window=128)),
    Change(("attention_chunk_size",), _set(attention_chunk_size=8192)),
    Change(("page_size_padded",), _pad(1, 0)),
    Change(("page_size_padded",), _pad(2, 0)),
    Change(("alignment",), _set(alignment=16)),
    Change(("alignment",), _set(alignment=576)),
    Change(("alignment",), _set(alignment=512)),
    Change(("compress_ratio",), _compress(4)),
    Change(("compress_ratio",), _compress(128)),
    Change(("compress_ratio",), _compress(2)),
    Change(("model_version",), _set(model_version="deepseek_v4")),
    Change(("cache_dtype_str",), _set(cache_dtype_str="auto")),
    Change(("cache_dtype_str",), _format),
    Change(("num_head_slots",), _slots),
    Change(("num_head_slots",), _twice_the_slots),
    Change(("state_content_bytes",), _content(0)),
    Change(("state_content_bytes",), _content(8)),
    Change(("head_size_v",), _set(head_size_v=0)),
    Change(("head_size_v",), _value_part),
    Change(("cache_dtype_str", "model_version"), _records("deepseek_v4", 512, DS_V4_RECORD_BYTES)),
    Change(("cache_dtype_str", "model_version"), _records(None, 576, DS_V3_RECORD_BYTES)),
    *(Change(("kv_quant_mode",), _quantise(mode), mode) for mode in QUANT_MODES[1:]),
)


def _add(name: str, more: int) -> Callable[[Fields, int], None]:
    def apply(fields: Fields, _: int) -> None:
        fields[name] = fields[name] + more or 2

    return apply


def _misalign(fields: Fields, page: int) -> None:
    fields["alignment"] = next((a for a in (16, 96, 576, 512, 7, 11) if page % a), page + 1)


def _extra_slot(fields: Fields, _: int) -> None:
    fields["num_head_slots"] = fields["num_kv_heads"] + 1


#: What makes a plain page differ a little, simplest first. Each changes it.
MISSES: Final = (
    Change((), _add("head_size", 1)),
    Change((), _add("head_size", -1)),
    Change(("page_size_padded",), _pad(1, 1)),
    Change((), _add("block_size", 1)),
    Change(("page_size_padded",), _pad(1, 64)),
    Change((), _add("num_kv_heads", 1)),
    Change(("alignment",), _misalign),
    Change(("state_content_bytes",), _content(1)),
    Change(("num_head_slots",), _extra_slot),
    Change(("head_size_v",), _set(head_size_v=1), needs=lambda rules: rules.value_head),
    *(
        Change(("kv_quant_mode",), _quantise(mode), mode, lambda rules: rules.per_token_head_scales)
        for mode in sorted(PER_TOKEN_HEAD_MODES - {"int4_per_token_head"})
    ),
)


def changes_of(changes: tuple[Change, ...], kind: str, dialect: Dialect) -> tuple[Change, ...]:
    """Those of `changes` that specs of a kind can have in a dialect."""
    names = dialect.fields.get(kind, frozenset())
    own = names & frozenset(KINDS[kind].__struct_fields__)
    return tuple(
        change
        for change in changes
        if own.issuperset(change.names)
        and change.mode in dialect.quant_modes
        and change.needs(dialect.rules)
    )


def _reconcile(fields: Fields, names: frozenset[str]) -> None:
    """Take back what two changes together made invalid; the later one stays.

    The rows of `constraints` that two changes can break, in its order; the
    page is `finish`'s business.
    """
    if "state_content_bytes" not in names:
        fields.pop("state_content_bytes", None)
    ratio = fields.get("compress_ratio", 1)
    if ratio not in V4_RATIOS:
        fields.pop("model_version", None)
    dtype = fields["dtype"]
    cache = fields.get("cache_dtype_str")
    if cache is not None:
        dtypes = FORMAT_DTYPES[cache]
        if dtypes is not None and dtype not in dtypes:
            del fields["cache_dtype_str"]
    mode = fields.get("kv_quant_mode", "none")
    if dtype not in MODE_DTYPES[mode]:
        del fields["kv_quant_mode"]
    elif mode == "int4_per_token_head":
        fields["head_size"] += fields["head_size"] % 2
    if "attention_chunk_size" in fields and "sliding_window" in fields:
        del fields["attention_chunk_size"]


def finish(
    kind: str, fields: Fields, dialect: Dialect, *, page: int | None = None
) -> LayerSpec | None:
    """The valid spec that `fields` come to, or None if there is none.

    Args:
        kind: Kind of the spec.
        fields: Its fields; changed in place.
        dialect: What must be able to express it.
        page: Bytes that its page must have, by padding if need be, or None.
    """
    names = dialect.fields[kind]
    _reconcile(fields, names)
    cls = KINDS[kind]
    try:
        spec = cls(**fields)
        size = page_size_bytes(spec, dialect.rules)
        if page is None or size == page:
            return spec
        if "page_size_padded" not in names:
            return None
        spec = cls(**{**fields, "page_size_padded": page})
        return spec if page_size_bytes(spec, dialect.rules) == page else None
    except ValueError:  # the page is too small for the data
        return None
