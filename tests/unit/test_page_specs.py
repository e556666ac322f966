"""Pages of single specs: the data's arithmetic, annotations, and what is amiss."""

from __future__ import annotations

import dataclasses
import typing
from enum import Enum
from fractions import Fraction
from typing import Any

import pytest
import torch

from kvfuzz.engine.session import Session
from kvfuzz.invariants import Violation
from kvfuzz.invariants.page_arithmetic import data_bytes
from kvfuzz.outcomes import Account, Crash, Group, Misfit, Plan, Terms
from kvfuzz.specs import OpenSpec, Scenario, open_spec
from kvfuzz.targets.own_pages import fits, misfits
from tests.sabotage import paging

PLAIN: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": "float16"}
STATES: dict[str, Any] = {
    "block_size": 16,
    "shapes": ((4, 64), (8,)),
    "dtypes": ("int8", "float32"),
}


class _Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "hint", "is_fit"),
    [
        (1, int, True),
        (None, int, False),
        (None, int | None, True),
        ("a", int | None, False),
        (1, int | Fraction, True),
        (Fraction(1, 2), typing.Optional[Fraction], True),  # noqa: UP045 - both ways of writing it
        (1, float, True),
        ((1, 2), tuple[int], False),
        ((1,), tuple[int], True),
        ((1, 2), tuple[int, ...], True),
        ((1, "a"), tuple[int, ...], False),
        (((1,), (2, 3)), tuple[tuple[int, ...], ...], True),
        ([1], tuple[int], False),
        ([1], list[int], True),
        ({}, list[int], False),
        ("a", typing.Literal["a"], True),
        ("b", typing.Literal["a"], False),
        (1, typing.Annotated[int, "bytes"], True),
        (_Colour.RED, _Colour, True),
        ("red", _Colour, False),
        (torch.int8, torch.dtype, True),
        ("int8", torch.dtype, False),
        ("anything", typing.Any, True),
        ("anything", typing.TypeVar("T"), True),
    ],
)
def test_what_fits_an_annotation(value: Any, hint: Any, is_fit: bool):
    assert fits(value, hint) is is_fit


if typing.TYPE_CHECKING:
    from decimal import Decimal


@dataclasses.dataclass
class _Odd:
    name: str
    size: int = None  # type: ignore[assignment]
    far: int | Decimal | None = None


def test_misfits_are_named_where_a_type_is_for_checkers_only():
    assert misfits(_Odd("a")) == (Misfit("size", "int", "None"),)
    assert misfits(_Odd("a", 1, 2)) == ()
    assert misfits(_Odd("a", 1, "b")) == (Misfit("far", "int | Decimal | None", "b"),)


@pytest.mark.parametrize(
    ("kind", "fields", "least", "most"),
    [
        ("full_attention", {}, 8192, 8192),
        ("full_attention", {"head_size_v": 32}, 6144, 6144),
        ("full_attention", {"kv_quant_mode": "fp8_per_tensor"}, 8192, 8192),
        ("full_attention", {"kv_quant_mode": "int8_per_token_head"}, 4096, 8448),
        ("full_attention", {"kv_quant_mode": "nvfp4"}, 2048, 8448),
        ("full_attention", {"kv_quant_mode": "turboquant_k3v4_nc"}, 1536, 8448),
        ("full_attention", {"num_head_slots": 5}, 20480, 20480),
        ("full_attention", {"state_content_bytes": 100}, 3200, 3200),
        ("full_attention", {"tokens_per_state": 4}, 2048, 2048),
        ("sliding_window", {"sliding_window": 8}, 8192, 8192),
        ("mla_attention", {}, 4096, 4096),
        ("mla_attention", {"compress_ratio": 4, "cache_dtype_str": "auto"}, 1024, 1024),
        ("mla_attention", {"head_size_v": 0}, 4096, 4096),
    ],
)
def test_bytes_of_attention(kind: str, fields: dict[str, Any], least: int, most: int):
    assert data_bytes(open_spec(kind, {**PLAIN, **fields})) == (least, most)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("tomorrows", {}),
        ("mla_attention", {"head_size_v": 64}),
        ("mla_attention", {"cache_dtype_str": "fp8_ds_mla"}),
        ("sliding_window_mla", {"model_version": "deepseek_v4"}),
        ("tq_full_attention", {"tq_slot_size": 100}),
        ("full_attention", {"kv_quant_mode": "custom"}),
        ("mla_attention", {"kv_quant_mode": "nvfp4_ds_mla"}),
        ("full_attention", {"tokens_per_state": 5}),
    ],
)
def test_what_is_a_planners_own_affair(kind: str, fields: dict[str, Any]):
    assert data_bytes(open_spec(kind, {**PLAIN, **fields})) is None


def test_bytes_of_states():
    assert data_bytes(open_spec("mamba", STATES)) == (288, 288)
    assert data_bytes(open_spec("mamba", {**STATES, "dtypes": ("int8",)})) is None


def _ask(spec: OpenSpec, **members: Any) -> tuple[list[Violation], Session]:
    properties = {name: property(lambda _, v=value: v) for name, value in members.items()}
    session = Session(paging.target_of(**properties), "page")
    return session.judge(Scenario((("a", spec),))), session


