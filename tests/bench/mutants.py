"""Planners that are wrong on few mixes: the reference, with a bug that several facts must meet for.

MUTANTS says of each how few layers show it. `tests/unit/test_mutants.py` proves that with
a mix of just so many layers, of which none can be left out.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations
from math import gcd
from typing import NamedTuple

from kvfuzz.pages import FULL_DIALECT, page_size_bytes, unpadded_page_size_bytes
from kvfuzz.reference import group_and_unify_kv_cache_specs as reference
from kvfuzz.specs import LayerSpec, MLAAttentionSpec, SlidingWindowMLASpec

Mix = dict[str, LayerSpec]
Groups = list[list[str]] | None

RULES = FULL_DIALECT.rules


def broken(planner: Callable[[Mix], Groups], mix: Mix) -> bool:
    """Whether a planner breaks a founding invariant on a mix, as one checks it by hand."""
    groups = planner(dict(mix))
    if groups is None:
        return False
    pages = {name: page_size_bytes(spec, RULES) for name, spec in mix.items()}
    if len(set(pages.values())) <= 1:
        return True
    if sorted(name for group in groups for name in group) != sorted(mix):
        return True
    return any(len({pages[name] for name in group}) != 1 for group in groups)


def fails(planner: Callable[[Mix], Groups], mix: Mix) -> bool:
    """Whether it breaks one, or crashes."""
    try:
        return broken(planner, mix)
    except Exception:
        return True


def _page(spec: LayerSpec) -> int:
    return page_size_bytes(spec, RULES)


def _without(groups: list[list[str]], lost: str) -> list[list[str]]:
    kept = [[name for name in group if name != lost] for group in groups]
    return [group for group in kept if group]


def compressed_fp8_beside_two_blocks(specs: Mix) -> Groups:
    """Loses a compressed fp8 layer if the windows have blocks of two sizes."""
    groups = reference(specs)
    if groups is None:
        return None
    blocks = {s.block_size for s in specs.values() if isinstance(s, SlidingWindowMLASpec)}
    if len(blocks) < 2:
        return groups
    for name, spec in specs.items():
        if not isinstance(spec, MLAAttentionSpec) or spec.compress_ratio == 1:
            continue
        if spec.dtype == "float8_e4m3fn":
            return _without(groups, name)
    return groups


def twenty_layers(specs: Mix) -> Groups:
    """From 20 layers on, merges groups of a window if one's page is twice the other's."""
    groups = reference(specs)
    if groups is None or len(specs) < 20:
        return groups
    windows = [group for group in groups if isinstance(specs[group[0]], SlidingWindowMLASpec)]
    for one, other in permutations(windows, 2):
        small, large = specs[one[0]], specs[other[0]]
        if (small.block_size, small.sliding_window) != (large.block_size, large.sliding_window):
            continue
        if 2 * _page(small) == _page(large):
            return [one + other, *(g for g in groups if g not in (one, other))]
    return groups


def int8_page_of_three(specs: Mix) -> Groups:
    """Loses a full MLA layer of int8 that has a window's block and three times its page."""
    groups = reference(specs)
    if groups is None:
        return None
    windows = [s for s in specs.values() if isinstance(s, SlidingWindowMLASpec)]
    thirds = {(s.block_size, 3 * _page(s)) for s in windows}
    for name, spec in specs.items():
        if spec.dtype != "int8" or not isinstance(spec, MLAAttentionSpec):
            continue
        if (spec.block_size, _page(spec)) in thirds:
            return _without(groups, name)
    return groups


def interleaved_at_the_end(specs: Mix) -> Groups:
    """Loses the last layer if it and the last but two, of one block, are full MLA.

    Only if a window lies between them whose page is the one's and not the other's.
    """
    groups = reference(specs)
    if groups is None or len(specs) < 3:
        return groups
    names = list(specs)[-3:]
    first, window, last = (specs[name] for name in names)
    if not isinstance(window, SlidingWindowMLASpec):
        return groups
    if not isinstance(first, MLAAttentionSpec) or not isinstance(last, MLAAttentionSpec):
        return groups
    if first.block_size != last.block_size:
        return groups
    if _page(first) == _page(window) != _page(last):
        return _without(groups, names[-1])
    return groups


def odd_layer_last(specs: Mix) -> Groups:
    """Loses a last layer that is alone in its group but has the page of the first layer.

    Only behind two other groups, of several layers each.
    """
    groups = reference(specs)
    if groups is None or len(groups) < 3:
        return groups
    if groups[-1] != [list(specs)[-1]]:
        return groups
    if _page(specs[groups[-1][0]]) != _page(specs[groups[0][0]]):
        return groups
    if all(len(group) > 1 for group in groups[:-1]):
        return groups[:-1]
    return groups


