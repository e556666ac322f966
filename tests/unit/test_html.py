"""The HTML report, parsed: verdict, matrix, findings, pictures, and text that is hostile."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from bs4 import BeautifulSoup, Tag
from msgspec.structs import replace

from kvfuzz.cases import case_text
from kvfuzz.engine.events import Report, TargetReport
from kvfuzz.outcomes import Group
from kvfuzz.reporting import html
from kvfuzz.reporting.bars import MAX_BARS, picture
from kvfuzz.reporting.html import to_html
from kvfuzz.reporting.matrix import verdict
from kvfuzz.reporting.timeline import Timeline
from kvfuzz.specs import Scenario
from tests.report_samples import (
    FULL,
    HOSTILE,
    IMAGE,
    SCRIPT,
    a_passing_report,
    a_report,
    a_timeline,
    lost,
    mixed,
    paths_of,
    surface,
)

WHEN = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def _page(report: Report, timeline: Timeline | None = None) -> BeautifulSoup:
    data = to_html(report, timeline or a_timeline(report), paths_of(report), WHEN)
    return BeautifulSoup(data, "html.parser")


def _text(node: Tag | None) -> str:
    assert node is not None
    return " ".join(node.get_text(" ").split())


@pytest.fixture(scope="module")
def page() -> BeautifulSoup:
    return _page(a_report())


def _finding(page: BeautifulSoup, anchor: str) -> Tag:
    node = page.find(id=anchor)
    assert isinstance(node, Tag)
    return node


# The frame


def test_the_verdict_comes_first(page: BeautifulSoup):
    sentence = (
        "2 new findings in 3,400 mixes on 3 targets; mine:broken could not be tested in full."
    )
    header = page.find("header")
    assert header["class"] == ["verdict", "fail"]
    assert _text(header.find(class_="word")) == "✗ Fail"
    assert [_text(h1) for h1 in page.find_all("h1")] == [sentence]
    assert _text(page.title) == f"{sentence} - kvfuzz"
    assert _text(header.find(class_="facts")) == (
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


# The matrix


def test_the_matrix_says_each_cell_in_words(page: BeautifulSoup):
    table = page.find("table", class_="matrix")
    heads = [_text(th) for th in table.thead.find_all("th")]
    assert heads == [
        "Target", "plan-or-refusal", "uniform-is-none", "partition", "single-page-size", "pure",
        "order-free",
    ]  # fmt: skip
    rows = {}
    for row in table.tbody.find_all("tr"):
        rows[_text(row.th)] = [(td["class"][1], _text(td)) for td in row.find_all("td")]
    held = ("holds", "✓ Holds 400 mixes")
    assert rows == {
        "vllm==0.25.1 1,000 mixes, 250 a second": [
            ("holds", "✓ Holds 1,000 mixes"),
            ("known-bug", "▲ Known bug 100 of 1,000 violate"),
            ("holds", "✓ Holds 1,000 mixes"),
            ("by-design", "◇ Known, by design 250 of 1,000 violate"),
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
        ],
        f"{HOSTILE} version 1.0 400 mixes, 100 a second": [
            held,
            held,
            ("new", "✗ New 7 of 400 violate"),
            held,
            ("unconfirmed", "? Not confirmed 2 of 400 violate"),
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
    legend = [_text(span) for span in page.find(id="legend").find_all(class_="status")]
    assert legend == [
        "✗ New", "▲ Known bug", "? Not confirmed", "◇ Known, by design", "✓ Holds",
        "- Not judged",
    ]  # fmt: skip


# Findings


def test_new_findings_come_first_and_targets_that_agree_share_one(page: BeautifulSoup):
    shown = [(a["id"], a["data-status"], a["data-targets"]) for a in page.find_all("article")]
    assert shown == [
        (f"new-{lost().id}", "new", "2"),
        ("new-order-free-cfd32fa3", "new", "2"),
        ("known-uniform-is-none-82c27ad5", "known-bug", "0"),
        ("known-single-page-size-0810dc85", "by-design", "0 1"),
    ]


def test_a_finding_in_full(page: BeautifulSoup):
    article = _finding(page, f"new-{lost().id}")
    assert _text(article.h3) == f"✗ New {lost().id}"
    said = article.find("dl", class_="said")
    terms = [_text(dt) for dt in said.find_all("dt")]
    words = [_text(dd) for dd in said.find_all("dd")]
    assert dict(zip(terms, words, strict=True)) == {
        "Claim": "If the packer takes a mix, every layer of it is in exactly one group.",
        "Got": f"{SCRIPT} a\\x00b\\x1b[31mc\\u202ee\\uffff]]>&amp;",
        "Expected": f"{IMAGE} in a group",
    }
    replay, reproduction, case = article.find_all("pre")
    assert replay.string == (
        f"kvfuzz replay 'my reports/cases/{lost().id}.json' --target '{HOSTILE}'"
    )
    assert reproduction.string == f"# {SCRIPT}\nassert False\n"
    assert json.loads(case.string) == json.loads(case_text(lost()))
    summaries = [_text(summary) for summary in article.find_all("summary")]
    assert summaries == [
        f"Reproduction with vLLM alone, a pytest file seen to fail on {HOSTILE}",
        "Case as JSON",
    ]


def test_a_known_finding_says_why_and_replays_by_its_ledger_id(page: BeautifulSoup):
    article = _finding(page, "known-single-page-size-0810dc85")
    assert _text(article.find(class_="known")).startswith(
        "A group of sliding-window MLA layers holds several page sizes (upstream means it: its own "
        "code relies on it; 0.20.0-0.28.0)."
    )
    assert article.pre.string == (
        "kvfuzz replay single-page-size-0810dc85 --target vllm==0.25.1 --target vllm==0.28.0"
    )


def test_targets_that_differ_in_the_mix_are_shown_apart():
    report = a_report()
    other = mixed("vllm==0.28.0", "0.28.0")
    short = replace(other, scenario=Scenario(mix=other.scenario.mix[:2]), pages=other.pages[:2])
    report.findings[1] = short
    article = _finding(_page(report), "known-single-page-size-0810dc85")
    assert len(article.find_all("figure", recursive=False)) == 1
    assert _text(article.figure.figcaption).startswith("Minimal mix: 2 layers.")
    (apart,) = article.find_all("details", class_="variant")
    assert _text(apart.summary) == "Otherwise on vllm==0.25.1: 3 layers"


def test_hostile_text_stays_text(page: BeautifulSoup):
    data = to_html(a_report(), a_timeline(a_report()), paths_of(a_report()), WHEN)
    text = data.decode()
    assert len(page.find_all("script")) == 1
    assert not page.find_all("img")
    assert text.count("</script>") == 1
    for forbidden in ("\x00", "\x1b", "\u202e", "\uffff"):
        assert forbidden not in text


# Pictures


def _bars(figure: Tag) -> list[tuple[str, list[tuple[str, str, str, str, str]]]]:
    groups = []
    for group in figure.find_all(class_="group"):
        layers = []
        for layer in group.find_all(class_="layer"):
            rect = layer.svg.rect
            layers.append(
                (
                    _text(layer.find(class_="name")),
                    rect["class"][0],
                    rect["width"],
                    _text(layer.svg.find("text")),
                    _text(layer.find(class_="page")),
                )
            )
        groups.append((_text(group.find(class_="group-title")), layers))
    return groups


def test_a_lost_layer_is_drawn_apart(page: BeautifulSoup):
    article = _finding(page, f"new-{lost().id}")
    assert _text(article.figcaption) == "Minimal mix: 3 layers. The longest bar is 8,192 bytes."
    assert _bars(article.figure) == [
        (
            "✗ Lost: 1 layer of the mix in no group",
            [("layers.2", "bar-lost", "90.0%", "M", "8,192 B")],
        ),
        (
            "Group 1: 2 layers, page of 4,096 bytes",
            [
                (SCRIPT, "bar-M", "45.0%", "M", "4,096 B"),
                (IMAGE, "bar-W", "45.0%", "W", "4,096 B"),
            ],
        ),
    ]
    note = _text(article.find(class_="group", recursive=True).find(class_="note"))
    assert note == (
        "✗ lost · concerned · MLA: block size 16, num kv heads 1, head size 128, dtype float32"
    )


def test_a_mix_without_groups_is_drawn_as_one(page: BeautifulSoup):
    article = _finding(page, "new-order-free-cfd32fa3")
    assert [title for title, _ in _bars(article.figure)] == ["No groups were made: 2 layers"]


def test_groups_with_what_they_should_not_hold():
    groups = (
        Group(layers=(SCRIPT, "alien"), pages=(8192, 512)),
        Group(layers=(SCRIPT, IMAGE, "layers.2"), pages=(4096, 4096, 8192)),
    )
    drawn = picture(replace(lost(), groups=groups, layers=()))
    assert [group.title for group in drawn.groups] == [
        "Group 1: 2 layers, pages of 512, 8,192 bytes",
        "Group 2: 3 layers, pages of 4,096, 8,192 bytes",
    ]
    first, alien = drawn.groups[0].bars
    assert first.marks == ("4,096 bytes in the mix", "grouped 2 times")
    assert (alien.letter, alien.kind, alien.marks) == ("?", "", ("not in the mix",))
    assert alien.length == 5.62
    assert drawn.left_out == 0


def test_a_mix_of_thousands_of_layers_is_drawn_in_part():
    mix = tuple((f"layers.{n}", FULL) for n in range(2000))
    big = replace(lost(), scenario=Scenario(mix=mix), pages=(4096,) * 2000, shrunk=False)
    drawn = picture(replace(big, groups=()))
    assert sum(len(group.bars) for group in drawn.groups) == MAX_BARS
    assert drawn.left_out == 2000 - MAX_BARS
    report = a_report()
    report.findings = [replace(big, groups=())]
    data = to_html(report, a_timeline(report), paths_of(report), WHEN)
    assert len(data) < 100_000
    article = _finding(BeautifulSoup(data, "html.parser"), f"new-{big.id}")
    assert _text(article.figcaption).startswith("Mix, not shrunk: 2,000 layers.")
    assert "And 1,952 more layers, not drawn." in _text(article)
    assert f"The case is too long to show here: it is in my reports/cases/{big.id}.json." in _text(
        article
    )


# Outcomes and time


def test_outcomes_are_bars_with_counts(page: BeautifulSoup):
    items = page.find(class_="outcomes").find_all("li")
    assert [_text(item.find(class_="label")) for item in items] == [
        "vllm==0.25.1", "vllm==0.28.0", HOSTILE,
    ]  # fmt: skip
    rects = [(r["class"][0], r["x"], r["width"]) for r in items[0].find_all("rect")]
    assert rects == [("outcome-plan", "0.0%", "75.0%"), ("outcome-none", "75.0%", "25.0%")]
    assert _text(items[0].find(class_="counts")) == "P plan 750 (75.0 %) N none 250 (25.0 %)"


def test_the_run_over_time(page: BeautifulSoup):
    rate, found = page.find_all("figure", class_="chart")
    assert _text(rate.figcaption).startswith(
        "Mixes a second, over all workers: 500 at most, 283 on average over 12 s"
    )
    assert [_text(item) for item in rate.ol.find_all("li")] == [
        "vllm==0.25.1", "vllm==0.28.0", HOSTILE,
    ]  # fmt: skip
    points = rate.find("polyline")["points"].split()
    assert len(points) == 24
    assert points[0] == "20.83,53"  # 250 of at most 500 a second
    assert points[8] == "354.17,6"
    rows = [[_text(c) for c in row.find_all(["td", "th"])] for row in found.tbody.find_all("tr")]
    assert [row[0] for row in rows] == ["1.0 s", "1.0 s", "5.0 s", "9.0 s", "9.0 s"]
    assert rows[2][1:] == ["single-page-size-0810dc85", "vllm==0.28.0", "◇ Known, by design"]


def test_a_finding_that_was_dropped_is_not_in_the_curve():
    report = a_report()
    timeline = a_timeline(report)
    report.findings.pop()
    found = _page(report, timeline).find_all("figure", class_="chart")[1]
    assert _text(found.figcaption) == "Findings met: 4, counted a target."


# Small and large reports


def test_a_run_that_found_nothing():
    page = _page(a_passing_report())
    assert page.header["class"] == ["verdict", "pass"]
    assert _text(page.find("section", attrs={"aria-labelledby": "findings"})) == "Findings None."
    assert not page.find(class_="failures")


def test_a_run_without_any_target():
    page = _page(Report(kvfuzz="1", seed=1), Timeline())
    assert page.header["class"] == ["verdict", "incomplete"]
    assert [_text(h2) for h2 in page.find_all("h2")] == ["Findings"]


@pytest.mark.slow
def test_ten_thousand_findings_make_a_file_that_opens():
    report = a_report()
    report.findings = [
        replace(lost(), id=f"partition-{n:08x}", fingerprint=f"{n:064x}") for n in range(10_000)
    ]
    data = to_html(report, a_timeline(report), paths_of(report), WHEN)
    assert len(data) < 3_000_000
    page = BeautifulSoup(data, "html.parser")
    assert len(page.find_all("article")) == html.MAX_FULL
    assert f"And {10_000 - html.MAX_FULL - 2000:,} more." in _text(page.main)
