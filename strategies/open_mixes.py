"""Mixes of one open spec, for surfaces that are asked about a class and its fields.

The required fields have plain values; of the others none, one or two are set,
each to what is not its default. What is set is picked from the catalogue, not
from a list of names, so that a new field needs nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvfuzz.catalogue import Catalogue, FieldForm
from kvfuzz.specs import Scenario, Value, open_spec
from kvfuzz.strategies.choices import Choose, pick
from kvfuzz.strategies.factors import DTYPES
from kvfuzz.strategies.layers import named

#: Values of fields by name, simplest first; of a field that is not here, _INTS.
_KNOWN: Final[dict[str, tuple[Value, ...]]] = {
    "block_size": (16, 64, 128, 256, 8, 1, 544),
    "num_kv_heads": (1, 2, 4, 8),
    "head_size": (64, 128, 576, 512, 192, 132),
    "sliding_window": (128, 1024, 8, 4096, 1),
    "attention_chunk_size": (8192, 128),
    "alignment": (576, 512, 16),
    "block_stride_alignment": (512, 4096),
    "compress_ratio": (4, 128),
    "tokens_per_state": (4, 128),
    "page_size": (4096, 73728),
    "page_size_padded": (1 << 24, 1 << 21),
    "state_content_bytes": (584, 656),
    "cache_dtype_str": ("auto", "fp8_ds_mla", "bfloat16"),
    "model_version": ("deepseek_v4",),
    "mamba_cache_mode": ("align", "all"),
    "shapes": (((16, 16),), ((4, 64), (8, 16, 16)), ((3,),)),
    "dtypes": (("float32",), ("bfloat16", "float32"), ("float16",)),
}
_INTS: Final = (1, 2, 4, 16, 64, 256, 1024)
_TEXTS: Final = ("a", "other")
#: Fields that say how many tokens one stored state stands for.
_COMPRESSED: Final = ("compress_ratio", "tokens_per_state")
#: Fields beyond the required ones: mostly one, so that each is seen for itself.
_CHANGED: Final = (0, 1, 1, 1, 2, 2)
#: Copies of the spec, a layer each.
_LAYERS: Final = (1, 2, 2, 3)


def values_of(name: str, form: FieldForm) -> tuple[Value, ...]:
    """What to set a field to, simplest first."""
    if form.type == "dtype":
        return DTYPES
    if form.type == "bool":
        return (False, True)
    if form.type == "name":
        return form.names
    if form.type == "unknown":
        return ()
    return _KNOWN.get(name) or (_TEXTS if form.type == "text" else _INTS)


def changes_of(forms: Mapping[str, FieldForm]) -> list[tuple[str, tuple[Value, ...]]]:
    """The fields that need not be set, each with the values that are not its default."""
    found = []
    for name, form in forms.items():
        values = tuple(value for value in values_of(name, form) if value != form.default)
        if values and not form.required:
            found.append((name, values))
    return found


def one_dtype_a_state(fields: dict[str, Any]) -> None:
    """Make the dtypes of a recurrent layer as many as its states."""
    if "shapes" in fields and "dtypes" in fields:
        dtypes = fields["dtypes"]
        fields["dtypes"] = tuple(dtypes[i % len(dtypes)] for i in range(len(fields["shapes"])))


def whole_states(fields: dict[str, Any]) -> None:
    """Make a block hold whole states, each of which stands for so many tokens."""
    states = max(fields.get(name) or 1 for name in _COMPRESSED)
    if states > 1 and "block_size" in fields:
        fields["block_size"] = states * -(-fields["block_size"] // states)


def build_copies(choose: Choose, *, catalogue: Catalogue) -> Scenario:
    """Layers of one spec, of any kind in the catalogue.

    Args:
        choose: The source.
        catalogue: What a target can be told; one kind at least.
    """
    kinds = list(catalogue)
    kind = pick(choose, kinds)
    forms = catalogue[kind].fields
    count = pick(choose, _LAYERS)
    changes = changes_of(forms)
    fields: dict[str, Value] = {}
    for _ in range(pick(choose, _CHANGED)):
        if changes:
            name, values = pick(choose, changes)
            fields[name] = pick(choose, values)
    for name, form in forms.items():
        if form.required:
            fields[name] = pick(choose, values_of(name, form))
    one_dtype_a_state(fields)
    spec = open_spec(kind, fields)
    return Scenario(tuple(named([spec] * count)))
