"""JUnit XML: what fails, what is skipped, what is an error, and text that is hostile."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from msgspec.structs import replace

from kvfuzz.engine.events import Report, TargetReport
from kvfuzz.engine.session import Tally
from kvfuzz.invariants import invariants_of
from kvfuzz.reporting.junit import to_junit
from tests.report_samples import (
    CONTROLS,
    HOSTILE,
    IMAGE,
    SCRIPT,
    a_passing_report,
    a_report,
    a_verified_report,
    lost,
    mixed,
    reordered,
    surface,
)

RULES = [rule.id for rule in invariants_of("pack")]


def _parse(report: Report) -> ET.Element:
    return ET.fromstring(to_junit(report))


def _result(test: ET.Element) -> str:
    tags = [part.tag for part in test if part.tag in ("failure", "error", "skipped")]
    return "+".join(tags) or "passed"


def _results(suite: ET.Element) -> dict[str, str]:
    return {test.get("name", ""): _result(test) for test in suite.findall("testcase")}


def test_a_run_that_passes():
    root = _parse(a_passing_report())
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.get("name") == "reference pack"
    assert _results(suite) == dict.fromkeys(RULES, "passed")
    counts = {"tests": "7", "failures": "0", "errors": "0", "skipped": "0", "time": "4.000"}
    assert {name: suite.get(name) for name in counts} == counts
    assert {name: root.get(name) for name in counts} == counts
    assert {test.get("classname") for test in suite.iter("testcase")} == {"reference.pack"}
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties == {"kvfuzz": "0.0.1", "seed": "7", "version": "0.0.1"}


def test_new_fails_known_and_unjudged_are_skipped_and_broken_targets_are_errors():
    root = _parse(a_report())
    old, recent, mine, broken = root
    passed = dict.fromkeys(RULES, "passed")
    known = {"uniform-is-none": "skipped", "single-page-size": "skipped"}
    assert _results(old) == passed | known | {"order-free": "skipped"}
    assert _results(recent) == passed | {"single-page-size": "skipped"}
    assert _results(mine) == passed | {"partition": "failure", "order-free": "failure"}
    assert _results(broken) == {"target": "error"}
    messages = {
        test.get("name"): skipped.get("message")
        for test in old.findall("testcase")
        for skipped in test.findall("skipped")
    }
    assert messages == {
        "uniform-is-none": "known: uniform-is-none-82c27ad5: MLA and sliding-window MLA layers "
        "of one page size are packed (upstream-fixed)",
        "single-page-size": "known: single-page-size-0810dc85: A group of sliding-window MLA "
        "layers holds several page sizes (by-design)",
        "order-free": "no mix was judged",
    }
    counts = [root.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["22", "2", "1", "4"]


def test_hostile_text_is_kept_as_text():
    data = to_junit(a_report())
    for forbidden in ("\x00", "\x1b", "\u202e", "\uffff"):
        assert forbidden.encode() not in data
    mine, broken = list(ET.fromstring(data))[2:]
    assert mine.get("name") == f"{HOSTILE} pack"
    failure = mine.find("testcase[@name='partition']/failure")
    assert failure is not None
    shown = f"{SCRIPT} a\\x00b\\x1b[31mc\\u202ee\\uffff]]>&amp;"
    finding = lost()
    assert failure.get("message") == f"{finding.id}: {shown}; expected {IMAGE} in a group"
    assert failure.get("type") == "lost"
    assert failure.text == (
        finding.message.replace(CONTROLS, shown.removeprefix(f"{SCRIPT} "))
        + f"\n\n{finding.id} on {HOSTILE}, version 1.0"
    )
    error = broken.find("testcase/error")
    assert error is not None
    assert error.text == error.get("message") == f"No {shown} \\ud800."


def test_two_failures_of_one_rule_are_one_failed_test():
    target = TargetReport(uri="vllm==0.25.1", surfaces=[surface(10, {"single-page-size": 3})])
    known = mixed("vllm==0.25.1", "0.25.1")
    first = lost("vllm==0.25.1")
    findings = [
        known,
        replace(first, invariant="single-page-size", id="single-page-size-1"),
        replace(first, invariant="single-page-size", id="single-page-size-2"),
    ]
    (suite,) = _parse(Report(kvfuzz="1", seed=1, targets=[target], findings=findings))
    (test,) = suite.findall("testcase[@name='single-page-size']")
    assert _result(test) == "failure+failure"
    assert suite.get("failures") == "1"
    assert suite.get("skipped") == "0"
    assert (test.findtext("system-out") or "").endswith(f"Also known: {known.id}: "
        "A group of sliding-window MLA layers holds several page sizes (by-design).")  # fmt: skip


def test_a_target_that_fails_in_mid_run_is_an_error_among_its_tests():
    target = TargetReport(uri="mine:m", surfaces=[surface(10, {})], error="It fell over.")
    (suite,) = _parse(Report(kvfuzz="1", seed=1, targets=[target]))
    assert _results(suite) == dict.fromkeys(RULES, "passed") | {"target": "error"}
    assert [part.tag for part in suite][-1] == "system-out"
    assert suite.get("errors") == "1"


def test_a_surface_that_a_target_lacks_is_skipped_with_the_reason():
    made = surface(0, {}, tuple(RULES))
    made.tally = Tally()
    made.stopped = "vllm==1 has no surface pack"
    report = Report(kvfuzz="1", seed=1, targets=[TargetReport(uri="vllm==1", surfaces=[made])])
    (suite,) = _parse(report)
    assert _results(suite) == dict.fromkeys(RULES, "skipped")
    messages = {test.get("message") for test in suite.iter("skipped")}
    assert messages == {"vllm==1 has no surface pack"}


def test_a_target_that_was_asked_about_nothing_is_an_error():
    made = surface(0, {}, tuple(RULES))
    report = Report(kvfuzz="1", seed=1, targets=[TargetReport(uri="vllm==1", surfaces=[made])])
    assert _results(_parse(report)[0])["target"] == "error"
    report.interrupted = True
    assert "target" not in _results(_parse(report)[0])


def test_an_unconfirmed_violation_is_said_and_fails_nothing():
    suite = _parse(a_report())[2]
    (test,) = suite.findall("testcase[@name='pure']")
    assert _result(test) == "passed"
    assert test.findtext("system-out") == (
        "400 mixes judged, 2 violate.\nNo finding: they did not come back, or the run ended before."
    )


def test_reordered_has_a_failure_of_its_own():
    suite = _parse(a_report())[2]
    failure = suite.find("testcase[@name='order-free']/failure")
    assert failure is not None
    assert failure.get("message") == f"{reordered().id}: other groups; expected the same"


def test_a_verification_says_what_it_covered_and_is_an_error_if_it_is_not_finished():
    done, resumed, broken = _parse(a_verified_report())
    said = [(suite.findtext("system-out") or "").splitlines()[1:] for suite in (done, resumed)]
    assert said == [
        ["Verified: 397 patterns, 3 layers, all hold."],
        ["Verified: 397 patterns, 3 layers, violated: partition."],
    ]
    assert (broken.findtext("system-out") or "").splitlines()[1:] == [
        "Verified: 200 of 794 mixes of 397 patterns, 3 layers, all hold so far.",
        "Stopped early: 20 workers died.",
    ]
    assert [suite.get("errors") for suite in (done, resumed, broken)] == ["0", "0", "1"]
    (error,) = broken.iter("error")
    assert error.get("message") == ("mine:dies was not verified in full on pack: 20 workers died.")
