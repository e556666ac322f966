"""The HTML report's matrix, outcomes, and the run over time."""

from __future__ import annotations

import pytest
from bs4 import BeautifulSoup

from tests.report_samples import HOSTILE, SCRIPT, a_report, a_timeline, lost
from tests.unit.html_pages import page_of, section_of, text_of


@pytest.fixture(scope="module")
def page() -> BeautifulSoup:
    return page_of(a_report())


def test_the_matrix_says_each_cell_in_words(page: BeautifulSoup):
    table = page.find("table", class_="matrix")
    heads = [text_of(th) for th in table.thead.find_all("th")]
    assert heads == [
        "Target", "plan-or-refusal", "uniform-is-none", "partition", "single-page-size", "pure",
        "deterministic", "order-free",
    ]  # fmt: skip
    rows = {}
    for row in table.tbody.find_all("tr"):
        rows[text_of(row.th)] = [(td["class"][1], text_of(td)) for td in row.find_all("td")]
    held = ("holds", "✓ Holds 400 mixes")
    assert rows == {
        "vllm==0.25.1 1,000 mixes, 250 a second": [
            ("holds", "✓ Holds 1,000 mixes"),
            ("known-bug", "▲ Known bug 100 of 1,000 violate"),
            ("holds", "✓ Holds 1,000 mixes"),
            ("by-design", "◇ Known, by design 250 of 1,000 violate"),
            ("holds", "✓ Holds 1,000 mixes"),
            ("holds", "✓ Holds 1,000 mixes"),
            ("not-judged", "- Not judged"),
        ],
        "vllm==0.28.0 2,000 mixes, 500 a second": [
            ("holds", "✓ Holds 2,000 mixes"),
            ("holds", "✓ Holds 2,000 mixes"),
            ("holds", "✓ Holds 2,000 mixes"),
            ("by-design", "◇ Known, by design 500 of 2,000 violate"),
            ("holds", "✓ Holds 2,000 mixes"),
            ("holds", "✓ Holds 2,000 mixes"),
            ("holds", "✓ Holds 2,000 mixes"),
        ],
        f"{HOSTILE} version 1.0 400 mixes, 100 a second": [
            held,
            held,
            ("new", "✗ New 7 of 400 violate"),
            held,
            ("unconfirmed", "? Not confirmed 2 of 400 violate"),
            held,
            ("new", "✗ New 1 of 400 violate"),
        ],
        "mine:broken": [
            (
                "failed",
                f"! Not tested No {SCRIPT} a\\x00b\\x1b[31mc\\u202ee\\uffff]]>&amp; \\ud800.",
            )
        ],
    }
    assert table.find("td", class_="new").a["href"] == f"#new-{lost().id}"
    legend = [text_of(span) for span in page.find(id="legend").find_all(class_="status")]
    assert legend == [
        "✗ New", "▲ Known bug", "? Not confirmed", "◇ Known, by design", "✓ Holds",
        "- Not judged",
    ]  # fmt: skip


def test_outcomes_are_bars_with_counts(page: BeautifulSoup):
    items = page.find(class_="outcomes").find_all("li")
    assert [text_of(item.find(class_="label")) for item in items] == [
        "vllm==0.25.1", "vllm==0.28.0", HOSTILE,
    ]  # fmt: skip
    rects = [(r["class"][0], r["x"], r["width"]) for r in items[0].find_all("rect")]
    assert rects == [("outcome-plan", "0.0%", "75.0%"), ("outcome-none", "75.0%", "25.0%")]
    assert text_of(items[0].find(class_="counts")) == "P plan 750 (75.0 %) N none 250 (25.0 %)"


def test_the_run_over_time(page: BeautifulSoup):
    rate, found = section_of(page, "time").find_all("figure")
    assert text_of(rate.figcaption).startswith(
        "Mixes a second, over all workers: 500 at most, 283 on average over 12 s"
    )
    assert [text_of(item) for item in rate.ol.find_all("li")] == [
        "vllm==0.25.1", "vllm==0.28.0", HOSTILE,
    ]  # fmt: skip
    points = rate.find("polyline")["points"].split()
    assert len(points) == 24
    assert points[0] == "20.83,53"  # 250 of at most 500 a second
    assert points[8] == "354.17,6"
    rows = [[text_of(c) for c in row.find_all(["td", "th"])] for row in found.tbody.find_all("tr")]
    assert [row[0] for row in rows] == ["1.0 s", "1.0 s", "5.0 s", "9.0 s", "9.0 s"]
    assert rows[2][1:] == ["single-page-size-0810dc85", "vllm==0.28.0", "◇ Known, by design"]


def test_a_finding_that_was_dropped_is_not_in_the_curve():
    report = a_report()
    timeline = a_timeline(report)
    report.findings.pop()
    found = section_of(page_of(report, timeline), "time").find_all("figure")[1]
    assert text_of(found.figcaption) == "Findings met: 4, counted a target."
