"""A run over time: nothing is lost when neighbours are joined, and memory stays bounded."""

from __future__ import annotations

import pytest

from kvfuzz.engine.events import (
    FindingMade,
    Searching,
    SurfaceReport,
    TargetStarted,
    Verified,
)
from kvfuzz.engine.session import Tally
from kvfuzz.reporting.console import path_key
from kvfuzz.reporting.timeline import MAX_BUCKETS, Timeline
from tests.report_samples import lost


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _searching(mixes: int, seconds: float, uri: str = "reference") -> Searching:
    report = SurfaceReport(surface="pack", seconds=seconds, tally=Tally(mixes=mixes))
    return Searching(uri, report, None)


def _total(timeline: Timeline) -> float:
    return sum(timeline._buckets)


def test_rates_leave_out_the_time_of_loading():
    clock = Clock()
    timeline = Timeline(clock)
    timeline.take(TargetStarted("reference", "pack"))
    clock.now = 104.0  # loaded after two seconds
    timeline.take(_searching(200, 2.0))
    clock.now = 105.0
    timeline.take(_searching(500, 3.0))
    assert timeline.seconds == 5.0
    assert timeline.rates() == [
        (0.25, 0.0), (0.75, 0.0), (1.25, 0.0), (1.75, 0.0),
        (2.25, 100.0), (2.75, 100.0), (3.25, 100.0), (3.75, 100.0),
        (4.25, 300.0), (4.75, 300.0),
    ]  # fmt: skip
    assert [start.uri for start in timeline.starts] == ["reference"]


@pytest.mark.parametrize("hours", [0.01, 1, 9])
def test_a_long_run_takes_no_more_buckets_and_loses_no_mix(hours: float):
    clock = Clock()
    timeline = Timeline(clock)
    timeline.take(TargetStarted("reference", "pack"))
    steps = 2000
    for step in range(1, steps + 1):
        clock.now = 100.0 + 3600 * hours * step / steps
        timeline.take(_searching(10 * step, clock.now - 100.0))
    assert _total(timeline) == pytest.approx(10 * steps)
    rates = timeline.rates()
    assert len(rates) <= MAX_BUCKETS
    assert timeline.width * len(rates) == pytest.approx(3600 * hours, abs=timeline.width)
    expected = 10 * steps / (3600 * hours)
    assert [rate for _, rate in rates] == pytest.approx([expected] * len(rates))


def test_surfaces_that_take_turns_are_counted_once():
    clock = Clock()
    timeline = Timeline(clock)
    for turn in (1, 2):
        for uri in ("a:a", "b:b"):
            timeline.take(TargetStarted(uri, "pack"))
            clock.now += 1.0
            timeline.take(_searching(100 * turn, 1.0 * turn, uri))
    assert _total(timeline) == pytest.approx(400)


def test_what_an_earlier_run_verified_is_not_counted():
    clock = Clock()
    timeline = Timeline(clock)
    timeline.take(TargetStarted("reference", "pack"))
    for now, mixes in ((101.0, 900), (102.0, 1000)):
        clock.now = now
        searching = _searching(mixes, now - 50.0)
        searching.report.verified = Verified(layers=3, patterns=1, mixes=2000, resumed=800)
        timeline.take(searching)
    assert [rate for _, rate in timeline.rates()] == [100.0] * 4


def test_a_finding_counts_from_when_it_was_first_met():
    clock = Clock()
    timeline = Timeline(clock)
    for now in (101.5, 103.0):
        clock.now = now
        timeline.take(FindingMade(lost(), ""))
    assert timeline.met == {path_key(lost()): 1.5}


def test_a_clock_that_is_set_back_takes_nothing_back():
    clock = Clock()
    timeline = Timeline(clock)
    timeline.take(TargetStarted("reference", "pack"))
    clock.now = 102.0
    timeline.take(_searching(100, 2.0))
    clock.now = 50.0
    timeline.take(_searching(150, 2.0))
    assert timeline.seconds == 2.0
    assert _total(timeline) == pytest.approx(150)
