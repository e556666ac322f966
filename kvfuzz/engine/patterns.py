"""Small mixes, enumerated: which of their pages, block sizes and windows are equal.

A packer cannot tell two mixes apart that agree in the kinds of their layers
and in which page sizes, block sizes and windows are *equal*, as long as it
reads nothing else. A *pattern* is such a class of mixes: a sequence of layers,
each of a kind, with its page, block size and window numbered in the order in
which they first appear. Other orders of the same layers are other patterns.
Two mixes stand for each: one plain, one that has other sizes, the largest page
first, and fields that a packer has no reason to read. From `PAIRED_LAYERS` on a
pattern and its reverse share the two.

Patterns are numbered from 0: those of one layer, then of two, and so on, so
that a number means the same pattern whatever the most layers. A number is
turned into its mix without a look at any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from kvfuzz.pages import DS_V4_RECORD_BYTES, Dialect, page_size_bytes
from kvfuzz.specs import DTYPE_BYTES, KINDS, DType, LayerSpec, Scenario
from kvfuzz.strategies import constraints

#: The most distinct values in one pattern.
MOST_PAGES: Final = 4
MOST_BLOCKS: Final = 3
MOST_WINDOWS: Final = 3
#: The most layers of a pattern. There are 3e10 of 8 already, weeks of work.
MOST_LAYERS: Final = 8
#: Mixes that stand for a pattern: plain and dressed.
REPRESENTATIVES: Final = 2
#: From so many layers on one of a pattern and its reverse is plain only, the
#: other dressed only: there are many patterns by then, nearly all of them
#: other orders of another.
PAIRED_LAYERS: Final = 5


class PatternLayer(NamedTuple):
    """One layer of a pattern; `window` is None for a full MLA layer, which has none."""

    window: int | None
    page: int
    block: int


Pattern: TypeAlias = tuple[PatternLayer, ...]
Column: TypeAlias = tuple[int | None, ...]


def _numberings(length: int, most: int) -> Iterator[tuple[int, ...]]:
    """Every sequence of so many numbers, each at most one above all before it."""
    if length == 0:
        yield ()
        return
    for before in _numberings(length - 1, most):
        for number in range(min(max(before, default=-1) + 2, most)):
            yield (*before, number)


def _windows(length: int) -> Iterator[tuple[int | None, ...]]:
    """The same of windows, of which a layer may have none."""
    if length == 0:
        yield ()
        return
    for before in _windows(length - 1):
        yield (*before, None)
        used = max((window for window in before if window is not None), default=-1)
        for window in range(min(used + 2, MOST_WINDOWS)):
            yield (*before, window)


class _Axis:
    """All that one property of so many layers can be, each with the place of its reverse."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.columns = tuple(columns)
        places = {column: place for place, column in enumerate(self.columns)}
        self.reverse = tuple(places[_renumbered(column[::-1])] for column in self.columns)
        self.symmetric = sum(place == other for place, other in enumerate(self.reverse))


def _renumbered(column: Column) -> Column:
    """The same with its values numbered in order of first appearance."""
    numbers: dict[int, int] = {}
    return tuple(None if n is None else numbers.setdefault(n, len(numbers)) for n in column)


class _Axes(NamedTuple):
    """What the patterns of so many layers are the product of."""

    windows: _Axis
    pages: _Axis
    blocks: _Axis


@cache
def _axes(layers: int) -> _Axes:
    return _Axes(
        _Axis(_windows(layers)),
        _Axis(_numberings(layers, MOST_PAGES)),
        _Axis(_numberings(layers, MOST_BLOCKS)),
    )


@cache
def count(layers: int) -> int:
    """How many patterns of exactly so many layers there are."""
    return math.prod(len(axis.columns) for axis in _axes(layers))


@cache
def total(layers: int) -> int:
    """How many patterns of one layer up to so many there are."""
    return sum(count(some) for some in range(1, layers + 1))


