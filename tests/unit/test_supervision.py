"""Whole runs, with real worker processes, on planners that misbehave: nothing found is lost."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from kvfuzz.engine.calls import Limits
from kvfuzz.engine.events import FindingMade, Finished
from kvfuzz.engine.places import CHUNK, Place
from kvfuzz.engine.state import State
from kvfuzz.engine.supervisor import LEAK, Worker
from kvfuzz.errors import UsageError
from kvfuzz.outcomes import Crash
from tests.unit.campaigns import (
    LIMITS,
    MIXES,
    assert_case,
    descendants,
    kinds,
    report_of,
    run,
    seed_with,
    settings_of,
    tally_of,
)

pytestmark = pytest.mark.usefixtures("_planners_importable")

#: Planner -> symptom, and what was got.
INCIDENTS = {
    "loops_forever": ("time-out", "no answer within the time limit"),
    "sleeps_through_alarms": ("time-out", "no answer within the time limit"),
    "returns_a_generator_without_end": ("time-out", "no answer within the time limit"),
    "dies_by_signal": ("died", "the death of the process SIGSEGV"),
    "exits": ("died", "the death of the process exit status 3"),
    "exits_as_if_all_were_well": ("died", "the death of the process exit status 0"),
    "eats_memory": ("memory", "memory beyond the limit"),
    "raises_system_exit": ("exception", "SystemExit in leave: 2"),
    "raises_keyboard_interrupt": (
        "exception",
        "KeyboardInterrupt in interrupt: raise KeyboardInterrupt",
    ),
    "raises_what_cannot_be_told": ("exception", "Unspeakable in fail: raise Unspeakable"),
    "returns_a_string": (
        "exception",
        "UnusableAnswer in the planner: returned str: a group must hold layer names, got 'l'",
    ),
    "returns_groups_of_ints": (
        "exception",
        "UnusableAnswer in the planner: returned list: a group must hold layer names, got [1, 2]",
    ),
    "returns_a_generator_that_raises": (
        "exception",
        "UnusableAnswer in the planner: returned generator: 'gone'",
    ),
}


@pytest.mark.parametrize("planner", INCIDENTS)
def test_an_incident_is_found_shrunk_and_survived(tmp_path: Path, planner: str):
    limits = LIMITS
    if planner == "eats_memory":  # on a busy machine it may take its time to fill it
        limits = msgspec.structs.replace(LIMITS, call_seconds=10.0, silent_seconds=30.0)
    report = report_of(run(settings_of(tmp_path, planner, limits=limits)))
    (finding,) = report.findings
    symptom, got = INCIDENTS[planner]
    assert finding.invariant == "plan-or-refusal"
    assert (finding.symptom, finding.got) == (symptom, got)
    assert finding.status == "new"
    assert finding.shrunk
    assert kinds(finding) == ["mla_attention", "sliding_window_mla", "sliding_window_mla"]
    assert_case(finding, tmp_path)
    # Exact, although a worker may have died with counts that it had not sent.
    tally = tally_of(report)
    assert tally.mixes == MIXES
    assert tally.outcomes.total() == MIXES
    assert tally.outcomes["crash"] == 1
    assert tally.violated == {"plan-or-refusal": 1}
    assert report.targets[0].error == ""
    assert report.targets[0].surfaces[0].stopped == ""
    assert not descendants()


@pytest.mark.slow
def test_several_deaths_are_one_finding(tmp_path: Path):
    settings = settings_of(tmp_path, "dies_by_signal", seed=seed_with(2), jobs=2)
    report = report_of(run(settings))
    assert [finding.symptom for finding in report.findings] == ["died"]
    assert tally_of(report).mixes == MIXES
    assert tally_of(report).violated == {"plan-or-refusal": 2}


@pytest.mark.slow
def test_a_planner_that_always_dies_is_given_up(tmp_path: Path):
    limits = msgspec.structs.replace(LIMITS, deaths=3, shrink_seconds=4.0)
    settings = settings_of(tmp_path, "tests.sabotage.planners:exits", seed=1, limits=limits)
    *events, last = run(settings)
    assert isinstance(last, Finished)
    report = last.report
    (finding,) = report.findings
    assert finding.got == "the death of the process exit status 3"
    # Shrunk in forks, as far as it got in that time; two windows take two layers.
    assert finding.shrunk
    met = next(event.finding for event in events if isinstance(event, FindingMade))
    assert 2 <= len(finding.scenario) < len(met.scenario)
    assert report.targets[0].surfaces[0].stopped == "3 workers died"
    assert tally_of(report).outcomes["crash"] == 3


def test_what_a_planner_says_is_not_heard(tmp_path: Path):
    settings = settings_of(tmp_path, "tests.sabotage.planners:talks", mixes=100)
    report = report_of(run(settings))
    assert report.findings == []
    assert tally_of(report).mixes == 100


def test_a_planner_that_cannot_be_made(tmp_path: Path):
    settings = settings_of(tmp_path, "tests.sabotage.planners:cannot_be_made", jobs=2)
    report = report_of(run(settings))
    (target,) = report.targets
    assert target.error == (
        "The factory of tests.sabotage.planners:cannot_be_made failed: "
        "RuntimeError: no planner today"
    )
    assert target.surfaces == []
    assert report.findings == []


def test_an_answer_that_is_not_the_same_each_time(tmp_path: Path):
    report = report_of(run(settings_of(tmp_path, "answers_at_random")))
    # It may have come back often enough to be shrunk, or not; it is kept.
    (finding,) = report.findings
    assert finding.invariant == "deterministic"
    assert_case(finding, tmp_path)
    assert tally_of(report).mixes == MIXES


def test_an_answer_that_is_wrong_only_the_first_time(tmp_path: Path):
    """What was wrong is kept as it was met, and that it was not wrong again is a finding too."""
    settings = settings_of(tmp_path, "is_wrong_at_first")
    report = report_of(run(settings))
    found = {finding.invariant: finding for finding in report.findings}
    lost, fickle = found["partition"], found["deterministic"]
    assert lost.symptom == "lost"
    assert fickle.symptom == "second call differs"
    assert fickle.got.endswith(", then what breaks no such rule")
    assert lost.scenario == fickle.scenario
    for finding in report.findings:
        assert not finding.shrunk
        assert_case(finding, tmp_path)
    assert tally_of(report).mixes == MIXES
    assert tally_of(report).violated == dict.fromkeys(found, 1)
    assert _unshrunk(tmp_path) == []


def _unshrunk(folder: Path) -> list[object]:
    """What a campaign that goes on would shrink."""
    with State(folder) as state:
        past = state.latest("run")
        assert past is not None
        with state.go_on(past) as campaign:
            return [u for stored in campaign.stored.values() for u in stored.snapshot.unshrunk]


@pytest.mark.parametrize(
    ("looks", "crash"),
    [
        ([(1, 10), (1, 120), (1, 201)], Crash(symptom="memory")),  # one mix, ever larger
        ([(1, 10), (2, 201)], Crash(symptom="memory")),
        ([(1, 10), (2, 150), (3, 201)], LEAK),
        ([(10, 20), (500, 120), (900, 201)], LEAK),
        ([(900, 900)], LEAK),  # nobody looked for a while
        ([(900, 199), (900, 200)], None),
    ],
)
def test_who_is_to_blame_for_memory(looks: list[tuple[int, int]], crash: Crash | None):
    """By count of mixes and size at each look; a call may grow by 100, a worker by 200."""
    worker = object.__new__(Worker)
    vars(worker).update(
        job=SimpleNamespace(limits=Limits(call_bytes=100)), crash=None, end=lambda: None,
        _count=0, _moved=time.monotonic(), _loaded_size=1_000, _grown=0,
    )  # fmt: skip
    for count, grown in looks:
        assert worker.crash is None
        read = partial(tuple, (count, Place(0, 0)))
        vars(worker).update(
            _heartbeat=SimpleNamespace(read=read), _size=partial(int, 1_000 + grown)
        )
        worker._look()
    assert worker.crash == crash


@pytest.mark.slow
def test_a_target_that_leaks_is_said_to_and_no_mix_is_blamed(tmp_path: Path):
    limits = msgspec.structs.replace(LIMITS, deaths=2, silent_seconds=30.0, call_seconds=10.0)
    events = list(run(settings_of(tmp_path, "leaks", limits=limits)))
    report = report_of(iter(events))
    assert [event for event in events if isinstance(event, FindingMade)] == []
    assert report.findings == []
    surface = report.targets[0].surfaces[0]
    assert surface.leaks == 2
    assert surface.stopped == "2 workers died, 2 of them of leaked memory"
    assert 0 < surface.tally.mixes < MIXES
    assert surface.tally.outcomes["crash"] == 0
    assert surface.tally.violated.total() == 0
    assert list(settings_of(tmp_path, "leaks").cases.glob("*")) == []


def test_a_time_out_that_does_not_come_back_is_dropped(tmp_path: Path):
    settings = settings_of(tmp_path, "is_slow_once")
    met = [event.finding for event in run(settings) if isinstance(event, FindingMade)]
    assert [finding.symptom for finding in met] == ["time-out"]
    assert list(settings.cases.iterdir()) == []
    # All time-outs have one name: a case of an earlier run is not this run's to delete.
    kept = settings.cases / f"{met[0].id}.json"
    kept.write_text("from before")
    assert report_of(run(settings)).findings == []
    assert kept.read_text() == "from before"


@pytest.mark.slow
def test_a_death_while_shrinking_loses_nothing(tmp_path: Path):
    report = report_of(run(settings_of(tmp_path, "wrong_and_then_deadly")))
    # One mix broke two rules: both are known before the first is shrunk.
    found = {finding.invariant for finding in report.findings}
    assert "partition" in found
    assert found & {"uniform-is-none", "single-page-size"}
    for finding in report.findings:
        assert finding.shrunk
        assert len(finding.scenario) == 3
        assert_case(finding, tmp_path)
    # The mix was counted before it was shrunk, and is not counted again.
    assert tally_of(report).mixes == MIXES
    assert tally_of(report).outcomes["crash"] == 0
    assert tally_of(report).violated == dict.fromkeys(found, 1)


@pytest.mark.slow
@pytest.mark.parametrize("mixes", [1, 3 * CHUNK + 7])
def test_any_number_of_workers_judges_the_same_mixes(tmp_path: Path, mixes: int):
    tallies = [
        tally_of(report_of(run(settings_of(tmp_path, "reference", mixes=mixes, seed=5, jobs=jobs))))
        for jobs in (1, 2, 3)
    ]
    assert tallies[0].mixes == mixes
    assert tallies[1] == tallies[0]
    assert tallies[2] == tallies[0]


@pytest.mark.slow
def test_the_same_seed_finds_the_same(tmp_path: Path):
    target = "tests.sabotage.planners:loses_the_widest_window"
    reports = [
        report_of(run(settings_of(tmp_path / str(jobs), target, seed=3, mixes=300, jobs=jobs)))
        for jobs in (1, 2)
    ]
    for report in reports:
        (finding,) = report.findings
        assert (finding.invariant, finding.symptom) == ("partition", "lost")
        assert len(finding.scenario) == 3
    assert tally_of(reports[0]) == tally_of(reports[1])
    assert tally_of(reports[0]).violated["partition"] > 1


def test_a_case_that_cannot_be_written_ends_the_run_but_is_told(tmp_path: Path):
    settings = settings_of(tmp_path, "raises_system_exit")
    settings.cases.write_text("not a folder")
    made: list[FindingMade] = []
    with pytest.raises(UsageError, match="cannot be written"):
        made.extend(event for event in run(settings) if isinstance(event, FindingMade))
    assert [(event.finding.got, event.path) for event in made] == [("SystemExit in leave: 2", "")]
    assert not descendants()
