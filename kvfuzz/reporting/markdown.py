"""A run's report as Markdown: a verdict, targets x invariants, and the findings.

The same run (seed, `--examples`) gives the same text, so that a committed
report changes only when a planner or kvfuzz does.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvfuzz.engine.events import Report, SurfaceReport, TargetReport
from kvfuzz.findings import Finding
from kvfuzz.invariants import Invariant, invariants_of
from kvfuzz.ledger import find_known
from kvfuzz.outcomes import OUTCOME_NAMES
from kvfuzz.reporting.console import covered, leaking
from kvfuzz.reporting.matrix import Status, failure, is_verification, judge_cell, spread

#: Findings with a section of their own, those that have a line, and layers of
#: a mix. GitHub shows a job's summary up to 1 MiB.
MAX_FULL = 50
MAX_LINES = 500
_MAX_LAYERS = 40


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_row(header), _row(["---"] * len(header)), *map(_row, rows)]


def _verdict(report: Report) -> str:
    if failed := [target.uri for target in report.targets if failure(report, target)]:
        return f"Incomplete: {', '.join(failed)} could not be tested in full."
    if report.new:
        return f"{len(report.new)} new findings."
    known = len({finding.id for finding in report.findings})
    return f"Nothing new; {known} known findings." if known else "Nothing found."


def _cell(report: Report, target: TargetReport, surface: SurfaceReport, rule: Invariant) -> str:
    """What a target did with one invariant: how often it held, or what broke it."""
    cell = judge_cell(report, target, surface, rule)
    if cell.status is Status.HOLDS:
        return f"holds ({cell.checked:,})"
    if cell.status is Status.NOT_JUDGED:
        return "not judged"
    names = []
    for finding in cell.findings:
        known = find_known(finding.fingerprint) if finding.status == "known" else None
        names.append(known.entry.reason if known else "**new**")
    what = ", ".join(dict.fromkeys(names)) or "not confirmed"
    return f"{cell.violated:,} of {cell.checked:,} violate: {what}"


def _surface_table(report: Report, surface_name: str) -> list[str]:
    rules = invariants_of(surface_name)
    rows = []
    for target in report.targets:
        for surface in target.surfaces:
            if surface.surface == surface_name:
                counts = [f"{surface.tally.outcomes[name]:,}" for name in OUTCOME_NAMES]
                cells = [_cell(report, target, surface, rule) for rule in rules]
                rows.append([f"`{target.uri}`", f"{surface.tally.mixes:,}", *counts, *cells])
    return _table(["target", "mixes", *OUTCOME_NAMES, *(rule.id for rule in rules)], rows)


def _notes(report: Report, surface_name: str) -> list[str]:
    """What verifications covered, which targets leak and whose config was real, a line each."""
    lines = [
        f"- `{target.uri}`: {line}"
        for target in report.targets
        for surface in target.surfaces
        if surface.surface == surface_name
        for line in (covered(surface), leaking(surface), _by_real_config(surface))
        if line
    ]
    return [*lines, ""] if lines else []


def _by_real_config(surface: SurfaceReport) -> str:
    return "planned by the real config of an engine" if surface.config == "real" else ""


def _mix_table(finding: Finding) -> list[str]:
    rows = [
        [
            f"`{name}`",
            spec.kind,
            str(spec.block_size or ""),
            str(spec.sliding_window or ""),
            f"{page:,}",
        ]
        for (name, spec), page in zip(finding.scenario.mix, finding.pages, strict=True)
    ]
    table = _table(
        ["layer", "kind", "block size", "window", "page size (bytes)"], rows[:_MAX_LAYERS]
    )
    more = len(rows) - _MAX_LAYERS
    return [*table, "", f"and {more:,} more layers"] if more > 0 else table


def _shown_by(finding: Finding) -> str:
    """A target that shows a finding, and whether it is new there."""
    said = ["real config"] if finding.config == "real" else []
    said += ["new"] if finding.status == "new" else []
    return f"`{finding.target}`" + (f" ({', '.join(said)})" if said else "")


def _finding_section(identity: str, findings: Sequence[Finding]) -> list[str]:
    """One finding, with every target of the run that shows it."""
    first = findings[0]
    lines = [f"### {identity}", ""]
    known = find_known(first.fingerprint)
    if known is not None:
        lines += [f"{known.entry.title} ({known.entry.reason}): {known.entry.explanation}", ""]
    targets = ", ".join(map(_shown_by, findings))
    lines += [
        f"- claim: {first.claim}",
        f"- got: {first.got}",
        f"- expected: {first.expected}",
        f"- on {targets}",
        "",
        *_mix_table(first),
        "",
    ]
    return lines


def _findings(report: Report) -> list[str]:
    """The findings by their ids: the first in full, then a line each, then how many more."""
    by_id: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_id.setdefault(finding.id, []).append(finding)
    shown = sorted(by_id)
    if len(shown) > MAX_FULL:
        shown = [first.id for first in spread([by_id[identity][0] for identity in shown])]
    lines = ["## Findings", ""] if shown else []
    for identity in sorted(shown[:MAX_FULL]):
        lines += _finding_section(identity, by_id[identity])
    if rest := shown[MAX_FULL:]:
        rows = []
        for identity in rest[:MAX_LINES]:
            first = by_id[identity][0]
            targets = ", ".join(f"`{finding.target}`" for finding in by_id[identity])
            rows.append([identity, first.status, f"{len(first.scenario)}", targets])
        lines += ["### Others", "", *_table(["finding", "status", "layers", "on"], rows), ""]
    if (more := len(shown) - MAX_FULL - MAX_LINES) > 0:
        lines += [f"And {more:,} more: the case files and the JSON report hold them all.", ""]
    return lines


def to_markdown(report: Report, title: str = "kvfuzz") -> str:
    """The report as Markdown text."""
    seed = "" if is_verification(report) else f", seed {report.seed}"
    lines = [f"# {title}", "", f"{_verdict(report)} kvfuzz {report.kvfuzz}{seed}.", ""]
    for surface in dict.fromkeys(s.surface for t in report.targets for s in t.surfaces):
        lines += [f"## Surface `{surface}`", "", *_surface_table(report, surface), ""]
        lines += _notes(report, surface)
    failures = [(target.uri, failure(report, target)) for target in report.targets]
    lines += [f"- `{uri}`: {why}" for uri, why in failures if why]
    lines += _findings(report)
    return "\n".join(lines).rstrip() + "\n"