def three_windows_of_one_shape(specs: Mix) -> Groups:
    """Has room for two windows of one block and page, and loses the third."""
    groups = reference(specs)
    if groups is None:
        return None
    seen: dict[tuple[int, int], set[int]] = {}
    for name, spec in specs.items():
        if not isinstance(spec, SlidingWindowMLASpec):
            continue
        windows = seen.setdefault((spec.block_size, _page(spec)), set())
        windows.add(spec.sliding_window)
        if len(windows) == 3:
            return _without(groups, name)
    return groups


def coprime_pages(specs: Mix) -> Groups:
    """Fails on pages of one block and dtype, of both kinds, that share only a small divisor."""
    groups = reference(specs)
    if groups is None:
        return None
    for one, other in combinations(dict.fromkeys(specs.values()), 2):
        if (one.block_size, one.dtype) != (other.block_size, other.dtype):
            continue
        if one.kind == other.kind:
            continue
        pages = _page(one), _page(other)
        assert gcd(*pages) * 64 >= min(pages), "no common page"
    return groups


def nearly_equal_pages(specs: Mix) -> Groups:
    """Merges groups of windows that differ only in the page, and there by under a twentieth."""
    groups = reference(specs)
    if groups is None:
        return None
    merged: list[list[str]] = []
    for group in groups:
        spec = specs[group[0]]
        for others in merged:
            other = specs[others[0]]
            if spec.kind != other.kind or not isinstance(spec, SlidingWindowMLASpec):
                continue
            if spec.block_size != other.block_size:
                continue
            if spec.sliding_window != other.sliding_window:
                continue
            if abs(_page(spec) - _page(other)) * 20 < _page(spec):
                others += group
                break
        else:
            merged.append(list(group))
    return merged


def padded_to_anothers_page(specs: Mix) -> Groups:
    """Loses a padded window that has the block and page of a full MLA layer without padding."""
    groups = reference(specs)
    if groups is None:
        return None
    full = [s for s in specs.values() if isinstance(s, MLAAttentionSpec) and not _is_padded(s)]
    taken = {(s.block_size, _page(s)) for s in full}
    for name, spec in specs.items():
        if not isinstance(spec, SlidingWindowMLASpec) or not _is_padded(spec):
            continue
        if (spec.block_size, _page(spec)) in taken:
            return _without(groups, name)
    return groups


def _is_padded(spec: LayerSpec) -> bool:
    return _page(spec) > unpadded_page_size_bytes(spec, RULES)


def seventeenth_of_a_group(specs: Mix) -> Groups:
    """Holds a group of int8 windows in sixteen places, if there are two other groups."""
    groups = reference(specs)
    if groups is None or len(groups) < 3:
        return groups
    kept = []
    for group in groups:
        spec = specs[group[0]]
        if isinstance(spec, SlidingWindowMLASpec) and spec.dtype == "int8":
            kept.append(group[:16])
        else:
            kept.append(group)
    return kept


def five_pages_and_one_alone(specs: Mix) -> Groups:
    """Fails on five page sizes if a full MLA layer of the largest is the only one alone."""
    groups = reference(specs)
    if groups is None:
        return None
    pages = {_page(spec) for spec in specs.values()}
    if len(pages) < 5:
        return groups
    alone = [specs[group[0]] for group in groups if len(group) == 1]
    if len(alone) != 1:
        return groups
    if isinstance(alone[0], MLAAttentionSpec) and _page(alone[0]) == max(pages):
        raise IndexError("no second layer")
    return groups


class Mutant(NamedTuple):
    """A wrong planner, and the fewest layers that show it."""

    planner: Callable[[Mix], Groups]
    layers: int

    @property
    def name(self) -> str:
        return self.planner.__name__


MUTANTS = tuple(
    Mutant(planner, layers)
    for planner, layers in (
        (compressed_fp8_beside_two_blocks, 3),
        (twenty_layers, 20),
        (int8_page_of_three, 2),
        (interleaved_at_the_end, 3),
        (odd_layer_last, 5),
        (three_windows_of_one_shape, 4),
        (coprime_pages, 2),
        (nearly_equal_pages, 2),
        (padded_to_anothers_page, 3),
        (seventeenth_of_a_group, 19),
        (five_pages_and_one_alone, 9),
    )
)
