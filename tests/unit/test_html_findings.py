"""Findings in the HTML report: their order, their words, and their mixes drawn."""

from __future__ import annotations

import json

import pytest
from bs4 import BeautifulSoup, Tag
from msgspec.structs import replace

from kvfuzz.cases import case_text
from kvfuzz.outcomes import Group
from kvfuzz.reporting.bars import MAX_BARS, picture
from kvfuzz.specs import Scenario
from tests.report_samples import FULL, HOSTILE, IMAGE, SCRIPT, a_report, lost, mixed
from tests.unit.html_pages import html_of, page_of, text_of


@pytest.fixture(scope="module")
def page() -> BeautifulSoup:
    return page_of(a_report())


def _finding(page: BeautifulSoup, anchor: str) -> Tag:
    node = page.find(id=anchor)
    assert isinstance(node, Tag)
    return node


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
    assert text_of(article.h3) == f"✗ New {lost().id}"
    said = article.find("dl", class_="said")
    terms = [text_of(dt) for dt in said.find_all("dt")]
    words = [text_of(dd) for dd in said.find_all("dd")]
    assert dict(zip(terms, words, strict=True)) == {
        "Claim": "If a planner takes a mix, every layer of it is in exactly one group.",
        "Got": f"{SCRIPT} a\\x00b\\x1b[31mc\\u202ee\\uffff]]>&amp;",
        "Expected": f"{IMAGE} in a group",
    }
    replay, reproduction, case = article.find_all("pre")
    assert replay.string == (
        f"kvfuzz replay 'my reports/cases/{lost().id}.json' --target '{HOSTILE}'"
    )
    assert reproduction.string == f"# {SCRIPT}\nassert False\n"
    assert json.loads(case.string) == json.loads(case_text(lost()))
    summaries = [text_of(summary) for summary in article.find_all("summary")]
    assert summaries == [
        f"Reproduction with vLLM alone, a pytest file seen to fail on {HOSTILE}",
        "Case as JSON",
    ]


def test_a_known_finding_says_why_and_replays_by_its_ledger_id(page: BeautifulSoup):
    article = _finding(page, "known-single-page-size-0810dc85")
    assert text_of(article.find(class_="known")).startswith(
        "A group of sliding-window MLA layers holds several page sizes (upstream means it: its own "
        "code relies on it; 0.20.0-0.33.0)."
    )
    assert article.pre.string == (
        "kvfuzz replay single-page-size-0810dc85 --target vllm==0.25.1 --target vllm==0.28.0"
    )


def test_targets_that_differ_in_the_mix_are_shown_apart():
    report = a_report()
    other = mixed("vllm==0.28.0", "0.28.0")
    short = replace(other, scenario=Scenario(mix=other.scenario.mix[:2]), pages=other.pages[:2])
    report.findings[1] = short
    article = _finding(page_of(report), "known-single-page-size-0810dc85")
    assert len(article.find_all("figure", recursive=False)) == 1
    assert text_of(article.figure.figcaption).startswith("Minimal mix: 2 layers.")
    (apart,) = article.find_all("details", class_="variant")
    assert text_of(apart.summary) == "Otherwise on vllm==0.25.1: 3 layers"


# Pictures


def _bars(figure: Tag) -> list[tuple[str, list[tuple[str, str, str, str, str]]]]:
    groups = []
    for group in figure.find_all(class_="group"):
        layers = []
        for layer in group.find_all(class_="layer"):
            rect = layer.svg.rect
            layers.append(
                (
                    text_of(layer.find(class_="name")),
                    rect["class"][0],
                    rect["width"],
                    text_of(layer.svg.find("text")),
                    text_of(layer.find(class_="page")),
                )
            )
        groups.append((text_of(group.find(class_="group-title")), layers))
    return groups


def test_a_lost_layer_is_drawn_apart(page: BeautifulSoup):
    article = _finding(page, f"new-{lost().id}")
    assert text_of(article.figcaption) == "Minimal mix: 3 layers. The longest bar is 8,192 bytes."
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
    note = text_of(article.find(class_="group", recursive=True).find(class_="note"))
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
    data = html_of(report)
    assert len(data) < 100_000
    article = _finding(BeautifulSoup(data, "html.parser"), f"new-{big.id}")
    assert text_of(article.figcaption).startswith("Mix, not shrunk: 2,000 layers.")
    assert "And 1,952 more layers, not drawn." in text_of(article)
    assert (
        f"The case is too long to show here: it is in my reports/cases/{big.id}.json."
        in text_of(article)
    )
