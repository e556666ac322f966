"""The enumeration of small mixes: how many there are, and that each is what its number says."""

from __future__ import annotations

from itertools import combinations_with_replacement, permutations, product
from math import comb, prod

import msgspec
import pytest

from kvfuzz.engine import patterns
from kvfuzz.engine.patterns import Mixes, Pattern, PatternLayer, pattern, pattern_of
from kvfuzz.pages import DEFAULTS, FULL_DIALECT, Dialect, PageRules, page_size_bytes
from kvfuzz.specs import MLAAttentionSpec, SlidingWindowMLASpec
from kvfuzz.strategies import constraints
from tests.strategies.common import OLD_DIALECT

#: Nothing but what every spec must have.
BARE_DIALECT = Dialect(
    rules=PageRules(),
    fields={
        kind: frozenset({"block_size", "num_kv_heads", "head_size", "dtype", "sliding_window"})
        for kind in FULL_DIALECT.fields
    },
    quant_modes=frozenset({"none"}),
)


def _numbered(layers: tuple[tuple[int | None, int, int], ...]) -> Pattern:
    """Values replaced by numbers in order of first appearance, property by property."""
    columns = []
    for column in zip(*layers, strict=True):
        numbers: dict[int, int] = {}
        columns.append([None if v is None else numbers.setdefault(v, len(numbers)) for v in column])
    return tuple(PatternLayer(*row) for row in zip(*columns, strict=True))


CLASSES = tuple(product((None, 0, 1, 2), range(4), range(3)))


def _of_exactly(layers: int) -> list[Pattern]:
    first = patterns.total(layers - 1)
    return [pattern(first + number) for number in range(patterns.count(layers))]


@pytest.mark.parametrize(("layers", "count"), [(1, 2), (2, 20), (3, 375)])
def test_every_sequence_of_layers_has_one_pattern(layers: int, count: int):
    """By brute force: sequences over concrete classes, numbered."""
    expected = {_numbered(sequence) for sequence in product(CLASSES, repeat=layers)}
    found = _of_exactly(layers)
    assert len(found) == len(set(found)) == count == patterns.count(layers)
    assert set(found) == expected


def _partitions(items: int, parts: int) -> int:
    """Ways to part so many items into exactly so many sets."""
    if parts == 0 or items == 0:
        return int(parts == items)
    return parts * _partitions(items - 1, parts) + _partitions(items - 1, parts - 1)


@pytest.mark.parametrize(
    ("layers", "count"), [(4, 10_710), (5, 391_017), (6, 16_312_010), (7, 729_425_125)]
)
def test_larger_counts_by_formula(layers: int, count: int):
    def up_to(items: int, most: int) -> int:
        return sum(_partitions(items, parts) for parts in range(most + 1))

    windows = sum(comb(layers, some) * up_to(some, 3) for some in range(layers + 1))
    assert windows * up_to(layers, 4) * up_to(layers, 3) == count == patterns.count(layers)


def test_totals():
    assert [patterns.total(layers) for layers in range(6)] == [0, 2, 22, 397, 11_107, 402_124]
    assert [patterns.mixes(layers) for layers in range(6)] == [0, 4, 44, 794, 22_214, 415_904]


def _orbits(layers: int) -> int:
    """Patterns up to the order of their layers, by counting those that each order leaves alone."""
    columns = [axis.columns for axis in patterns._axes(layers)]
    orders = list(permutations(range(layers)))
    same = 0
    for order in orders:
        same += prod(
            sum(patterns._renumbered(tuple(c[i] for i in order)) == c for c in axis)
            for axis in columns
        )
    return same // len(orders)


@pytest.mark.parametrize(("layers", "count"), [(1, 2), (2, 16), (3, 98), (4, 720), (5, 5_106)])
def test_counts_up_to_order(layers: int, count: int):
    """How many patterns there would be if a planner did not see the order of layers."""
    assert _orbits(layers) == count
    if layers <= 3:
        least = {
            min((_numbered(order) for order in permutations(mix)), key=repr)
            for mix in combinations_with_replacement(CLASSES, layers)
        }
        assert len(least) == count


def test_sorting_before_numbering_counts_some_mixes_twice():
    """Which is why counts between the two above can be met: 188 of 3 layers, not 98 or 375."""
    by_kind = sorted(CLASSES, key=lambda c: (c[0] is not None, c[1], c[2], c[0] or 0))
    for layers, count in ((2, 16), (3, 188)):
        numbered = {_numbered(mix) for mix in combinations_with_replacement(by_kind, layers)}
        assert len(numbered) == count


