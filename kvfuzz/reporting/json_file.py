"""The report of a run as JSON, in the form that scripts rely on."""

from __future__ import annotations

from typing import Any

import msgspec

from kvfuzz.engine.events import Report
from kvfuzz.engine.shapes import (
    GROUP_NAMES,
    KIND_NAMES,
    LAYER_NAMES,
    RATIO_NAMES,
    SHAPES_SHARE,
    Shapes,
)
from kvfuzz.findings import finding_to_json
from kvfuzz.invariants import invariants_of
from kvfuzz.outcomes import OUTCOME_NAMES


def report_to_json(report: Report) -> dict[str, Any]:
    """The report as the data that `--json` documents."""
    return {
        "kvfuzz": report.kvfuzz,
        "seed": report.seed,
        "interrupted": report.interrupted,
        "targets": [
            {
                "uri": target.uri,
                "version": target.version,
                "error": target.error,
                "surfaces": [
                    {
                        "surface": surface.surface,
                        "config": surface.config or None,
                        "mixes": surface.tally.mixes,
                        "mixes_per_second": round(surface.mixes_per_second, 1),
                        "seconds": round(surface.seconds, 3),
                        "stopped": surface.stopped,
                        "leaks": surface.leaks,
                        "never_set": list(surface.never_set),
                        "verified": msgspec.to_builtins(surface.verified),
                        "outcomes": {name: surface.tally.outcomes[name] for name in OUTCOME_NAMES},
                        "shapes": _shapes(surface.tally.shapes),
                        "invariants": [
                            {
                                "id": rule.id,
                                "severity": rule.severity,
                                "checked": surface.tally.checked[rule.id],
                                "violated": surface.tally.violated[rule.id],
                            }
                            for rule in invariants_of(surface.surface)
                        ],
                    }
                    for surface in target.surfaces
                ],
            }
            for target in report.targets
        ],
        "findings": [finding_to_json(finding) for finding in report.findings],
    }


def _shapes(shapes: Shapes) -> dict[str, Any]:
    """Counts of one mix in `share`; what was not seen is there too, with 0."""
    return {
        "share": SHAPES_SHARE,
        "mixes": shapes.mixes,
        "kinds": {n: shapes.kinds[n] for n in dict.fromkeys((*KIND_NAMES, *sorted(shapes.kinds)))},
        "ratios": {name: shapes.ratios[name] for name in RATIO_NAMES},
        "groups": {name: shapes.groups[name] for name in GROUP_NAMES},
        "layers": {name: shapes.layers[name] for name in LAYER_NAMES},
    }


def to_json(report: Report) -> bytes:
    """The report as a JSON file."""
    return msgspec.json.format(msgspec.json.encode(report_to_json(report))) + b"\n"