def test_what_a_spec_tells():
    spec = open_spec("full_attention", {**PLAIN, "alignment": 1000})
    _, session = _ask(spec)
    answer, pages = session.ask(Scenario((("a", spec),)))
    account = Account(data=8192, doubled=17000)
    assert answer.outcome == Plan(
        (Group(("a",), (9000,), Terms((spec,), (spec,), account=account)),)
    )
    assert pages == {"a": 9000}
    assert answer.changed is None


@pytest.mark.parametrize(
    ("fields", "members", "symptom", "got", "expected"),
    [
        (
            {},
            {"page_size_bytes": 8000},
            "page below its data",
            "8000",
            "at least the 8192 bytes of data that it has",
        ),
        (
            {},
            {"unpadded_page_size_bytes": 8000},
            "page too small",
            "8000",
            "at least 8192 bytes, which its data takes",
        ),
        ({}, {"unpadded_page_size_bytes": 9000}, "page too large", "9000", "at most 8192 bytes"),
        (
            {},
            {"num_heads": 2, "num_states": 16, "state_content_size_bytes": 300},
            "page below its view",
            "8192",
            "at least the 9600 bytes that it is viewed as",
        ),
        (
            {"alignment": 1000},
            {"page_size_bytes": 8500},
            "page unaligned",
            "8500",
            "a multiple of 1000 bytes",
        ),
        (
            {"page_size_padded": 20000, "alignment": 1000},
            {"page_size_bytes": 9000},
            "padding dropped",
            "9000",
            "20000 bytes, which its spec is padded to",
        ),
    ],
)
def test_pages_that_are_amiss(
    fields: dict[str, Any], members: dict[str, int], symptom: str, got: str, expected: str
):
    spec = open_spec("full_attention", {**PLAIN, **fields})
    violations, _ = _ask(spec, **members)
    (violation,) = [v for v in violations if v.invariant == "page-size-arithmetic"]
    assert violation.symptom == f"full_attention {symptom}"
    assert violation.got == f"a page of {got} bytes"
    assert violation.expected == expected
    assert violation.layers == ("a",)


def test_a_copy_with_a_larger_block():
    spec = open_spec("full_attention", PLAIN)
    (violation,) = _ask(spec, copy_with_new_block_size=lambda _: None)[0]
    assert violation.invariant == "page-size-scales"
    assert violation.symptom == "full_attention copied with a larger block"
    assert violation.got == "a page of 8192 bytes, and with 32 tokens none"
    assert violation.expected == "one of at least 16384 and at most 16384 bytes"
    # Of a state the same; of a padded page nothing is said.
    for kind, fields in (
        ("mamba", STATES),
        ("full_attention", {**PLAIN, "page_size_padded": 9000}),
    ):
        assert _ask(open_spec(kind, fields))[0] == []


def test_a_page_that_shrinks():
    target = paging.target_of(
        unpadded_page_size_bytes=property(paging.shares_records_between_heads)
    )
    fields = {**PLAIN, "num_kv_heads": 2, "cache_dtype_str": "fp8_ds_mla"}
    (violation,) = Session(target, "page").judge(
        Scenario((("a", open_spec("full_attention", fields)),))
    )
    assert violation.invariant == "page-size-monotone"
    assert violation.symptom == "full_attention less for more num_kv_heads"
    assert (
        violation.got == "a page of 20992 bytes, and with twice the num_kv_heads one of 10496 bytes"
    )


def test_a_state_too_many():
    target = paging.target_of(mamba=paging.NarrowMambaSpec)
    (violation,) = Session(target, "page").judge(Scenario((("a", open_spec("mamba", STATES)),)))
    assert violation.invariant == "round-trip"
    assert violation.symptom == "mamba misfits dtypes"
    assert violation.got == "dtypes=(torch.int8, torch.float32)"
    assert violation.expected == "a value of its annotation, tuple[torch.dtype]"


def test_a_copy_that_is_another_spec():
    def halved(spec: Any, _: Any) -> Any:
        return dataclasses.replace(spec, head_size=spec.head_size // 2)

    session = Session(paging.target_of(__deepcopy__=halved), "page")
    (violation,) = session.judge(Scenario((("a", open_spec("full_attention", PLAIN)),)))
    assert violation.invariant == "round-trip"
    assert violation.symptom == "full_attention copied by copy.deepcopy"
    assert session.judge(Scenario((("a", open_spec("mamba", STATES)),))) == []


def test_what_a_page_raises_is_an_outcome():
    target = paging.target_of(paging.asserts_on_a_window)
    spec = open_spec("full_attention", {**PLAIN, "sliding_window": 8})
    answer, pages = Session(target, "page").ask(Scenario((("a", spec),)))
    assert answer.outcome == Crash(
        symptom="exception",
        exception="AssertionError",
        function="asserts_on_a_window",
        message="assert spec.sliding_window is None",
    )
    assert pages == {"a": 0}


def test_a_page_that_is_no_number():
    (violation,) = _ask(open_spec("full_attention", PLAIN), page_size_bytes="8192")[0]
    assert violation.symptom == "exception"
    assert violation.got.endswith("a page size must be an int, got str")
