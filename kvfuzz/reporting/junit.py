"""A run's report as JUnit XML, for the CI systems that show it.

A suite a surface of a target, a test an invariant. What is new fails, what
the ledger knows is skipped with its reason, and so is what judged no mix: a
test that was not made did not pass.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from kvfuzz.engine.events import Report, SurfaceReport, TargetReport
from kvfuzz.files import printable
from kvfuzz.findings import Finding
from kvfuzz.invariants import Invariant, invariants_of
from kvfuzz.ledger import find_known
from kvfuzz.reporting.console import covered, leaking
from kvfuzz.reporting.matrix import Cell, Status, failure, judge_cell
from kvfuzz.reporting.words import by_config

#: Result of a test -> the attribute of a suite that counts it.
_COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def _clean(text: str) -> str:
    """`text` with all escaped that XML 1.0 cannot hold, or that could play tricks in a log."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _add(parent: ET.Element, tag: str, text: str = "", **attributes: str) -> ET.Element:
    shown = {name: _clean(value) for name, value in attributes.items()}
    element = ET.SubElement(parent, tag, shown)
    if text:
        element.text = _clean(text)
    return element


def _known_words(finding: Finding) -> str:
    known = find_known(finding.fingerprint)
    if known is None:
        return f"{finding.id}: known"
    return f"{known.entry.id}: {known.entry.title} ({known.entry.reason})"


def _fill_test(test: ET.Element, cell: Cell, stopped: str) -> None:
    """Write what the cell says into its test."""
    new = [finding for finding in cell.findings if finding.status == "new"]
    known = "; ".join(_known_words(f) for f in cell.findings if f.status == "known")
    for finding in new:
        _add(
            test,
            "failure",
            f"{finding.message}\n\n{finding.id} on {finding.target}, version {finding.version}"
            f"{by_config(finding.config)}",
            message=f"{finding.id}: {finding.got}; expected {finding.expected}",
            type=finding.symptom,
        )
    if not new:
        if known:
            _add(test, "skipped", message=f"known: {known}")
        elif cell.status is Status.NOT_JUDGED:
            _add(test, "skipped", message=stopped or "no mix was judged")
    said = [f"{cell.checked:,} mixes judged, {cell.violated:,} violate."]
    if new and known:
        said.append(f"Also known: {known}.")
    if cell.status is Status.UNCONFIRMED:
        said.append("No finding: they did not come back, or the run ended before.")
    _add(test, "system-out", "\n".join(said))


def _suite(root: ET.Element, report: Report, target: TargetReport, surface: str) -> ET.Element:
    suite = _add(root, "testsuite", name=" ".join(filter(None, (target.uri, surface))))
    properties = _add(suite, "properties")
    stated = {"kvfuzz": report.kvfuzz, "seed": f"{report.seed}", "version": target.version}
    for name, value in stated.items():
        _add(properties, "property", name=name, value=value)
    return suite


def _surface_suite(
    root: ET.Element, report: Report, target: TargetReport, surface: SurfaceReport
) -> ET.Element:
    suite = _suite(root, report, target, surface.surface)
    suite.set("time", f"{surface.seconds:.3f}")
    for rule in invariants_of(surface.surface):
        _rule_test(suite, report, target, surface, rule)
    how = by_config(surface.config)
    lines = [f"{surface.tally.mixes:,} mixes in {surface.seconds:.1f} s{how}."]
    if line := covered(surface):
        lines.append(f"Verified: {line}.")
    if surface.stopped:
        lines.append(f"Stopped early: {surface.stopped}.")
    if line := leaking(surface):
        lines.append(f"Note: {line}.")
    if report.interrupted:
        lines.append("The run was interrupted.")
    _add(suite, "system-out", "\n".join(lines))
    return suite


def _rule_test(
    suite: ET.Element,
    report: Report,
    target: TargetReport,
    surface: SurfaceReport,
    rule: Invariant,
) -> None:
    classname = f"{target.uri}.{surface.surface}"
    test = _add(suite, "testcase", classname=classname, name=rule.id, time="0")
    _fill_test(test, judge_cell(report, target, surface, rule), surface.stopped)


def _count(suite: ET.Element) -> None:
    """Write the suite's counts, of tests: one with two failures counts once."""
    tests = suite.findall("testcase")
    suite.set("tests", f"{len(tests)}")
    for tag, attribute in _COUNTED.items():
        suite.set(attribute, f"{sum(test.find(tag) is not None for test in tests)}")


def to_junit(report: Report) -> bytes:
    """The report as a JUnit XML file."""
    root = ET.Element("testsuites", name="kvfuzz")
    for target in report.targets:
        suites = [_surface_suite(root, report, target, surface) for surface in target.surfaces]
        why = failure(report, target)
        if why:
            suite = suites[0] if suites else _suite(root, report, target, "")
            test = ET.Element("testcase", classname=_clean(target.uri), name="target", time="0")
            _add(test, "error", why, message=why, type="target")
            # Tests stand before what the suite printed.
            at = next((i for i, part in enumerate(suite) if part.tag == "system-out"), len(suite))
            suite.insert(at, test)
    for suite in root:
        _count(suite)
    for attribute in ("tests", *_COUNTED.values()):
        root.set(attribute, f"{sum(int(suite.get(attribute, '0')) for suite in root)}")
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")
    ET.indent(root)
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"