def test_a_number_needs_no_others():
    """Far into 6 and 8 layers; neighbours differ, first and last are the extremes."""
    first = patterns.total(7)
    last = patterns.total(8) - 1
    assert pattern(first) == (PatternLayer(None, 0, 0),) * 8
    assert [layer.page for layer in pattern(last)] == [0, 1, 2, 3, 3, 3, 3, 3]
    assert [layer.block for layer in pattern(last)] == [0, 1, 2, 2, 2, 2, 2, 2]
    assert [layer.window for layer in pattern(last)] == [0, 1, 2, 2, 2, 2, 2, 2]
    assert pattern(last - 1) != pattern(last)
    assert patterns.layers_of(first) == 8
    assert patterns.layers_of(first - 1) == 7


DIALECTS = {"full": FULL_DIALECT, "old": OLD_DIALECT, "bare": BARE_DIALECT}


@pytest.mark.parametrize("name", DIALECTS)
def test_every_mix_is_valid_and_of_its_pattern(name: str):
    dialect = DIALECTS[name]
    mixes = Mixes(dialect)
    specs = set()
    for number in range(2 * patterns.total(4)):
        mix = mixes.mix(number)
        assert pattern_of(mix, dialect) == pattern(number // 2)
        kinds = [isinstance(spec, SlidingWindowMLASpec) for _, spec in mix]
        assert kinds == [layer.window is not None for layer in pattern(number // 2)]
        assert [layer for layer, _ in mix] == [f"layers.{n}" for n in range(len(mix))]
        specs.update(spec for _, spec in mix)
    assert [spec for spec in specs if constraints.broken(spec, dialect)] == []
    assert len({page_size_bytes(spec, dialect.rules) for spec in specs}) == 7  # 49152 is in both


def test_a_sample_of_five_and_six_layers():
    mixes = Mixes(FULL_DIALECT)
    for number in range(2 * patterns.total(4), 2 * patterns.total(6), 40_009):
        assert pattern_of(mixes.mix(number), FULL_DIALECT) == pattern(number // 2)


def test_the_two_mixes_of_a_pattern_differ_in_all_but_equalities():
    mixes = Mixes(FULL_DIALECT)
    for number in range(patterns.total(3)):
        for (_, plain), (_, dressed) in zip(
            mixes.mix(2 * number), mixes.mix(2 * number + 1), strict=True
        ):
            assert type(plain) is type(dressed)
            assert plain.block_size != dressed.block_size or plain.dtype != dressed.dtype
            if plain.sliding_window is not None:
                assert plain.sliding_window != dressed.sliding_window


def test_layers_that_a_packer_cannot_tell_apart_are_dressed_otherwise():
    mixes = Mixes(FULL_DIALECT)
    alike = patterns.total(2)  # the first of three layers: three full ones, all equal
    plain, dressed = mixes.mix(2 * alike), mixes.mix(2 * alike + 1)
    assert len({spec for _, spec in plain}) == 1
    assert len({spec for _, spec in dressed}) == 3
    assert all(isinstance(spec, MLAAttentionSpec) for _, spec in dressed)


def test_every_dress_is_worn():
    mixes = Mixes(FULL_DIALECT)
    worn = {
        name
        for number in range(1, 2 * patterns.total(3), 2)
        for _, spec in mixes.mix(number)
        for name, default in DEFAULTS[spec.kind].items()
        if default is not msgspec.NODEFAULT and getattr(spec, name) != default
    }
    never = {"sliding_window", "non_causal_multi_token_decode"}  # of a full MLA layer
    assert worn | never == {
        name
        for defaults in DEFAULTS.values()
        for name, default in defaults.items()
        if default is not msgspec.NODEFAULT
    }


def test_a_pattern_and_its_reverse_share_two_mixes_from_five_layers_on():
    assert patterns.representatives(patterns.total(4) - 1) == (0, 1)
    first = patterns.total(4)
    numbers = range(first, first + patterns.count(5))
    places = {pattern(number): number for number in numbers[:: len(numbers) // 2000]}
    checked = both = 0
    for number in places.values():
        mine = patterns.representatives(number)
        reverse = _numbered(tuple(reversed(pattern(number))))
        if reverse == pattern(number):
            both += 1
            assert mine == (0, 1)
            continue
        window, page, block = (patterns._axes(5)[i].columns for i in range(3))
        columns = list(zip(*reverse, strict=True))
        other = first + (
            (page.index(columns[1]) * len(block) + block.index(columns[2])) * len(window)
            + window.index(columns[0])
        )
        assert pattern(other) == reverse
        assert sorted(mine + patterns.representatives(other)) == [0, 1]
        checked += 1
    assert checked > 1_500
    assert both >= 1


def test_mixes_of_five_layers_are_as_many_as_promised():
    first = patterns.total(4)
    found = sum(
        len(patterns.representatives(number)) for number in range(first, first + patterns.count(5))
    )
    assert patterns.mixes(4) + found == patterns.mixes(5) == 415_904
