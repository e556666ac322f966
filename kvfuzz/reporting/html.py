"""A run's report as one HTML file that opens anywhere, without network.

This module decides what is shown; `report.html.j2`, `report.css` and
`report.js`, next to it, how. All three go into the file. Its content security
policy allows that style and that script by their hashes, and nothing else: a
text of others that slipped through as markup would still not run.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import jinja2
import msgspec

from kvfuzz.cases import case_text
from kvfuzz.engine.events import Report, SurfaceReport, TargetReport
from kvfuzz.engine.shapes import SHAPES_SHARE
from kvfuzz.files import printable
from kvfuzz.findings import Finding
from kvfuzz.invariants import all_invariants, invariants_of
from kvfuzz.ledger import REASONS, find_known
from kvfuzz.outcomes import OUTCOME_NAMES
from kvfuzz.reporting.bars import picture
from kvfuzz.reporting.console import covered, leaking, path_key
from kvfuzz.reporting.history import past_runs
from kvfuzz.reporting.matrix import (
    Cell,
    Status,
    failure,
    is_verification,
    judge_cell,
    severity,
    spread,
    status_of,
    verdict,
)
from kvfuzz.reporting.mix import KIND_LOOKS
from kvfuzz.reporting.shape_tables import shapes_by_surface
from kvfuzz.reporting.timeline import Timeline
from kvfuzz.reporting.words import by_config, plural

#: Findings shown in full; of the others a line each. A run may have thousands.
MAX_FULL = 60
_MAX_LINES = 2000
#: Bytes of a case that are shown; a mix that has not been shrunk may be large.
_MAX_CASE = 32 << 10
#: Bands and labels of targets in the chart, if there are no more than this.
_MAX_BANDS = 24

#: Status -> its sign and its words.
STATUS_LOOKS = {
    Status.NEW: ("✗", "New"),
    Status.KNOWN_BUG: ("▲", "Known bug"),
    Status.UNCONFIRMED: ("?", "Not confirmed"),
    Status.BY_DESIGN: ("◇", "Known, by design"),
    Status.HOLDS: ("✓", "Holds"),
    Status.NOT_JUDGED: ("-", "Not judged"),
}
_OUTCOME_LETTERS = {"plan": "P", "none": "N", "refusal": "R", "crash": "C", "not-expressible": "X"}


class Variant(msgspec.Struct, frozen=True):
    """A finding as some targets show it: they agree in the mix and in what came of it."""

    finding: Finding
    targets: tuple[str, ...]


class Entry(msgspec.Struct, frozen=True):
    """All findings of one id and status."""

    anchor: str
    status: Status
    variants: tuple[Variant, ...]

    @property
    def targets(self) -> list[str]:
        """All targets that show it."""
        return [target for variant in self.variants for target in variant.targets]


def _anchor(finding: Finding) -> str:
    return f"{finding.status}-{finding.id}"


def _entries(report: Report) -> list[Entry]:
    """The findings, the worst first, then in the order of their invariants."""
    entries: dict[str, dict[tuple[Any, ...], list[Finding]]] = {}
    for finding in report.findings:
        said = (finding.got, finding.expected, finding.config)
        shown = (finding.scenario, *said, finding.groups, finding.pages)
        alike = entries.setdefault(_anchor(finding), {})
        alike.setdefault(shown, []).append(finding)
    made = []
    for anchor, alike in entries.items():
        groups = sorted(alike.values(), key=lambda group: len(group[0].scenario))
        variants = tuple(Variant(g[0], tuple(f.target for f in g)) for g in groups)
        made.append(Entry(anchor, status_of(variants[0].finding), variants))
    order = {rule.id: number for number, rule in enumerate(all_invariants())}

    def key(entry: Entry) -> tuple[int, int, str]:
        first = entry.variants[0].finding
        return severity(entry.status), order.get(first.invariant, len(order)), entry.anchor

    made.sort(key=key)
    if len(made) > MAX_FULL:
        by_anchor = {entry.anchor: entry for entry in made}
        firsts = spread([entry.variants[0].finding for entry in made])
        made = [by_anchor[_anchor(finding)] for finding in firsts]
    return made


def _replay(variant: Variant, paths: Mapping[str, str]) -> str:
    """The command that replays a finding on its targets."""
    finding = variant.finding
    name = paths.get(path_key(finding)) or finding.ledger or finding.id
    flags = "".join(f" --target {shlex.quote(target)}" for target in variant.targets)
    return f"kvfuzz replay {shlex.quote(name)}{flags}"


def _case(finding: Finding) -> str:
    """The case file's text; "" if it is too long to be read here."""
    data = case_text(finding)
    return data.decode(errors="replace") if len(data) <= _MAX_CASE else ""


