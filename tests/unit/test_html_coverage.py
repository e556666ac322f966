"""What the HTML report says was covered, and the runs before this one."""

from __future__ import annotations

import pytest
from bs4 import BeautifulSoup, Tag
from msgspec.structs import replace

from kvfuzz.engine.events import PastRun
from kvfuzz.reporting.timeline import Timeline
from kvfuzz.specs import DTYPE_BYTES
from tests.report_samples import (
    HOSTILE,
    SCRIPT,
    a_passing_report,
    a_report,
    a_verified_report,
    past,
)
from tests.unit.html_pages import page_of, section_of, text_of


@pytest.fixture(scope="module")
def page() -> BeautifulSoup:
    return page_of(a_report())


# Coverage


def _heat(block: Tag) -> dict[str, list[tuple[str, str]]]:
    table = block.find("table", class_="heat")
    return {
        text_of(row.th): [(td["class"][0], text_of(td)) for td in row.find_all("td")]
        for row in table.tbody.find_all("tr")
    }


def _bars(block: Tag) -> dict[str, list[tuple[str, str]]]:
    """Title -> (name, number) of each bar that is not empty."""
    found = {}
    for figure in block.find_all("figure")[1:]:
        rows = [
            (text_of(li.span), " ".join(text_of(node) for node in li.find_all(recursive=False)[2:]))
            for li in figure.find_all("li")
            if li.svg["class"] == ["share"]
        ]
        found[text_of(figure.figcaption)] = rows
    return found


def test_what_was_never_tried_is_marked(page: BeautifulSoup):
    section = section_of(page, "shapes")
    assert "One mix in 32 was counted." in text_of(section)
    assert text_of(section.h3) == "Surface pack: 340 mixes counted on 3 targets"
    (whole,) = section.find_all(attrs={"data-whole": True})
    heads = [text_of(th) for th in whole.thead.find_all("th")]
    assert heads == ["dtype", "MLA", "MLA window"]
    heat = _heat(whole)
    nothing = ("heat-0", "0 not tried")
    assert heat == {
        "float32": [("heat-4", "340 100 %"), ("heat-1", "68 20 %")],
        **{dtype: [nothing, nothing] for dtype in DTYPE_BYTES if dtype != "float32"},
    }
    assert _bars(whole) == {
        "Largest page by smallest page": [
            ("1 all pages equal", "255 75 %"), ("<1.05 near miss", "85 25 %"),
        ],
        "Layers": [("2-4", "340 100 %")],
        "Groups, or what else came": [("none not packed", "85 25 %"), ("2", "255 75 %")],
    }  # fmt: skip
    empty = [
        [text_of(span) for span in svg.parent.find_all("span")]
        for svg in whole.find_all("svg", class_="empty")
    ]
    assert ["coprime", "0"] in empty
    assert ["8+", "0"] in empty
    assert len(empty) == 5 + 3 + 11


def test_each_target_has_its_own_shapes(page: BeautifulSoup):
    each = section_of(page, "shapes").find_all("details")
    assert [(node["data-target"], text_of(node.summary)) for node in each] == [
        ("0", "vllm==0.25.1: 100 mixes"),
        ("1", "vllm==0.28.0: 200 mixes"),
        ("2", f"{HOSTILE}: 40 mixes"),
    ]
    assert _heat(each[2])["float32"] == [("heat-4", "40 100 %"), ("heat-1", "8 20 %")]


def test_one_target_needs_no_sum():
    section = section_of(page_of(a_passing_report()), "shapes")
    assert text_of(section.h3) == "Surface pack: 100 mixes counted"
    assert section.h3.parent["data-target"] == "0"
    assert not section.find_all("details")


