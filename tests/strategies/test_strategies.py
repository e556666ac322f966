"""The strategies' arguments: what they ask for is drawn, what cannot be is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from kvfuzz import strategies
from kvfuzz.pages import FULL_DIALECT, page_size_bytes
from kvfuzz.specs import DTYPE_BYTES, LayerSpec
from kvfuzz.strategies.constraints import broken
from tests.strategies.common import BARE_DIALECT, OLD_DIALECT

_SETTINGS = settings(max_examples=60, database=None, deadline=None, derandomize=True)


def _every(strategy: st.SearchStrategy[Any], check: Callable[[Any], bool]) -> None:
    @_SETTINGS
    @given(strategy)
    def test(value: Any) -> None:
        assert check(value), value

    test()


def test_numbers_keep_their_bounds() -> None:
    _every(strategies.head_sizes(min_value=100, max_value=600), lambda v: 100 <= v <= 600)
    _every(strategies.block_sizes(multiple_of=4), lambda v: v % 4 == 0)
    _every(strategies.block_sizes(max_value=32), lambda v: 1 <= v <= 32)
    _every(strategies.sliding_windows(min_value=128), lambda v: v >= 128)
    _every(strategies.page_sizes(max_value=1000), lambda v: 1 <= v <= 1000)
    _every(strategies.dtypes(max_bytes=1), lambda v: DTYPE_BYTES[v] == 1)


@pytest.mark.parametrize("strategy", [strategies.mla_specs, strategies.sliding_window_mla_specs])
@pytest.mark.parametrize("page_size", [1, 7, 1155, 4096, 10_007, 36_864, 1_000_003])
@pytest.mark.parametrize("dialect", [FULL_DIALECT, OLD_DIALECT, BARE_DIALECT])
def test_specs_have_the_page_size_asked_for(strategy: Any, page_size: int, dialect: Any) -> None:
    def check(spec: LayerSpec) -> bool:
        size = page_size_bytes(spec, dialect.rules)
        return size == page_size and broken(spec, dialect) == []

    _every(strategy(page_size=page_size, dialect=dialect), check)


def test_specs_have_the_dtype_and_block_asked_for_if_nothing_else_is_set() -> None:
    def check(spec: LayerSpec) -> bool:
        fields = msgspec.structs.fields(spec)
        plain = all(getattr(spec, f.name) == f.default for f in fields if not f.required)
        return not plain or (spec.dtype, spec.block_size) == ("bfloat16", 16)

    _every(strategies.mla_specs(page_size=36_864, dtype="bfloat16", block_size=16), check)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: strategies.head_sizes(min_value=10, max_value=9), "no head size"),
        (lambda: strategies.block_sizes(max_value=0), "no block size"),
        (lambda: strategies.block_sizes(multiple_of=0), "multiple_of must be"),
        (lambda: strategies.sliding_windows(min_value=10**9), "no sliding window"),
        (lambda: strategies.page_sizes(max_value=0), "no page size"),
        (lambda: strategies.dtypes(max_bytes=0), "no dtype"),
        (lambda: strategies.mla_specs(page_size=0), "page_size must be"),
        (lambda: strategies.mla_specs(block_size=0), "block_size must be"),
        (lambda: strategies.mla_specs(page_size=2**31 - 1), "no spec has a page"),
        (lambda: strategies.mla_specs(dtype="float64"), "no dtype 'float64'"),  # type: ignore[arg-type]
        (lambda: strategies.spec_mixes(shape="odd"), "no shape 'odd'"),  # type: ignore[arg-type]
        (lambda: strategies.spec_mixes(max_layers=0), "max_layers must be"),
        (lambda: strategies.spec_mixes(shape="mixed", max_layers=1), "at least 2 layers"),
        (
            lambda: strategies.spec_mixes(shape="deepseek-v4", dialect=BARE_DIALECT),
            "DeepSeek V4",
        ),
        (lambda: strategies.invalid_specs(constraint="beauty"), "no spec breaks 'beauty'"),
        (lambda: strategies.invalid_specs(constraint="alignment-holds"), "no spec breaks"),
    ],
)
def test_what_cannot_be_drawn_is_an_invalid_argument(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make()


def test_a_missing_kind_is_an_invalid_argument() -> None:
    dialect = msgspec.structs.replace(
        FULL_DIALECT, fields={"mla_attention": FULL_DIALECT.fields["mla_attention"]}
    )
    with pytest.raises(InvalidArgument, match="no spec class for the kind sliding_window_mla"):
        strategies.sliding_window_mla_specs(dialect=dialect)


def test_only_strategies_and_shapes_are_public() -> None:
    assert all(hasattr(strategies, name) for name in strategies.__all__)
    assert list(strategies.__all__) == sorted(strategies.__all__)