@cache
def mixes(layers: int) -> int:
    """How many mixes stand for the patterns of one layer up to so many."""
    found = 0
    for some in range(1, layers + 1):
        if some < PAIRED_LAYERS:
            found += REPRESENTATIVES * count(some)
        else:
            found += count(some) + math.prod(axis.symmetric for axis in _axes(some))
    return found


@cache
def _first(layers: int) -> int:
    return total(layers - 1)


def layers_of(number: int) -> int:
    """How many layers the pattern of that number has."""
    layers = 1
    while number >= _first(layers + 1):
        layers += 1
    return layers


class _Places(NamedTuple):
    """Where on its axes a pattern is."""

    window: int
    page: int
    block: int


def _places(number: int, layers: int) -> _Places:
    axes = _axes(layers)
    number, window = divmod(number - _first(layers), len(axes.windows.columns))
    page, block = divmod(number, len(axes.blocks.columns))
    return _Places(window, page, block)


def _rows(number: int) -> Iterator[Column]:
    """Window, page and block of each layer."""
    layers = layers_of(number)
    window, page, block = _places(number, layers)
    windows, pages, blocks = _axes(layers)
    return zip(windows.columns[window], pages.columns[page], blocks.columns[block], strict=True)


def pattern(number: int) -> Pattern:
    """The pattern of that number."""
    return tuple(PatternLayer(*row) for row in _rows(number))  # type: ignore[arg-type]


def representatives(number: int) -> tuple[int, ...]:
    """Which mixes stand for a pattern: 0 for the plain one, 1 for the other."""
    layers = layers_of(number)
    if layers < PAIRED_LAYERS:
        return (0, 1)
    places = _places(number, layers)
    windows, pages, blocks = _axes(layers)
    window, page, block = places
    other = (windows.reverse[window], pages.reverse[page], blocks.reverse[block])
    if places == other:
        return (0, 1)
    return (0,) if places < other else (1,)


def pattern_of(mix: Scenario, dialect: Dialect) -> Pattern:
    """The pattern of a mix, found from its page sizes, block sizes and windows."""
    pages: dict[int, int] = {}
    blocks: dict[int, int] = {}
    windows: dict[int, int] = {}
    layers = []
    for _, spec in mix:
        window = spec.sliding_window
        layers.append(
            PatternLayer(
                None if window is None else windows.setdefault(window, len(windows)),
                pages.setdefault(page_size_bytes(spec, dialect.rules), len(pages)),
                blocks.setdefault(spec.block_size, len(blocks)),
            )
        )
    return tuple(layers)


class _Sizes(NamedTuple):
    """What the numbers in a pattern stand for. A page holds whole states of every block size."""

    pages: tuple[int, ...]
    blocks: tuple[int, ...]
    windows: tuple[int, ...]


_PLAIN: Final = _Sizes((16384, 32768, 49152, 65536), (16, 32, 64), (128, 256, 1024))
# The largest page and window first, and other ratios.
_DRESSED: Final = _Sizes((147456, 73728, 49152, 36864), (256, 64, 128), (4096, 512, 64))


class _Dress(msgspec.Struct, frozen=True):
    """One way for a layer to come by its page with more than the plain fields.

    Attributes:
        dtype: Its dtype.
        heads: KV heads.
        eighths: How much of the page its data fill; the rest is padding or
            alignment, as `fields` say.
        fields: Fields beyond the plain ones. "page" stands for the page's bytes.
    """

    dtype: DType
    heads: int = 1
    eighths: int = 8
    fields: dict[str, Any] = {}


_BARE: Final = _Dress("bfloat16")

_RECORDS: Final = {
    "cache_dtype_str": "fp8_ds_mla",
    "model_version": "deepseek_v4",
    "compress_ratio": 4,
    "page_size_padded": "page",
}