def test_a_verification_says_what_it_covered():
    page = page_of(a_verified_report())
    said = [
        (li["data-target"], [text_of(p) for p in li.find_all("p")])
        for li in section_of(page, "verified").find_all("li")
    ]
    assert said == [
        ("0", [
            "reference , surface pack", "✓ Finished 397 patterns, 3 layers, all hold.",
            "794 of 794 mixes judged.",
        ]),
        ("1", [
            f"{HOSTILE} , surface pack",
            "✓ Finished 397 patterns, 3 layers, violated: partition.",
            "794 of 794 mixes judged, 100 of them by an earlier run.",
        ]),
        ("2", [
            "mine:dies , surface pack",
            "! Not finished 200 of 794 mixes of 397 patterns, 3 layers, all hold so far.",
            "200 of 794 mixes judged.",
        ]),
    ]  # fmt: skip
    assert page.header["class"] == ["verdict", "incomplete"]
    (failed,) = page.find(class_="failures").find_all("li")
    assert text_of(failed) == (
        "mine:dies : mine:dies was not verified in full on pack: 20 workers died."
    )
    assert text_of(page.find(class_="facts")) == "kvfuzz 0.0.1 · written 2026-01-02 03:04 UTC"
    # A share of an enumeration would look as if it had gaps.
    assert not page.find(id="shapes")
    # 100 of its mixes were judged by an earlier run.
    caption = text_of(section_of(page, "time").figcaption)
    assert caption.startswith("Mixes a second, over all workers: 198 at most, 141 on average")


def test_a_verification_that_was_interrupted_did_not_fail():
    page = page_of(replace(a_verified_report(), interrupted=True))
    assert not page.find(class_="failures")
    assert text_of(page.h1).startswith("Incomplete: the run was interrupted.")


# Past runs


def _past_of(history: list[PastRun]) -> Tag:
    report = a_report()
    report.history = history
    return section_of(page_of(report), "past")


def _names(section: Tag) -> list[str]:
    return [text_of(node) for node in section.find("svg", class_="names").find_all("text")]


def _points(section: Tag) -> list[str]:
    """The points of the three lines: rates, new and known findings."""
    return [line["points"] for line in section.find_all("polyline")]


def test_a_first_run_has_no_past(page: BeautifulSoup):
    assert not page.find(id="past")


def test_one_past_run():
    section = _past_of([replace(past(1)[0], seconds=10.0, mixes=10_000)])
    assert "This run and the one before it, in order." in text_of(section)
    assert _names(section) == ["2026-01-01", "this run"]
    # 1,000 a second, then 3,400 in 12 s; no new finding, then two; two known ones both times.
    assert _points(section) == ["0,6 1000,73.37", "0,100 1000,6", "0,6 1000,6"]
    assert [text_of(node) for node in section.find_all(class_="top")] == ["1,000", "2"]
    rows = [[text_of(c) for c in tr.find_all(["th", "td"])] for tr in section.tbody.find_all("tr")]
    assert rows == [
        ["this run", "3,400", "12.0", "283", "2", "2",
         f"vllm==0.25.1, vllm==0.28.0, {HOSTILE}, mine:broken"],
        ["2026-01-01 03:00", "10,000", "10.0", "1,000", "0", "2", f"vllm==0.25.1, {SCRIPT}"],
    ]  # fmt: skip


def test_a_run_that_took_no_time_has_no_rate():
    section = _past_of(past(3))
    assert _points(section)[0] == "333.3,66.49 666.7,66.16 1000,6"
    assert [len(line.split()) for line in _points(section)] == [3, 4, 4]
    assert "2026-01-01 03:00 0 0.0 - 0 2" in text_of(section.tbody)
    assert "2026-01-02 03:00 interrupted 6,060" in text_of(section.tbody)
    idle = replace(a_passing_report(), targets=[], history=past(1))
    assert _points(section_of(page_of(idle, Timeline()), "past")) == [
        "", "0,100 1000,100", "0,6 1000,100",
    ]  # fmt: skip


def test_runs_of_one_day_are_named_by_their_times_in_the_order_given():
    runs = [replace(past(2)[1], started=f"2026-01-01T{hour}:30:00Z") for hour in ("09", "08")]
    assert _names(_past_of(runs)) == ["09:30", "08:30", "this run"]


def test_hundreds_of_runs_are_thinned_out():
    section = _past_of(past(500))
    assert "This run and the 400 before it, in order; 100 earlier ones are left out." in text_of(
        section
    )
    assert "A point stands for 7 runs" in text_of(section)
    assert [len(line.split()) for line in _points(section)] == [59, 59, 59]
    assert len(section.find_all("circle", class_="mark")) == 3  # this run's two, and the legend's
    assert _names(section) == ["2026-04-17", "2026-11-24", "this run"]
    assert len(section.tbody.find_all("tr")) == 401
