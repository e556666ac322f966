"""Mixes in the shape of published models, and such with one thing changed.

How many times a model's pattern repeats is cut, so that a mix stays small
enough to read. What an engine or its user decides is drawn beside it: how many
ranks share the heads, the block size, the cache's dtype, a draft model, how
states are padded; and one layer may be unlike the others. Each of these is a
choice of its own, of which the lowest answer changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kvfuzz.catalogue import Catalogue, FieldForm
from kvfuzz.specs import DTYPE_BYTES, OpenSpec, Value, open_spec
from kvfuzz.strategies.architectures import ARCHITECTURES, DRAFTS, Architecture, Form
from kvfuzz.strategies.choices import Choose, pick


class Model(msgspec.Struct, frozen=True):
    """What is drawn.

    Attributes:
        name: The architecture's.
        specs: A spec a layer, in order.
        drafts: How many of them, at the end, a draft model owns.
    """

    name: str
    specs: tuple[OpenSpec, ...]
    drafts: int = 0


#: Layers that are wanted; a model with more beside its pattern has more.
_LAYERS: Final = (2, 3, 4, 4, 6, 6, 8, 8, 12, 12, 16, 16, 20, 24, 36, 58)
#: No more than that, so that with a draft model there are 64 at most.
_MOST: Final = 58
_RANKS: Final = (1, 1, 1, 1, 2, 2, 4, 8)
_BLOCKS: Final = (16, 16, 16, 16, 16, 32, 64, 128)
_FP8: Final = "fp8_per_tensor"
#: (the model's dtype, the cache's, how that is quantised).
_BF16: Final = ("bfloat16", "bfloat16", "none")
_DTYPES: Final = (
    *(_BF16,) * 5,
    ("float16", "float16", "none"),
    ("bfloat16", "uint8", _FP8),
    ("bfloat16", "float8_e4m3fn", _FP8),
)
#: None, the model's own, or one of `DRAFTS`.
_WHICH_DRAFT: Final = (*("",) * 5, "own", "own", "full", "window", "hidden")
_DRAFT_LAYERS: Final = (1, 1, 1, 2, 3)
#: States padded to the attention page and of its blocks, of one block a request, or as they are.
_PADDINGS: Final = ("align", "align", "align", "none", "")
_A_REQUEST: Final = 32768
#: Blocks of MLA beside states are a multiple of this.
_MLA_BLOCK: Final = 128
_HAS_ODD: Final = (False, False, False, False, False, True)
#: What an odd layer can be odd in, if it has it.
_ODD: Final = ("head_size", "block_size", "sliding_window", "attention_chunk_size", "shapes")

#: Fields that are called otherwise by some releases.
_ALSO_CALLED: Final = {"compress_ratio": "tokens_per_state"}


class _Setup(msgspec.Struct, frozen=True):
    """What all layers of a mix have in common; `state` are fields of those with states."""

    ranks: int
    block: int
    dtypes: tuple[str, str, str]
    state: Mapping[str, Value] = {}


_PLAIN: Final = _Setup(1, 16, _BF16, {"block_size": 16})


def _divides(form: Form, ranks: int) -> bool:
    """Whether so many ranks can share the form; heads that are fewer are repeated."""
    heads = dict(form.fields).get("num_kv_heads", 1)
    assert isinstance(heads, int)
    parts = [state[1] for state in form.states if isinstance(state[1], int)]
    return (heads % ranks == 0 or ranks % heads == 0) and all(part % ranks == 0 for part in parts)


def _fields(form: Form, setup: _Setup) -> dict[str, Any]:
    """The fields of a layer of that form."""
    model, cache, mode = setup.dtypes
    if form.states:
        shapes = tuple((int(part) // setup.ranks, *rest) for _, part, *rest in form.states)
        dtypes = tuple(model if dtype == "model" else dtype for dtype, *_ in form.states)
        return {"shapes": shapes, "dtypes": dtypes, **setup.state}
    fields: dict[str, Any] = {"block_size": setup.block, **dict(form.fields)}
    if form.kind != "hidden_state_cache":  # whose "heads" are layers, whole on each rank
        fields["num_kv_heads"] = max(1, fields["num_kv_heads"] // setup.ranks)
    if "dtype" not in fields:
        fields["dtype"] = cache
        if mode != "none":
            fields["kv_quant_mode"] = mode
    return fields


def _sayable(forms: Mapping[str, FieldForm], fields: dict[str, Any]) -> dict[str, Value] | None:
    """The fields by the names of a spec class, without those that it lacks; None if it needs more.

    A name that an enumeration lacks is left out as well.
    """
    said: dict[str, Value] = {}
    for name, value in fields.items():
        if name not in forms:
            name = _ALSO_CALLED.get(name, name)
        form = forms.get(name)
        if form is not None and (form.type != "name" or value in form.names):
            said[name] = value
    if any(form.required and name not in said for name, form in forms.items()):
        return None
    return said


def _token_bytes(fields: Mapping[str, Any], *, latent: bool) -> int:
    """Bytes of a token in an attention layer that compresses none."""
    head: int = fields["head_size"]
    values: int = 0 if latent else fields.get("head_size_v", head)
    cell: int = fields.get("state_content_bytes") or (head + values) * DTYPE_BYTES[fields["dtype"]]
    return int(fields["num_kv_heads"]) * cell


def _state_bytes(form: Form, setup: _Setup) -> int:
    fields = _fields(form, setup)
    total = 0
    for shape, dtype in zip(fields["shapes"], fields["dtypes"], strict=True):
        size = DTYPE_BYTES[dtype]
        for part in shape:
            size *= part
        total += size
    return total


def _padded(setup: _Setup, forms: tuple[Form, ...], way: str, drafts: int) -> _Setup:
    """The set-up in which the pages of states are as large as those of attention.

    As an engine does it: blocks grow until a page of attention holds the largest state.
    """
    attends = next((form for form in forms if not form.states), None)
    state: dict[str, Value] = {"block_size": setup.block}
    block = setup.block
    if attends is not None and way:
        latent = attends.kind == "mla_attention"
        token = _token_bytes(_fields(attends, setup), latent=latent)
        step = max(block, _MLA_BLOCK) if latent else block
        largest = max(_state_bytes(form, setup) for form in forms if form.states)
        block = step * -(-largest // (step * token))
        if way == "align":
            state |= {"block_size": block, "mamba_cache_mode": way}
        else:
            state["block_size"] = _A_REQUEST
        state["page_size_padded"] = block * token
    if drafts:
        state["num_speculative_blocks"] = drafts
    return msgspec.structs.replace(setup, block=block, state=state)


def _odd(choose: Choose, spec: OpenSpec) -> OpenSpec:
    """The spec with one number halved or doubled; states are halved, so that padding holds them."""
    fields = dict(spec.fields)
    name = pick(choose, tuple(name for name in _ODD if name in fields))
    value: Any = fields[name]
    if name == "shapes":
        fields[name] = tuple((max(1, part // 2), *rest) for part, *rest in value)
    else:
        fields[name] = max(1, value // 2) if choose(0, 1) else 2 * value
    return open_spec(spec.kind, fields)


def _able(forms: tuple[Form, ...], catalogue: Catalogue) -> tuple[Form, ...]:
    """Those of the forms that the catalogue can say."""
    return tuple(
        form
        for form in forms
        if form.kind in catalogue
        and _sayable(catalogue[form.kind].fields, _fields(form, _PLAIN)) is not None
    )


def _cut(model: Architecture, wanted: int, catalogue: Catalogue) -> tuple[Form, ...]:
    """About so many layers of the model, whole patterns, of what the catalogue can say."""
    lead, pattern, tail = (
        _able(forms, catalogue) for forms in (model.lead, model.pattern, model.tail)
    )
    if not pattern:
        return ()
    fixed = len(lead) + len(tail)
    most = min(model.repeats, (_MOST - fixed) // len(pattern))
    least = 1 if fixed + len(pattern) > 1 else 2
    repeats = max(least, min(most, (wanted - fixed) // len(pattern)))
    return lead + repeats * pattern + tail


def _drafts(choose: Choose, model: Architecture, catalogue: Catalogue) -> tuple[Form, ...]:
    """The layers of a draft model, if there is one."""
    which = pick(choose, _WHICH_DRAFT)
    if not which:
        return ()
    if which == "own":
        forms = model.draft or tuple(form for form in model.pattern if not form.states)[-1:]
    else:
        forms = (DRAFTS[which],)
    copies = 1 if which == "hidden" else pick(choose, _DRAFT_LAYERS)
    return copies * _able(forms, catalogue)


def build_model(choose: Choose, *, catalogue: Catalogue) -> Model:
    """A model's layers as a target's spec classes can state them.

    Layers of a kind that the target has not are left out, as are fields; a
    model of which no pattern is left makes way for the next.

    Args:
        choose: The source.
        catalogue: What a target can be told.

    Raises:
        ValueError: It can be told of no layer of any model.
    """
    first = choose(0, len(ARCHITECTURES) - 1)
    wanted = pick(choose, _LAYERS)
    for model in ARCHITECTURES[first:] + ARCHITECTURES[:first]:
        layers = _cut(model, wanted, catalogue)
        if layers:
            break
    else:
        raise ValueError("the target has no kind of layer that a model has")
    ranks = pick(choose, _RANKS)
    while not all(_divides(form, ranks) for form in set(layers)):
        ranks //= 2
    setup = _Setup(ranks, pick(choose, _BLOCKS), pick(choose, _DTYPES))
    drafts = _drafts(choose, model, catalogue)
    if any(form.states for form in layers):
        setup = _padded(setup, layers, pick(choose, _PADDINGS), len(drafts))

    def said(forms: tuple[Form, ...]) -> list[OpenSpec]:
        specs: dict[Form, OpenSpec] = {}
        for form in set(forms):
            fields = _sayable(catalogue[form.kind].fields, _fields(form, setup))
            assert fields is not None  # as `_able` saw
            specs[form] = open_spec(form.kind, fields)
        return [specs[form] for form in forms]

    specs = said(layers)
    if pick(choose, _HAS_ODD):
        place = choose(0, len(specs) - 1)
        specs[place] = _odd(choose, specs[place])
    return Model(model.name, (*specs, *said(drafts)), len(drafts))
