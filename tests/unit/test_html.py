"""The HTML report as a whole: verdict, policy, links, hostile text, small and large reports."""

from __future__ import annotations

import base64
import hashlib
import re
from itertools import pairwise

import pytest
from bs4 import BeautifulSoup
from msgspec.structs import replace

from kvfuzz.engine.events import Report, TargetReport
from kvfuzz.reporting import html
from kvfuzz.reporting.matrix import verdict
from kvfuzz.reporting.timeline import Timeline
from tests.report_samples import a_passing_report, a_report, lost, mixed, surface
from tests.unit.html_pages import html_of, page_of, section_of, text_of


@pytest.fixture(scope="module")
def page() -> BeautifulSoup:
    return page_of(a_report())


def test_the_verdict_comes_first(page: BeautifulSoup):
    sentence = (
        "2 new findings in 3,400 mixes on 3 targets; mine:broken could not be tested in full."
    )
    header = page.find("header")
    assert header["class"] == ["verdict", "fail"]
    assert text_of(header.find(class_="word")) == "✗ Fail"
    assert [text_of(h1) for h1 in page.find_all("h1")] == [sentence]
    assert text_of(page.title) == f"{sentence} - kvfuzz"
    assert text_of(header.find(class_="facts")) == (
        "kvfuzz 0.0.1 · seed 7 · written 2026-01-02 03:04 UTC"
    )


def _verdict_of(**fields: object) -> tuple[str, str]:
    made = verdict(Report(kvfuzz="1", seed=1, **fields))  # type: ignore[arg-type]
    return made.kind, made.sentence


def test_every_verdict():
    good = TargetReport(uri="reference", surfaces=[surface(1000, {})])
    known = mixed("vllm==0.25.1", "0.25.1")
    assert _verdict_of(targets=[good]) == ("pass", "Nothing found in 1,000 mixes on 1 target.")
    assert _verdict_of(targets=[good], findings=[known]) == (
        "pass", "Nothing new: 1 known finding in 1,000 mixes on 1 target.",
    )  # fmt: skip
    assert _verdict_of(targets=[good], findings=[lost()]) == (
        "fail", "1 new finding in 1,000 mixes on 1 target.",
    )  # fmt: skip
    assert _verdict_of(targets=[good], interrupted=True) == (
        "incomplete",
        "Incomplete: the run was interrupted. Nothing new in 1,000 mixes on 1 target.",
    )
    assert _verdict_of(targets=[TargetReport(uri="a:b", error="No.")]) == (
        "incomplete",
        "Incomplete: a:b could not be tested in full. Nothing new in 0 mixes on 0 targets.",
    )
    assert _verdict_of() == (
        "incomplete", "Incomplete: no target was tested. Nothing new in 0 mixes on 0 targets.",
    )  # fmt: skip


def test_nothing_is_loaded_and_only_the_pages_own_script_may_run(page: BeautifulSoup):
    assert page.html["lang"] == "en"
    policy = page.find("meta", attrs={"http-equiv": "Content-Security-Policy"})["content"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

    def source(tag: str) -> str:
        (node,) = page.find_all(tag)
        return base64.b64encode(hashlib.sha256(node.string.encode()).digest()).decode()

    assert rules == {
        "default-src": "'none'",
        "style-src": f"'sha256-{source('style')}'",
        "script-src": f"'sha256-{source('script')}'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    for attribute in ("src", "srcset", "action", "data", "style", "poster", "xlink:href"):
        assert not page.find_all(attrs={attribute: True}), attribute
    assert all(a["href"].startswith("#") for a in page.find_all(href=True))
    assert not [n for n in page.find_all(True) for name in n.attrs if name.startswith("on")]
    assert "http" not in page.style.string + page.script.string


def test_links_lead_somewhere_ids_are_unique_and_headings_are_in_order(page: BeautifulSoup):
    ids = [node["id"] for node in page.find_all(id=True)]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in page.find_all("a")} <= set(ids)
    levels = [int(heading.name[1]) for heading in page.find_all(re.compile("^h[1-6]$"))]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    labelled = {label["for"] for label in page.find_all("label")}
    assert labelled == {node["id"] for node in page.find_all(["select", "input"])}
    for node in page.find_all(attrs={"aria-labelledby": True}):
        assert node["aria-labelledby"] in ids


def test_what_needs_the_script_is_hidden_without_it(page: BeautifulSoup):
    assert page.find(id="filters").has_attr("hidden")
    assert all(button.has_attr("hidden") for button in page.find_all("button", class_="copy"))
    assert not any(finding.has_attr("hidden") for finding in page.find_all("article"))


def test_hostile_text_stays_text(page: BeautifulSoup):
    data = html_of(a_report())
    text = data.decode()
    assert len(page.find_all("script")) == 1
    assert not page.find_all("img")
    assert text.count("</script>") == 1
    for forbidden in ("\x00", "\x1b", "\u202e", "\uffff"):
        assert forbidden not in text


def test_a_run_that_found_nothing():
    page = page_of(a_passing_report())
    assert page.header["class"] == ["verdict", "pass"]
    assert text_of(section_of(page, "findings")) == "Findings None."
    assert not page.find(class_="failures")


def test_a_run_without_any_target():
    page = page_of(Report(kvfuzz="1", seed=1), Timeline())
    assert page.header["class"] == ["verdict", "incomplete"]
    assert [text_of(h2) for h2 in page.find_all("h2")] == ["Findings"]


@pytest.mark.slow
def test_ten_thousand_findings_make_a_file_that_opens():
    report = a_report()
    report.findings = [
        replace(lost(), id=f"partition-{n:08x}", fingerprint=f"{n:064x}") for n in range(10_000)
    ]
    data = html_of(report)
    assert len(data) < 3_000_000
    page = BeautifulSoup(data, "html.parser")
    assert len(page.find_all("article")) == html.MAX_FULL
    assert f"And {10_000 - html.MAX_FULL - 2000:,} more." in text_of(page.main)