#: Those that a dialect cannot express, or in which they come to another page,
#: are left out there.
_DRESSES: Final = (
    _Dress("uint8", heads=2, fields={"kv_quant_mode": "fp8_per_tensor", "cache_dtype_str": "fp8"}),
    _Dress("float16", fields={"compress_ratio": 4}),
    _Dress("float32", eighths=4, fields={"page_size_padded": "page"}),
    _Dress("int8", heads=4),
    _Dress("float8_e4m3fn", fields={"extra_retained_tokens": 16}),
    _Dress("bfloat16", fields={"non_causal": True}),
    _Dress("float8_e5m2", fields={"attention_chunk_size": 8192, "compress_ratio": 2}),
    _Dress("bfloat16", eighths=4, fields={"alignment": "page"}),
    _Dress("float16", fields={"indexes_kv_by_block_stride": True, "cache_dtype_str": "auto"}),
    _Dress("bfloat16", heads=2, fields={"compress_ratio": 4, "model_version": "deepseek_v4"}),
    _Dress("uint8", eighths=6, fields={"alignment": "page", "head_size_v": 0}),
    _Dress("uint8", eighths=4, fields=_RECORDS),
    _Dress("uint8", fields={**_RECORDS, "state_content_bytes": DS_V4_RECORD_BYTES}),
    _Dress("uint8", fields={"num_head_slots": 1, "kv_quant_mode": "nvfp4"}),
)

_NAMES: Final = tuple(f"layers.{number}" for number in range(MOST_LAYERS))


class Mixes:
    """The mixes that can stand for patterns, valid in a dialect.

    Mix 2 n is the plain one of pattern n, mix 2 n + 1 the dressed one. There the
    layers take their dresses in turn, so that layers that a packer should not
    tell apart differ.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._plain: dict[Column, LayerSpec] = {}
        self._dressed: dict[Column, tuple[LayerSpec, ...]] = {}
        for key in product((None, *range(MOST_WINDOWS)), range(MOST_PAGES), range(MOST_BLOCKS)):
            self._plain[key] = _spec(_BARE, PatternLayer(*key), _PLAIN)
            self._dressed[key] = tuple(self._specs(PatternLayer(*key)))

    def _specs(self, layer: PatternLayer) -> Iterator[LayerSpec]:
        for dress in _DRESSES:
            own = KINDS[_kind(layer)].__struct_fields__
            if all(name in own for name in dress.fields):
                spec = _spec(dress, layer, _DRESSED)
                if self._fits(spec, _DRESSED.pages[layer.page]):
                    yield spec

    def _fits(self, spec: LayerSpec, page: int) -> bool:
        """Whether the dialect has the spec, with that page."""
        if constraints.broken(spec, self._dialect):
            return False
        return page_size_bytes(spec, self._dialect.rules) == page

    def mix(self, number: int) -> Scenario:
        """The mix of that number."""
        pattern_number, representative = divmod(number, REPRESENTATIVES)
        layers = _rows(pattern_number)
        if not representative:
            return Scenario(tuple(zip(_NAMES, map(self._plain.__getitem__, layers), strict=False)))
        mix = []
        for turn, (name, layer) in enumerate(zip(_NAMES, layers, strict=False), pattern_number):
            dresses = self._dressed[layer]
            mix.append((name, dresses[turn % len(dresses)]))
        return Scenario(tuple(mix))


def _kind(layer: PatternLayer) -> str:
    return "mla_attention" if layer.window is None else "sliding_window_mla"


def _spec(dress: _Dress, layer: PatternLayer, sizes: _Sizes) -> LayerSpec:
    """A layer of a pattern in a dress."""
    page, block = sizes.pages[layer.page], sizes.blocks[layer.block]
    fields: dict[str, Any] = {
        name: page if value == "page" else value for name, value in dress.fields.items()
    }
    if layer.window is not None:
        fields["sliding_window"] = sizes.windows[layer.window]
    states = block // fields.get("compress_ratio", 1)
    data = page * dress.eighths // 8
    return KINDS[_kind(layer)](
        block_size=block,
        num_kv_heads=dress.heads,
        head_size=data // (states * dress.heads * DTYPE_BYTES[dress.dtype]),
        dtype=dress.dtype,
        **fields,
    )
