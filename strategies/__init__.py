"""Hypothesis strategies for cache specs and mixes.

Each reads a builder of `kvfuzz.strategies.builders` through Hypothesis; the
search engine reads the same builders through a fast seeded source. What they
draw is valid (`constraints.broken`), but for `invalid_specs`.

Example:
    >>> from hypothesis import given
    >>> from kvfuzz.strategies import spec_mixes
    >>> @given(spec_mixes(shape="uniform"))
    ... def test_it_needs_no_packing(scenario):
    ...     assert my_planner(scenario.specs()) is None
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from kvfuzz.pages import FULL_DIALECT, Dialect
from kvfuzz.specs import (
    DTYPE_BYTES,
    DType,
    LayerSpec,
    MLAAttentionSpec,
    Scenario,
    SlidingWindowMLASpec,
)
from kvfuzz.strategies import factors, invalid
from kvfuzz.strategies.builders import SHAPES, Shape, build_mix, why_no_mix
from kvfuzz.strategies.choices import from_draw
from kvfuzz.strategies.classes import build_spec
from kvfuzz.strategies.layers import MOST_LAYERS

__all__ = [
    "SHAPES",
    "Shape",
    "block_sizes",
    "dtypes",
    "head_sizes",
    "invalid_specs",
    "mla_specs",
    "page_sizes",
    "sliding_window_mla_specs",
    "sliding_windows",
    "spec_mixes",
]


def _sampled(
    what: str, values: Sequence[int], low: int, high: int | None
) -> st.SearchStrategy[int]:
    kept = [v for v in dict.fromkeys(values) if v >= low and (high is None or v <= high)]
    if not kept:
        raise InvalidArgument(f"no {what} from {low} to {high}; there are {sorted(set(values))}")
    return st.sampled_from(kept)


def dtypes(*, max_bytes: int = 4) -> st.SearchStrategy[DType]:
    """Names of dtypes of at most `max_bytes` bytes an element; float32 first.

    Raises:
        InvalidArgument: There is none so small.
    """
    kept = [dtype for dtype in factors.DTYPES if DTYPE_BYTES[dtype] <= max_bytes]
    if not kept:
        raise InvalidArgument(f"no dtype has {max_bytes} bytes an element or less")
    return st.sampled_from(kept)


def head_sizes(*, min_value: int = 1, max_value: int | None = None) -> st.SearchStrategy[int]:
    """Elements of a latent vector: those that models have and a few that none has.

    Raises:
        InvalidArgument: There is none between both bounds.
    """
    return _sampled("head size", factors.HEAD_SIZES, min_value, max_value)


def block_sizes(
    *, multiple_of: int = 1, min_value: int = 1, max_value: int | None = None
) -> st.SearchStrategy[int]:
    """Tokens in a block, multiples of `multiple_of`, such as a compress ratio.

    Raises:
        InvalidArgument: There is none between both bounds.
    """
    if multiple_of < 1:
        raise InvalidArgument(f"multiple_of must be at least 1, not {multiple_of}")
    values = [block * multiple_of for block in factors.BLOCKS]
    return _sampled("block size", values, min_value, max_value)


def sliding_windows(*, min_value: int = 1, max_value: int | None = None) -> st.SearchStrategy[int]:
    """Windows in tokens.

    Raises:
        InvalidArgument: There is none between both bounds.
    """
    return _sampled("sliding window", factors.WINDOWS, min_value, max_value)


def page_sizes(*, min_value: int = 1, max_value: int | None = None) -> st.SearchStrategy[int]:
    """Bytes of a page: those that models have, and round, small and odd ones.

    Raises:
        InvalidArgument: There is none between both bounds.
    """
    return _sampled("page size", factors.PAGE_SIZES, min_value, max_value)


@st.composite
def _specs(draw: st.DrawFn, kind: str, arguments: dict[str, Any]) -> Any:
    return build_spec(from_draw(draw), kind, **arguments)


def _checked_specs(kind: str, **arguments: Any) -> st.SearchStrategy[Any]:
    page, dtype, block = (arguments[name] for name in ("page_size", "dtype", "block_size"))
    if dtype is not None and dtype not in DTYPE_BYTES:
        raise InvalidArgument(f"no dtype {dtype!r}; there are {', '.join(DTYPE_BYTES)}")
    for name, value in (("page_size", page), ("block_size", block)):
        if value is not None and value < 1:
            raise InvalidArgument(f"{name} must be at least 1, not {value}")
    try:
        # If the simplest choices make a spec, all do.
        build_spec(lambda low, _: low, kind, **arguments)
    except ValueError as error:
        raise InvalidArgument(str(error)) from error
    return _specs(kind, arguments)


def mla_specs(
    *,
    dialect: Dialect = FULL_DIALECT,
    page_size: int | None = None,
    dtype: DType | None = None,
    block_size: int | None = None,
) -> st.SearchStrategy[MLAAttentionSpec]:
    """Specs of full MLA layers.

    Args:
        dialect: What must be able to express them.
        page_size: Bytes that their pages must have.
        dtype: Their dtype, where page and quantisation leave it free.
        block_size: States in their blocks, where the page leaves it free.

    Raises:
        InvalidArgument: There is no such spec.
    """
    return _checked_specs(
        "mla_attention", dialect=dialect, page_size=page_size, dtype=dtype, block_size=block_size
    )


def sliding_window_mla_specs(
    *,
    dialect: Dialect = FULL_DIALECT,
    page_size: int | None = None,
    dtype: DType | None = None,
    block_size: int | None = None,
) -> st.SearchStrategy[SlidingWindowMLASpec]:
    """Specs of sliding-window MLA layers; arguments and errors as for `mla_specs`."""
    return _checked_specs(
        "sliding_window_mla",
        dialect=dialect,
        page_size=page_size,
        dtype=dtype,
        block_size=block_size,
    )


@st.composite
def _mixes(draw: st.DrawFn, shape: Shape, dialect: Dialect, max_layers: int) -> Scenario:
    return build_mix(from_draw(draw), shape=shape, dialect=dialect, max_layers=max_layers)


def spec_mixes(
    *,
    shape: Shape = "any",
    dialect: Dialect = FULL_DIALECT,
    max_layers: int = MOST_LAYERS,
) -> st.SearchStrategy[Scenario]:
    """Mixes of MLA and sliding-window MLA specs.

    Args:
        shape: What the mixes promise; see `builders.build_mix`.
        dialect: What must be able to express them.
        max_layers: The largest number of layers, up to 64.

    Raises:
        InvalidArgument: There is no such mix.
    """
    lacking = why_no_mix(dialect, shape, max_layers)
    if lacking:
        raise InvalidArgument(lacking)
    return _mixes(shape, dialect, max_layers)


@st.composite
def _invalid(draw: st.DrawFn, dialect: Dialect, constraint: str | None) -> tuple[LayerSpec, str]:
    return invalid.build_invalid(from_draw(draw), dialect=dialect, constraint=constraint)


def invalid_specs(
    *, dialect: Dialect = FULL_DIALECT, constraint: str | None = None
) -> st.SearchStrategy[tuple[LayerSpec, str]]:
    """Specs that break exactly one constraint, each with that constraint's name.

    Args:
        dialect: Where they break it.
        constraint: Name of a row of `constraints.CONSTRAINTS`, or None for any
            that can be broken alone.

    Raises:
        InvalidArgument: No spec breaks `constraint` alone in that dialect.
    """
    names = invalid.breakable(dialect)
    if not names or (constraint is not None and constraint not in names):
        raise InvalidArgument(
            f"no spec breaks {constraint!r} alone in this dialect; there are {', '.join(names)}"
        )
    return _invalid(dialect, constraint)