def _full(entry: Entry, paths: Mapping[str, str], numbers: Mapping[str, int]) -> dict[str, Any]:
    """An entry with all that is shown of it."""
    first = entry.variants[0].finding
    known = find_known(first.fingerprint) if first.status == "known" else None
    variants = [
        {
            "finding": variant.finding,
            "targets": variant.targets,
            "picture": picture(variant.finding),
            "layers": plural(len(variant.finding.scenario), "layer"),
            "replay": _replay(variant, paths),
            "path": paths.get(path_key(variant.finding), ""),
            "case": _case(variant.finding),
        }
        for variant in entry.variants
    ]
    return {
        "anchor": entry.anchor,
        "status": entry.status,
        "first": first,
        "config": by_config(" and ".join(sorted({v.finding.config for v in entry.variants}))),
        "targets": entry.targets,
        "numbers": " ".join(str(numbers[target]) for target in entry.targets),
        "known": known.entry if known else None,
        "reason": REASONS[known.entry.reason] if known else "",
        "range": known.range if known else "",
        "variants": variants,
    }


def _cell_words(cell: Cell) -> str:
    if cell.status is Status.NOT_JUDGED:
        return ""
    if cell.violated or cell.findings:
        return f"{cell.violated:,} of {cell.checked:,} violate"
    return plural(cell.checked, "mix", "mixes")


def _row(report: Report, target: TargetReport, surface: SurfaceReport) -> list[dict[str, Any]]:
    cells = []
    for rule in invariants_of(surface.surface):
        cell = judge_cell(report, target, surface, rule)
        anchor = _anchor(cell.findings[0]) if cell.findings else ""
        cells.append({"status": cell.status, "words": _cell_words(cell), "anchor": anchor})
    return cells


