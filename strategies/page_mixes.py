"""One layer of any open spec, for the surface that asks for its page.

What makes a page is varied more than for `merge`: the sizes of the required
fields always, of the others up to three, picked from the catalogue. What is
drawn is sound: blocks hold whole states, a padded page holds what is padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Final

from kvfuzz.catalogue import Catalogue, FieldForm
from kvfuzz.specs import DTYPE_BYTES, Scenario, Value, open_spec
from kvfuzz.strategies.choices import Choose, pick
from kvfuzz.strategies.open_mixes import changes_of, one_dtype_a_state, values_of, whole_states

#: Values of fields that make a page, simplest first; of others, those of `open_mixes`.
_SIZES: Final[dict[str, tuple[Value, ...]]] = {
    "block_size": (16, 64, 128, 256, 8, 1, 544, 48),
    "num_kv_heads": (1, 2, 4, 8, 3),
    "head_size": (64, 128, 576, 512, 192, 132, 256, 80),
    "head_size_v": (64, 128, 512, 32, 192),
    "num_head_slots": (1, 2, 4, 16),
    "state_content_bytes": (584, 656, 132, 4096),
    "alignment": (576, 512, 16, 4096, 8192, 32768),
    "compress_ratio": (4, 128, 2),
    "tokens_per_state": (4, 128, 2),
    "page_size": (4096, 73728, 1),
    "shapes": (
        ((16, 16),),
        ((4, 64), (8, 16, 16)),
        ((3,),),
        ((3, 1024), (32, 128, 128)),
        ((1,), (2,), (4, 4)),
    ),
    "dtypes": (
        ("float32",),
        ("bfloat16", "float32"),
        ("float16",),
        ("uint8", "bfloat16", "float32"),
    ),
}
#: Fields that change a page, drawn more often than others.
_PAGE: Final = frozenset(
    {*_SIZES, "page_size_padded", "kv_quant_mode", "cache_dtype_str", "model_version"}
)
#: Fields beyond the required ones.
_CHANGED: Final = (0, 1, 1, 1, 2, 2, 3)
#: What a page is padded by, in eighths of what holds its data for certain.
_PADDINGS: Final = (0, 1, 8, 24)
#: Bytes of the largest record of a token that a cache format has.
_RECORD: Final = 656
#: Bytes of two float32 scales.
_SCALES: Final = 8


def _values(name: str, form: FieldForm, otherwise: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(value for value in _SIZES.get(name, otherwise) if value != form.default)


def build_page(choose: Choose, *, catalogue: Catalogue) -> Scenario:
    """One layer, of any kind in the catalogue.

    Args:
        choose: The source.
        catalogue: What a target can be told; one kind at least.
    """
    kinds = list(catalogue)
    kind = pick(choose, kinds)
    forms = catalogue[kind].fields
    every = changes_of(forms)
    few = [change for change in every if change[0] in _PAGE]
    fields: dict[str, Value] = {}
    for _ in range(pick(choose, _CHANGED)):
        changes = few if few and choose(0, 2) else every
        if changes:
            name, values = pick(choose, changes)
            fields[name] = pick(choose, _values(name, forms[name], values))
    for name, form in forms.items():
        if form.required:
            fields[name] = pick(choose, _values(name, form, values_of(name, form)))
    _make_sound(choose, fields)
    return Scenario((("layers.0", open_spec(kind, fields)),))


def _make_sound(choose: Choose, fields: dict[str, Any]) -> None:
    """Make the fields agree with each other."""
    one_dtype_a_state(fields)
    whole_states(fields)
    if "page_size_padded" in fields:
        enough = _enough(fields)
        padded = enough + enough * pick(choose, _PADDINGS) // 8
        alignment = fields.get("alignment") or 1
        fields["page_size_padded"] = alignment * -(-padded // alignment)


def _enough(fields: Mapping[str, Any]) -> int:
    """Bytes that hold the data of a page, by whatever rule."""
    if "shapes" in fields and "dtypes" in fields:
        sizes = [DTYPE_BYTES[dtype] for dtype in fields["dtypes"]]
        return sum(map(int.__mul__, map(prod, fields["shapes"]), sizes)) or 1
    head = fields.get("head_size") or 0
    element = DTYPE_BYTES[fields.get("dtype", "float32")]
    content = max(
        (head + (fields.get("head_size_v") or head)) * element,
        fields.get("state_content_bytes") or 0,
        fields.get("tq_slot_size") or 0,
        _RECORD,
    )
    slots = max(fields.get("num_kv_heads") or 1, fields.get("num_head_slots") or 1)
    return int(fields.get("block_size") or 1) * slots * (content + _SCALES)
