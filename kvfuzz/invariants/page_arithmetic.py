"""Rules over one spec: how large its page is, and whether it stays what it is on its way.

The arithmetic here is that of the data alone, which no planner can choose: what
it may add is padding, alignment and the scales of a quantisation. Formats whose
bytes are a backend's own (records of DeepSeek, slots of TurboQuant) are left out.
"""

from __future__ import annotations

from math import prod
from typing import Final, NamedTuple

import msgspec

from kvfuzz.invariants.registry import Trial, Violation, groups_of, invariant, planned
from kvfuzz.outcomes import Account, Group, Plan
from kvfuzz.specs import DTYPE_BYTES, OpenSpec, open_spec

#: Kinds of which a state is a key and a value.
_PAIRS: Final = frozenset(
    {
        "full_attention",
        "sliding_window",
        "chunked_local_attention",
        "cross_attention",
        "encoder_only_attention",
        "sink_full_attention",
        "rswa",
        "tq_full_attention",
        "circular_buffer",
    }
)
#: Kinds of which it is one latent vector.
_VECTORS: Final = frozenset({"mla_attention", "sliding_window_mla", "hidden_state_cache"})
#: Cache formats that store the vector as it is.
_PLAIN_FORMATS: Final = (None, "auto", "bfloat16")
#: Modes that leave a state as many elements as it has.
_DENSE_MODES: Final = (None, "none", "fp8_per_tensor")
#: The beginnings of the other modes' names -> fewest bits that an element takes.
_BITS: Final = {
    "int8_": 8,
    "fp8_": 8,
    "int4_": 4,
    "nvfp4": 4,
    "ultraquant": 4,
    "turboquant": 3,
    "octave": 3,
}
#: Bytes of the scales of a token and head: two of float32.
_SCALES: Final = 8


class _Bytes(NamedTuple):
    """What the data of a page takes at least and at most."""

    least: int
    most: int


