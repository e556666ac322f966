"""Which shapes of mixes a search tried, as the tables of the HTML report.

Verifications are left out: they cover what they say, and a share of theirs
would look as if it had gaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvfuzz.engine.events import Report
from kvfuzz.engine.shapes import GROUP_NAMES, LAYER_NAMES, NO_DTYPE, RATIO_NAMES, Shapes
from kvfuzz.reporting.mix import KIND_LOOKS, look_of
from kvfuzz.reporting.words import plural
from kvfuzz.specs import DTYPE_BYTES

#: Shades of the heat map, beside that of 0.
_SHADES = 4
#: The longest bar, in percent.
_FULL = 100.0

#: Name -> what it means, where that does not go without saying.
_RATIO_WORDS = {"1": "all pages equal", "<1.05": "near miss"}
_GROUP_WORDS = {"none": "not packed"}


def shapes_by_surface(report: Report, numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """The tables of each surface: of all its targets together, and of each if they are several.

    Args:
        report: The report.
        numbers: Target -> its number in the page's filter.
    """
    surfaces: dict[str, list[tuple[str, Shapes]]] = {}
    for target in report.targets:
        for surface in target.surfaces:
            if surface.tally.shapes.mixes and not surface.verified:
                made = surfaces.setdefault(surface.surface, [])
                made.append((target.uri, surface.tally.shapes))
    views = []
    for name, shapes in surfaces.items():
        each = [_block(made) | {"uri": uri, "number": numbers[uri]} for uri, made in shapes]
        whole = _block(_sum(made for _, made in shapes))
        views.append({"name": name, "whole": whole, "targets": each})
    return views


def _sum(shapes: Iterable[Shapes]) -> Shapes:
    total = Shapes()
    for made in shapes:
        total.add(made)
    return total


def _block(shapes: Shapes) -> dict[str, Any]:
    return {
        "mixes": plural(shapes.mixes, "mix", "mixes"),
        "kinds": [look_of(kind)[0] for kind in _kinds(shapes)],
        "heat": _heat(shapes),
        "bars": [
            {
                "title": "Largest page by smallest page",
                "rows": _bars(RATIO_NAMES, shapes.ratios, _RATIO_WORDS),
            },
            {"title": "Layers", "rows": _bars(LAYER_NAMES, shapes.layers, {})},
            {
                "title": "Groups, or what else came",
                "rows": _bars(GROUP_NAMES, shapes.groups, _GROUP_WORDS),
            },
        ],
    }


def _kinds(shapes: Shapes) -> list[str]:
    """The kinds of a table: those of a packer, or if there are others those that were seen."""
    seen = {name.split(" ")[0] for name in shapes.kinds}
    return list(KIND_LOOKS) if seen <= KIND_LOOKS.keys() else sorted(seen)


def _heat(shapes: Shapes) -> list[dict[str, Any]]:
    """A row a dtype, a cell a kind."""
    most = max(shapes.kinds.values(), default=0)
    rows = []
    several = any(name.endswith(f" {NO_DTYPE}") for name in shapes.kinds)
    for dtype in (*DTYPE_BYTES, *([NO_DTYPE] if several else [])):
        cells = []
        for kind in _kinds(shapes):
            number = shapes.kinds[f"{kind} {dtype}"]
            shade = -(-_SHADES * number // most) if most else 0
            share = _percent(number, shapes.mixes)
            cells.append({"number": f"{number:,}", "share": share, "shade": shade})
        rows.append({"dtype": dtype, "cells": cells})
    return rows


def _bars(
    names: Sequence[str], counts: Counter[str], words: Mapping[str, str]
) -> list[dict[str, Any]]:
    most, total = max(counts.values(), default=0), sum(counts.values())
    return [
        {
            "name": name,
            "words": words.get(name, ""),
            "number": f"{counts[name]:,}",
            "share": _percent(counts[name], total),
            "length": round(_FULL * counts[name] / most, 2) if most else 0,
        }
        for name in names
    ]


def _percent(number: int, total: int) -> str:
    """`12 %`; a share that is not 0 is never said to be."""
    share = 100 * number / total if total else 0.0
    return "<1 %" if 0 < share < 1 else f"{share:.0f} %"
