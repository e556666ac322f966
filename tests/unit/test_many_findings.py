"""Planners that fail otherwise on every mix: what is done about each finding is bounded."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from kvfuzz.commands.conduct import _Collected
from kvfuzz.engine.calls import Limits
from kvfuzz.engine.events import Event, FindingMade, Report, TargetReport
from kvfuzz.engine.records import Plan, Snapshot, Totals
from kvfuzz.engine.state import State
from kvfuzz.findings import Finding
from kvfuzz.reporting import console, html, markdown, progress
from kvfuzz.reporting.json_file import to_json
from kvfuzz.reporting.junit import to_junit
from kvfuzz.reporting.markdown import to_markdown
from kvfuzz.reporting.matrix import failure, spread
from kvfuzz.reporting.terminal import QuietConsole
from tests.report_samples import HOSTILE, lost, reordered, surface
from tests.unit.campaigns import (
    LIMITS,
    assert_case,
    report_of,
    run,
    settings_of,
    tally_of,
)
from tests.unit.html_pages import page_of, text_of

MANY = 10_000


def many(count: int, target: str = HOSTILE) -> list[Finding]:
    """So many findings of one invariant; the first 100 are shrunk."""
    return [
        msgspec.structs.replace(
            lost(target), id=f"partition-{n:08x}", fingerprint=f"{n:064x}", shrunk=n < 100
        )
        for n in range(count)
    ]


def a_flood() -> Report:
    """Many findings of one rule, and one of another at the end."""
    target = TargetReport(uri=HOSTILE, version="1.0", surfaces=[surface(MANY, {"partition": MANY})])
    return Report(kvfuzz="0.0.1", seed=7, targets=[target], findings=[*many(MANY), reordered()])


def _limits(**fields: int) -> Limits:
    return msgspec.structs.replace(LIMITS, shrink_seconds=0.2, call_seconds=10.0, **fields)


@pytest.mark.usefixtures("_planners_importable")
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_findings_are_shrunk_and_the_others_kept(tmp_path: Path, jobs: int):
    limits = _limits(shrinks=3)
    settings = settings_of(
        tmp_path, "crashes_anew_each_time", seed=1, mixes=60, jobs=jobs, limits=limits
    )
    met = {e.finding.fingerprint for e in run(settings) if type(e) is FindingMade}
    events = list(run(msgspec.structs.replace(settings, mixes=80), resume=True))
    report = report_of(iter(events))
    assert tally_of(report).mixes == 80
    assert tally_of(report).violated == {"plan-or-refusal": 80}
    # Those of the first run count too: nothing more is shrunk.
    assert len(met) < len(report.findings) <= 80
    assert {f.fingerprint for f in report.findings if f.shrunk} <= met
    assert len([f for f in report.findings if f.shrunk]) <= 3
    for finding in report.findings:
        assert_case(finding, tmp_path)
    assert len(list(settings.cases.iterdir())) == len(report.findings)
    with State(tmp_path) as state:
        past = state.latest("run")
        assert past is not None
        with state.go_on(past) as campaign:
            (stored,) = campaign.stored.values()
    assert stored.snapshot.unshrunk == []
    assert stored.findings == report.findings


@pytest.mark.usefixtures("_planners_importable")
def test_a_search_is_given_up_after_so_many(tmp_path: Path):
    settings = settings_of(
        tmp_path, "crashes_anew_each_time", seed=1, mixes=None, seconds=600.0, jobs=2,
        limits=_limits(shrinks=1, findings=500),
    )  # fmt: skip
    report = report_of(run(settings))
    assert len(report.findings) >= 500
    assert report.targets[0].surfaces[0].stopped == f"{len(report.findings):,} findings"
    assert len(list(settings.cases.iterdir())) == len(report.findings)
    again = report_of(run(settings, resume=True))
    # It may find a few more before what is known is taken over, and shrink what was in hand.
    known = {finding.fingerprint for finding in report.findings}
    assert known <= {finding.fingerprint for finding in again.findings}
    assert again.targets[0].surfaces[0].stopped == f"{len(again.findings):,} findings"


def test_a_save_writes_what_has_changed(tmp_path: Path):
    """A campaign is saved every second, and ten thousand rows are not written each time."""
    plan = Plan(
        kind="run", targets=(), surfaces=(), seconds=1.0, mixes=None, seed=0, use_ledger=False
    )
    pair, findings, snapshot = (HOSTILE, "pack"), many(MANY), Snapshot(version="1")
    with State(tmp_path) as state, state.begin(plan) as campaign:
        rows = []
        for known in (MANY - 1, MANY, MANY):
            before = state._db.total_changes
            campaign.save(
                1.0, Totals(1.0, 1, 1, 0), {pair: snapshot}, {pair: findings[:known]},
                finished=False,
            )  # fmt: skip
            rows.append(state._db.total_changes - before)
    assert rows == [2 + MANY - 1, 3, 2]


def test_what_is_left_of_a_run_that_broke_off_holds_each_finding_once():
    collected = _Collected(7)
    for finding in many(MANY):
        unshrunk = msgspec.structs.replace(finding, shrunk=False)
        collected.take(FindingMade(unshrunk, "a.json"))
        collected.take(FindingMade(finding, "b.json"))
    assert collected.report.findings == many(MANY)
    assert set(collected.paths.values()) == {"b.json"}


def test_many_of_one_kind_do_not_hide_another():
    shown = spread(a_flood().findings)
    assert shown[:3] == [many(1)[0], reordered(), many(2)[1]]
    assert len(shown) == MANY + 1


def _printed(report: Report, capsys: pytest.CaptureFixture[str]) -> str:
    paths = {console.path_key(f): f"my/cases/{f.id}.json" for f in report.findings}
    out = QuietConsole(markup=False, highlight=False, emoji=False, width=100)
    console.print_report(out, report, paths)
    return capsys.readouterr().out


def test_the_console_prints_the_first_in_full(capsys: pytest.CaptureFixture[str]):
    lines = _printed(a_flood(), capsys).splitlines()
    assert sum(line.startswith("NEW ") for line in lines) == console.MAX_FULL == 20
    assert sum(line.startswith("  partition-") for line in lines) == console.MAX_LINES - 1 == 99
    assert lines[-4:] == [
        f"  and {MANY + 1 - 100:,} more, in my/cases",
        "  9,900 of them are kept as they were met, not shrunk: a search shrinks its first 100",
        "",
        "10,001 new findings, 0 known. Seed 7.",
    ]


def test_the_console_prints_a_few_as_they_are(capsys: pytest.CaptureFixture[str]):
    report = a_flood()
    report.findings = report.findings[-20:]
    out = _printed(report, capsys)
    assert out.count("NEW ") == 20
    assert " more, in " not in out
    assert "kept as they were met" not in out


def test_markdown_stays_below_what_github_shows():
    text = to_markdown(a_flood())
    assert len(text.encode()) < 1 << 20
    assert text.count("\n### partition-") == markdown.MAX_FULL - 1
    assert f"\n### {reordered().id}\n" in text
    assert text.count("\n| partition-") == markdown.MAX_LINES
    assert "\nAnd 9,451 more: the case files and the JSON report hold them all.\n" in text


def test_markdown_shows_the_first_layers_of_a_large_mix():
    finding = lost()
    layers = tuple((f"layers.{n}", finding.scenario.mix[0][1]) for n in range(100))
    large = msgspec.structs.replace(finding.scenario, mix=layers)
    report = a_flood()
    report.findings = [msgspec.structs.replace(finding, scenario=large, pages=(4096,) * 100)]
    text = to_markdown(report)
    assert "| `layers.39` | " in text
    assert "`layers.40`" not in text
    assert "\nand 60 more layers\n" in text


def test_html_draws_a_finding_of_each_kind():
    page = page_of(a_flood())
    articles = [article["id"] for article in page.find_all("article")]
    assert len(articles) == html.MAX_FULL
    assert f"new-{reordered().id}" in articles


def test_a_target_that_leaks_is_said_to_in_every_report(capsys: pytest.CaptureFixture[str]):
    report = a_flood()
    report.findings = []
    (made,) = report.targets[0].surfaces
    made.leaks = 2
    said = "the target leaks memory: 2 workers were ended for having grown, a little with each call"
    assert f"\n{said}\n" in _printed(report, capsys)
    assert f"\n- `{HOSTILE}`: {said}\n" in to_markdown(report)
    assert said.encode() in to_junit(report)
    assert said in text_of(page_of(report).main)
    assert json.loads(to_json(report))["targets"][0]["surfaces"][0]["leaks"] == 2
    assert failure(report, report.targets[0]) == ""
    made.stopped = "20 workers died"
    assert failure(report, report.targets[0]) == (
        f"{HOSTILE} was not searched to its end on pack: 20 workers died."
    )


def test_json_and_junit_hold_all_of_them():
    report = a_flood()
    assert len(json.loads(to_json(report))["findings"]) == MANY + 1
    assert len(list(ET.fromstring(to_junit(report)).iter("failure"))) == MANY + 1


def test_the_lines_of_a_run_are_bounded(capsys: pytest.CaptureFixture[str]):
    events: list[Event] = [FindingMade(finding, "") for finding in many(MANY)]
    with progress.LineView(QuietConsole(markup=False, width=100), None) as shown:
        for event in [*events, *events]:
            shown.take(event)
    lines = capsys.readouterr().out.splitlines()
    assert lines[100] == "over 100 findings: further ones are kept as they are met"
    assert sum(line.startswith("shrunk: ") for line in lines) == 200
    assert len(lines) == 201