def _up(size: int, multiple: int) -> int:
    return multiple * -(-size // multiple)


def _states(spec: OpenSpec) -> int | None:
    """States of a block; None if it does not hold whole ones."""
    per_state = spec.tokens_per_state or spec.compress_ratio or 1
    whole, rest = divmod(spec.block_size, per_state)
    return None if rest else int(whole)


def data_bytes(spec: OpenSpec) -> _Bytes | None:
    """Bytes of the data in a page of `spec`; None if that is a planner's own affair."""
    if spec.shapes is not None:
        if not isinstance(spec.dtypes, tuple) or len(spec.shapes) != len(spec.dtypes):
            return None
        size = sum(
            map(int.__mul__, map(prod, spec.shapes), map(DTYPE_BYTES.__getitem__, spec.dtypes))
        )
        return _Bytes(size, size)
    vector = spec.kind in _VECTORS
    if not vector and spec.kind not in _PAIRS:
        return None
    if spec.cache_dtype_str not in _PLAIN_FORMATS or spec.model_version or spec.tq_slot_size:
        return None
    states = _states(spec)
    if states is None or (vector and spec.head_size_v):
        return None  # whether a latent vector has values beside it, releases differ in
    cells = states * (spec.num_head_slots or spec.num_kv_heads)
    if spec.state_content_bytes:
        return _Bytes(cells * spec.state_content_bytes, cells * spec.state_content_bytes)
    values = 0 if vector else spec.head_size if spec.head_size_v is None else spec.head_size_v
    elements = spec.head_size + values
    dense = cells * elements * DTYPE_BYTES[spec.dtype]
    mode = spec.kv_quant_mode
    if mode in _DENSE_MODES:
        return _Bytes(dense, dense)
    bits = next((bits for begins, bits in _BITS.items() if mode.startswith(begins)), None)
    if bits is None or mode.endswith("_mla"):
        return None
    return _Bytes(
        cells * (elements * bits // 8), dense + spec.block_size * spec.num_kv_heads * _SCALES
    )


class PageSizeArithmeticViolation(Violation):
    """A page has not the bytes that its data, padding and alignment come to."""

    invariant = "page-size-arithmetic"


@invariant(
    PageSizeArithmeticViolation,
    claim=(
        "A page takes the bytes of its data, and no more than the padding and alignment that its "
        "spec asks for."
    ),
    source="Backends view a page by its data; the allocator cuts memory by its size.",
    applies_to="pages that a spec class tells",
    surfaces=("page",),
    severity="silent wrong plan",
    applies=planned,
)
def page_size_arithmetic(trial: Trial) -> None:
    """Judge each page by the planner's own account of its data, then by ours."""
    asked = trial.scenario.specs()
    for group in groups_of(trial):
        (layer,) = group.layers
        spec = asked[layer]
        assert isinstance(spec, OpenSpec)
        found = _below_own(spec, group) or _amiss(spec, group.pages[0])
        if found is not None:
            symptom, expected = found
            raise PageSizeArithmeticViolation(
                symptom=f"{spec.kind} {symptom}",
                got=f"a page of {group.pages[0]} bytes",
                expected=expected,
                layers=group.layers,
                groups=groups_of(trial),
            )


def _account(group: Group) -> Account:
    assert group.terms is not None
    assert group.terms.account is not None
    return group.terms.account


def _below_own(spec: OpenSpec, group: Group) -> tuple[str, str] | None:
    account = _account(group)
    page = group.pages[0]
    if account.data is not None and page < account.data:
        return "page below its data", f"at least the {account.data} bytes of data that it has"
    # How many heads and states a recurrent state is viewed as says nothing.
    if account.tensor is not None and spec.shapes is None and page < account.tensor:
        return "page below its view", f"at least the {account.tensor} bytes that it is viewed as"
    return None


def _amiss(spec: OpenSpec, page: int) -> tuple[str, str] | None:
    """Symptom and what was expected; None if the page is right, or not ours to judge."""
    data = data_bytes(spec)
    if data is None:
        return None
    if page < data.least:
        return "page too small", f"at least {data.least} bytes, which its data takes"
    alignment, padded = spec.alignment or 1, spec.page_size_padded or 0
    if padded >= data.most and padded % alignment == 0:
        if page != padded:
            return "padding dropped", f"{padded} bytes, which its spec is padded to"
        return None
    if page % alignment:
        return "page unaligned", f"a multiple of {alignment} bytes"
    most = max(_up(data.most, alignment), _up(padded, alignment))
    if page > most:
        return "page too large", f"at most {most} bytes"
    return None


class PageSizeScalesViolation(Violation):
    """A copy with a larger block has not the page that it must have."""

    invariant = "page-size-scales"


def _unpadded(trial: Trial) -> bool:
    """Whether the specs are of heads or states, and nothing fixes their pages."""
    return planned(trial) and all(
        isinstance(spec, OpenSpec)
        and not spec.page_size_padded
        and (spec.shapes is not None or (bool(spec.head_size) and _states(spec) is not None))
        for _, spec in trial.scenario
    )


def _copied(trial: Trial) -> bool:
    return _unpadded(trial) and all(_account(g).doubled is not None for g in groups_of(trial))


@invariant(
    PageSizeScalesViolation,
    claim=(
        "A copy with twice the tokens has a page of twice the bytes up to alignment, and that of "
        "a recurrent state the same page."
    ),
    source="Planners make pages equal by copies of specs with larger blocks.",
    applies_to="pages of specs without padding, of classes that make such copies",
    surfaces=("page",),
    severity="crash",
    applies=_copied,
)
def page_size_scales(trial: Trial) -> None:
    """Judge the page of the class's own copy."""
    asked = trial.scenario.specs()
    for group in groups_of(trial):
        (layer,) = group.layers
        spec, page, doubled = asked[layer], group.pages[0], _account(group).doubled
        assert isinstance(spec, OpenSpec)
        assert doubled is not None
        slack = spec.alignment or 0  # where the larger page needs a filling less
        least, most = (page, page) if spec.shapes is not None else (2 * page - slack, 2 * page)
        if not least <= doubled <= most:
            copied = f"one of {doubled} bytes" if doubled else "none"
            raise PageSizeScalesViolation(
                symptom=f"{spec.kind} copied with a larger block",
                got=f"a page of {page} bytes, and with {2 * spec.block_size} tokens {copied}",
                expected=f"one of at least {least} and at most {most} bytes",
                layers=group.layers,
                groups=groups_of(trial),
            )


class PageSizeMonotoneViolation(Violation):
    """A spec that holds more has a smaller page."""

    invariant = "page-size-monotone"


def _of_heads(trial: Trial) -> bool:
    return _unpadded(trial) and all(spec.head_size for _, spec in trial.scenario)


@invariant(
    PageSizeMonotoneViolation,
    claim="A page of twice the heads, or of heads of twice the size, takes no less.",
    source="What a page holds of each head is not less for another head beside it.",
    applies_to="pages of attention specs without padding",
    surfaces=("page",),
    severity="silent wrong plan",
    applies=_of_heads,
    calls_again=True,
)
def page_size_monotone(trial: Trial) -> None:
    """Judge pages of larger specs."""
    for group in groups_of(trial):
        (layer,) = group.layers
        page = group.pages[0]
        for name in ("num_kv_heads", "head_size"):
            larger = _page_of(trial, layer, name)
            if larger is not None and larger < page:
                raise PageSizeMonotoneViolation(
                    symptom=f"{trial.scenario.specs()[layer].kind} less for more {name}",
                    got=f"a page of {page} bytes, and with twice the {name} one of {larger} bytes",
                    expected="a page that is no smaller",
                    layers=group.layers,
                    groups=groups_of(trial),
                )


def _page_of(trial: Trial, layer: str, name: str) -> int | None:
    """The page of a layer's spec with twice the field; None if it has none."""
    spec = trial.scenario.specs()[layer]
    assert isinstance(spec, OpenSpec)
    fields = dict(spec.fields)
    number = fields.get(name)
    if type(number) is not int:
        return None
    larger = open_spec(spec.kind, {**fields, name: 2 * number})
    outcome = trial.again(msgspec.structs.replace(trial.scenario, mix=((layer, larger),)))
    if not isinstance(outcome, Plan) or not outcome.groups:
        return None
    return outcome.groups[0].pages[0]


class RoundTripViolation(Violation):
    """A spec would not come out of a copy or a message as it went in."""

    invariant = "round-trip"


@invariant(
    RoundTripViolation,
    claim="Every field's value fits the field's own annotation, and a copy of a spec equals it.",
    source="Specs come from workers in messages that are decoded by the fields' annotations.",
    applies_to="pages that a spec class tells",
    surfaces=("page",),
    severity="crash",
    applies=planned,
)
def round_trip(trial: Trial) -> None:
    """Judge the fields, then the copies."""
    for group in groups_of(trial):
        assert group.terms is not None
        kind = group.terms.given[0].kind
        account = _account(group)
        if account.misfits:
            misfit = account.misfits[0]
            raise RoundTripViolation(
                symptom=f"{kind} misfits {misfit.field}",
                got=f"{misfit.field}={misfit.value}",
                expected=f"a value of its annotation, {misfit.says}",
                layers=group.layers,
                groups=groups_of(trial),
            )
        if account.unlike:
            raise RoundTripViolation(
                symptom=f"{kind} copied by {account.unlike[0]}",
                got=f"another spec or page out of {account.unlike[0]}",
                expected="an equal spec with an equal page",
                layers=group.layers,
                groups=groups_of(trial),
            )
