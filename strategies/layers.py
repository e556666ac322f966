"""How many layers a mix has, and which of them has which spec.

Models repeat a few specs in a pattern; drawing each layer's spec by itself
makes mixes that no model has, costs time, and shrinks badly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from random import Random
from typing import Final, TypeAlias

from kvfuzz.specs import LayerSpec
from kvfuzz.strategies.choices import Choose

#: The most layers of a mix: as many as DeepSeek V3 has, and a few.
MOST_LAYERS: Final = 64

#: Ranges of layer counts, each equally common: few; some; about a dozen, as
#: the planners' own tests have, or two; anything.
_COUNTS: Final = ((1, 6), (7, 20), (12, 32), (1, MOST_LAYERS))

#: Layers in order: (name, spec).
Layers: TypeAlias = list[tuple[str, LayerSpec]]

_NAMES: Final = tuple(f"layers.{i}" for i in range(MOST_LAYERS))

_PATTERNS: Final = (
    *("cycle",) * 3,
    "runs",
    "last",
    "first",
    *("odd",) * 6,
    "shuffled",
    "shuffled-runs",
    *("scattered",) * 5,
)


#: Those that a further choice shifts.
_SHIFTED: Final = frozenset(("shuffled", "shuffled-runs", "scattered"))


@lru_cache(maxsize=16384)
def _order(pattern: str, specs: int, count: int, shift: int) -> tuple[int, ...]:
    """For each of `count` layers, the index of its spec; each of `specs` occurs."""
    places = range(count)
    match pattern:
        case "cycle":
            return tuple(i % specs for i in places)
        case "runs":
            return tuple(i * specs // count for i in places)
        case "last":  # one layer each of all but the first, behind the others
            return tuple(max(0, i - count + specs) for i in places)
        case "first":
            return tuple(max(0, specs - 1 - i) for i in places)
        case "odd":  # the last spec once, behind a cycle of the others
            return (*(i % max(1, specs - 1) for i in range(count - 1)), specs - 1)
        case "scattered":  # each layer for itself, so that specs differ in how often they occur
            random = Random(shift).random
            order = [i if i < specs else int(random() * specs) for i in places]
            return tuple(sorted(order, key=lambda _: random()))
    # Steps that share no factor with the count visit each place once.
    step = shift if gcd(shift, count) == 1 else 1
    visited = [(i * step + shift) % count for i in places]
    if pattern == "shuffled":
        return tuple(place % specs for place in visited)
    return tuple(place * specs // count for place in visited)


def lay_out(choose: Choose, specs: list[LayerSpec], most: int) -> Layers:
    """Layers named "layers.0", "layers.1", ... that use each of `specs`.

    Args:
        choose: The source.
        specs: Specs to use, at most `most`.
        most: The largest number of layers.
    """
    kinds = len(specs)
    low, high = _COUNTS[choose(0, len(_COUNTS) - 1)]
    count = min(max(choose(low, high), kinds), most)
    pattern = _PATTERNS[choose(0, len(_PATTERNS) - 1)]
    shift = choose(1, 31) if pattern in _SHIFTED else 1
    order = _order(pattern, kinds, count, shift)
    return named([specs[i] for i in order])


def named(specs: Sequence[LayerSpec]) -> Layers:
    """Layers of these specs, MOST_LAYERS at most, named "layers.0", "layers.1", ..."""
    return list(zip(_NAMES[: len(specs)], specs, strict=True))
