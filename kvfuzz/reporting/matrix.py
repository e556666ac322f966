"""What a run says of each invariant on each target, in one word, and of the whole, in a sentence.

Reports for people share it, so that no two of them judge one run differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

import msgspec

from kvfuzz.engine.events import Report, SurfaceReport, TargetReport
from kvfuzz.findings import Finding
from kvfuzz.invariants import Invariant
from kvfuzz.ledger import find_known
from kvfuzz.reporting.words import plural

#: Reasons of the ledger that make a known finding no bug of the planner's.
_MEANT = ("by-design", "invariant-too-strong")


class Status(StrEnum):
    """What became of an invariant on a target, or what a finding is; the worst first.

    UNCONFIRMED is a violation that was counted and has no finding: it did not
    come back when it was shrunk, or the run was stopped before.
    """

    NEW = "new"
    KNOWN_BUG = "known-bug"
    UNCONFIRMED = "unconfirmed"
    BY_DESIGN = "by-design"
    HOLDS = "holds"
    NOT_JUDGED = "not-judged"


class Cell(msgspec.Struct, frozen=True):
    """One invariant on one surface of one target.

    Attributes:
        status: The worst of its findings' statuses; else whether it held.
        checked: Mixes that it judged.
        violated: Mixes that broke it.
        findings: Its findings, the worst first.
    """

    status: Status
    checked: int
    violated: int
    findings: tuple[Finding, ...]


def status_of(finding: Finding) -> Status:
    """What a finding is: new, a known bug, or meant."""
    if finding.status == "new":
        return Status.NEW
    known = find_known(finding.fingerprint)
    meant = known is not None and known.entry.reason in _MEANT
    return Status.BY_DESIGN if meant else Status.KNOWN_BUG


def severity(status: Status) -> int:
    """A key that sorts the worst first."""
    return list(Status).index(status)


def judge_cell(
    report: Report, target: TargetReport, surface: SurfaceReport, rule: Invariant
) -> Cell:
    """The cell of the matrix for `rule` on one surface of a target."""
    place = (target.uri, surface.surface, rule.id)
    findings = sorted(
        (f for f in report.findings if (f.target, f.surface, f.invariant) == place),
        key=lambda finding: severity(status_of(finding)),
    )
    checked, violated = surface.tally.checked[rule.id], surface.tally.violated[rule.id]
    if findings:
        status = status_of(findings[0])
    elif violated:
        status = Status.UNCONFIRMED
    else:
        status = Status.HOLDS if checked else Status.NOT_JUDGED
    return Cell(status, checked, violated, tuple(findings))


def failure(report: Report, target: TargetReport) -> str:
    """Why a target, or a surface that it has, was not tested; "" if all was."""
    if target.error:
        return target.error
    for surface in target.surfaces:
        if not (surface.tally.mixes or surface.stopped or report.interrupted):
            return f"{target.uri} was asked about no mix on {surface.surface}."
        if surface.verified and not (surface.verified.finished or report.interrupted):
            why = f": {surface.stopped}" if surface.stopped else ""
            return f"{target.uri} was not verified in full on {surface.surface}{why}."
        if surface.leaks and surface.stopped:
            where = f"{target.uri} was not searched to its end on {surface.surface}"
            return f"{where}: {surface.stopped}."
    return ""


def is_verification(report: Report) -> bool:
    """Whether mixes were enumerated, so that the seed named none."""
    return any(surface.verified for target in report.targets for surface in target.surfaces)


def spread(findings: Sequence[Finding]) -> list[Finding]:
    """The first of each target, surface and invariant, then the second of each, and so on.

    For lists that are cut off: so many of one kind do not hide the others.
    """
    seen: Counter[tuple[str, str, str]] = Counter()
    ranked = []
    for finding in findings:
        place = (finding.target, finding.surface, finding.invariant)
        ranked.append((seen[place], finding))
        seen[place] += 1
    return [finding for _, finding in sorted(ranked, key=lambda pair: pair[0])]


class Verdict(msgspec.Struct, frozen=True):
    """The whole run in a word and a sentence."""

    kind: Literal["fail", "incomplete", "pass"]
    sentence: str


def verdict(report: Report) -> Verdict:
    """The verdict on a run: what is new comes first, then what was not tested."""
    mixes = sum(s.tally.mixes for t in report.targets for s in t.surfaces)
    tested = [t for t in report.targets if any(s.tally.mixes for s in t.surfaces)]
    over = f"{plural(mixes, 'mix', 'mixes')} on {plural(len(tested), 'target')}"
    failed = [target.uri for target in report.targets if failure(report, target)]
    known = plural(len({f.id for f in report.findings if f.status == "known"}), "known finding")
    notes = []
    if failed:
        notes.append(f"{', '.join(failed)} could not be tested in full")
    if report.interrupted:
        notes.append("the run was interrupted")
    if report.new:
        found = plural(len({finding.id for finding in report.new}), "new finding")
        return Verdict("fail", "; ".join([f"{found} in {over}", *notes]) + ".")
    if notes or not tested:
        notes = notes or ["no target was tested"]
        return Verdict("incomplete", f"Incomplete: {'; '.join(notes)}. Nothing new in {over}.")
    if report.findings:
        return Verdict("pass", f"Nothing new: {known} in {over}.")
    return Verdict("pass", f"Nothing found in {over}.")
