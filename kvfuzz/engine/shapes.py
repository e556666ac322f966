"""What kinds of mixes a search has tried, and what came of them: counted on a share of them.

A search that never built a kind of mix says nothing about it; these counts
show what was never tried.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from kvfuzz.outcomes import Outcome, Plan, outcome_name
from kvfuzz.specs import DTYPE_BYTES, KINDS, Scenario

#: One mix in so many is counted, by its number: any number of workers count the same mixes.
SHAPES_SHARE = 32

# Plans of so many groups and more are one.
_MANY_GROUPS = 8

#: The names under which mixes are counted, in the order of reports.
KIND_NAMES = tuple(f"{kind} {dtype}" for kind in KINDS for dtype in DTYPE_BYTES)
#: What stands for the dtype of a kind that has none of its own.
NO_DTYPE = "several"
RATIO_NAMES = ("1", "<1.05", "<2", "2", ">2 whole", ">2", "coprime")
GROUP_NAMES = (
    "none",
    *(str(number) for number in range(_MANY_GROUPS)),
    f"{_MANY_GROUPS}+",
    "refusal",
    "crash",
    "not-expressible",
)
LAYER_NAMES = ("1", "2-4", "5-16", "17+")


class Shapes(msgspec.Struct):
    """Counts of mixes by shape.

    Attributes:
        kinds: "kind dtype" -> mixes that have such a layer, so one mix
            counts under several. Of open specs there are others than in KIND_NAMES.
        ratios: Largest page by smallest page -> mixes; see `ratio_name`.
            Mixes that a target cannot be told have none.
        groups: Number of groups that the planner made, or its other outcome
            -> mixes.
        layers: Number of layers -> mixes.
    """

    kinds: Counter[str] = msgspec.field(default_factory=Counter)
    ratios: Counter[str] = msgspec.field(default_factory=Counter)
    groups: Counter[str] = msgspec.field(default_factory=Counter)
    layers: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def mixes(self) -> int:
        """Mixes counted."""
        return self.layers.total()

    def count(self, scenario: Scenario, pages: Mapping[str, int], outcome: Outcome) -> None:
        """Count one mix.

        Args:
            scenario: The mix.
            pages: Layer name -> page size in bytes, of all layers or, if the
                mix is not expressible, of some.
            outcome: What came of it.
        """
        self.kinds.update({f"{spec.kind} {spec.dtype or NO_DTYPE}" for _, spec in scenario})
        if pages and len(pages) == len(scenario):
            self.ratios[ratio_name(pages.values())] += 1
        self.groups[_group_name(outcome)] += 1
        self.layers[_layer_name(len(scenario))] += 1

    def add(self, other: Shapes) -> None:
        """Add the counts of `other` to these."""
        self.kinds.update(other.kinds)
        self.ratios.update(other.ratios)
        self.groups.update(other.groups)
        self.layers.update(other.layers)


def ratio_name(pages: Collection[int]) -> str:
    """The name in RATIO_NAMES for the largest page by the smallest.

    A packer can scale pages to one size only if the ratio is whole. Of those
    that are not, near misses stand apart, and pages without a common factor.
    """
    largest, smallest = max(pages), min(pages)
    if largest == smallest:
        return "1"
    if 20 * largest < 21 * smallest:
        return "<1.05"
    if largest == 2 * smallest:
        return "2"
    if smallest and largest % smallest == 0:
        return ">2 whole"
    if math.gcd(largest, smallest) == 1:
        return "coprime"
    return "<2" if largest < 2 * smallest else ">2"


def _group_name(outcome: Outcome) -> str:
    if isinstance(outcome, Plan) and outcome.groups is not None:
        number = len(outcome.groups)
        return str(number) if number < _MANY_GROUPS else f"{_MANY_GROUPS}+"
    return outcome_name(outcome)


def _layer_name(layers: int) -> str:
    if layers == 1:
        return "1"
    if layers <= 4:
        return "2-4"
    return "5-16" if layers <= 16 else "17+"