def _surfaces(report: Report, numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """The matrix of each surface, and what its targets answered."""
    tables = []
    for name in dict.fromkeys(s.surface for t in report.targets for s in t.surfaces):
        rows, outcomes = [], []
        for target in report.targets:
            made = next((s for s in target.surfaces if s.surface == name), None)
            row = {"uri": target.uri, "version": target.version, "number": numbers[target.uri]}
            if made is not None:
                rows.append(
                    row
                    | {
                        "cells": _row(report, target, made),
                        "error": target.error,
                        "mixes": plural(made.tally.mixes, "mix", "mixes"),
                        "rate": f"{made.mixes_per_second:,.0f} a second{by_config(made.config)}",
                        "stopped": made.stopped,
                        "leaking": leaking(made),
                    }
                )
                outcomes.append(row | {"segments": _segments(made)})
            elif target.error:
                rows.append(row | {"cells": [], "error": target.error})
        rules = invariants_of(name)
        tables.append({"name": name, "rules": rules, "rows": rows, "outcomes": outcomes})
    return tables


def _verified(report: Report, numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """What each verification covered."""
    return [
        {
            "uri": target.uri,
            "number": numbers[target.uri],
            "surface": surface.surface,
            "finished": made.finished,
            "covered": covered(surface),
            "mixes": f"{surface.tally.mixes:,} of {plural(made.mixes, 'mix', 'mixes')}",
            "resumed": f"{made.resumed:,}" if made.resumed else "",
        }
        for target in report.targets
        for surface in target.surfaces
        if (made := surface.verified)
    ]


def _segments(surface: SurfaceReport) -> list[dict[str, Any]]:
    """The parts of a target's bar of outcomes."""
    total = sum(surface.tally.outcomes[name] for name in OUTCOME_NAMES)
    at, segments = 0.0, []
    for name in OUTCOME_NAMES:
        number = surface.tally.outcomes[name]
        share = 100 * number / total if total else 0.0
        segments.append(
            {
                "name": name,
                "letter": _OUTCOME_LETTERS[name],
                "number": f"{number:,}",
                "share": f"{share:.1f}",
                "at": round(at, 3),
                "middle": round(at + share / 2, 3),
                "wide": share >= 5,
            }
        )
        at += share
    return segments


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _chart(report: Report, timeline: Timeline) -> dict[str, Any] | None:
    """Mixes a second and findings over the run, as points in a square of 1,000 by 100."""
    rates = timeline.rates()
    span = timeline.seconds
    if len(rates) < 2 or span <= 0:
        return None

    def across(seconds: float) -> float:
        return round(1000 * seconds / span, 2)

    top = max(rate for _, rate in rates) or 1.0
    met = sorted(
        (timeline.met[path_key(finding)], finding.id, finding.target, status_of(finding))
        for finding in report.findings
        if path_key(finding) in timeline.met
    )
    steps = [(0.0, 100.0)]
    for number, (seconds, *_) in enumerate(met, 1):
        high = round(100 - 94 * number / len(met), 2)
        steps += [(across(seconds), steps[-1][1]), (across(seconds), high)]
    steps.append((1000.0, steps[-1][1]))
    bands = []
    if len(timeline.starts) <= _MAX_BANDS:
        ends = [start.seconds for start in timeline.starts[1:]] + [span]
        for start, end in zip(timeline.starts, ends, strict=True):
            width = across(end) - across(start.seconds)
            bands.append({"uri": start.uri, "at": across(start.seconds), "width": width})
    line = [(across(seconds), round(100 - 94 * rate / top, 2)) for seconds, rate in rates]
    surfaces = [surface for target in report.targets for surface in target.surfaces]
    judged = sum(s.tally.mixes - (s.verified.resumed if s.verified else 0) for s in surfaces)
    return {
        "line": _points(line),
        "area": _points([(line[0][0], 100.0), *line, (line[-1][0], 100.0)]),
        "top": f"{top:,.0f}",
        "mean": f"{judged / span:,.0f}",
        "steps": _points(steps),
        "met": [
            {"when": _seconds(s), "id": i, "target": t, "status": status}
            for s, i, t, status in met[:_MAX_LINES]
        ],
        "count": len(met),
        "bands": bands,
        "span": _seconds(span),
    }


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _shown(value: Any) -> Any:
    """What is put into the page: text of others without control and direction characters."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value  # numbers, and the page's own style and script
    return "\n".join(printable(line) for line in value.split("\n"))


def _part(name: str) -> str:
    return resources.files("kvfuzz.reporting").joinpath(name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """A style's or script's source in a content security policy: its hash."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def to_html(
    report: Report,
    timeline: Timeline,
    paths: Mapping[str, str],
    written: datetime | None = None,
) -> bytes:
    """The report as an HTML file.

    Args:
        report: The report.
        timeline: What the run's events said of time.
        paths: Case file of each new finding, by `path_key`.
        written: When that is, by default now.
    """
    style, script = _part("report.css"), _part("report.js")
    numbers = {uri: n for n, uri in enumerate(dict.fromkeys(t.uri for t in report.targets))}
    for finding in report.findings:  # a run that broke off may lack a target
        numbers.setdefault(finding.target, len(numbers))
    entries = _entries(report)
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = environment.from_string(_part("report.html.j2")).render(
        policy=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; "
        "base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        verdict=verdict(report),
        report=report,
        written=(written or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        failures=[(t.uri, why) for t in report.targets if (why := failure(report, t))],
        looks=STATUS_LOOKS,
        kinds=KIND_LOOKS,
        outcomes=_OUTCOME_LETTERS,
        targets=[{"number": number, "uri": uri} for uri, number in numbers.items()],
        rules=all_invariants(),
        enumerated=is_verification(report),
        verified=_verified(report, numbers),
        surfaces=_surfaces(report, numbers),
        entries=[_full(entry, paths, numbers) for entry in entries[:MAX_FULL]],
        others=entries[MAX_FULL : MAX_FULL + _MAX_LINES],
        left_out=max(0, len(entries) - MAX_FULL - _MAX_LINES),
        statuses=sorted({entry.status for entry in entries}, key=severity),
        shapes=shapes_by_surface(report, numbers),
        share=SHAPES_SHARE,
        chart=_chart(report, timeline),
        past=past_runs(report),
    )
    return text.encode()
