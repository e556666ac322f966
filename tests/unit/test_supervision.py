"""Whole runs, with real worker processes, on planners that misbehave: nothing found is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec
import psutil
import pytest

from kvfuzz.cases import Case, read_case
from kvfuzz.engine.calls import Limits
from kvfuzz.engine.campaign import run as run_campaign
from kvfuzz.engine.crew import LocalCrew
from kvfuzz.engine.events import Event, FindingMade, Finished, Report, Searching
from kvfuzz.engine.places import CHUNK
from kvfuzz.engine.records import Plan
from kvfuzz.engine.session import Tally
from kvfuzz.engine.settings import Settings
from kvfuzz.engine.state import State
from kvfuzz.errors import UsageError
from kvfuzz.findings import Finding
from kvfuzz.strategies.builders import stream
from kvfuzz.strategies.choices import SeededChoices
from kvfuzz.targets.load import Prepared
from tests.unit import planners

#: Small, so that what hangs or grows does not hold up the tests.
LIMITS = Limits(
    call_seconds=0.3,
    call_bytes=128 << 20,
    shrink_call_seconds=0.06,
    shrink_seconds=1.0,
    silent_seconds=3.0,
)
MIXES = 600
ROOT = Path(__file__).parents[2]


def _bad_places(seed: int, mixes: int) -> list[int]:
    """Which of a seed's first mixes the planners of `tests.unit.planners` misbehave on."""
    places = []
    for chunk in range(-(-mixes // CHUNK)):
        numbers = range(chunk * CHUNK, min((chunk + 1) * CHUNK, mixes))
        for number, (_, mix) in zip(numbers, stream(SeededChoices(seed, chunk)), strict=False):
            if planners.bad(dict(mix)):
                places.append(number)
    return places


@cache
def _seed(incidents: int) -> int:
    """A seed with so many of them, the last with a few hundred mixes to follow."""
    for seed in range(1_000):
        places = _bad_places(seed, MIXES)
        if len(places) == incidents and places[-1] < MIXES - 300:
            return seed
    raise AssertionError("no seed has so many")


@pytest.fixture(autouse=True)
def _planners_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # in the workers


def _settings(
    tmp_path: Path,
    target: str,
    *,
    mixes: int | None = MIXES,
    seconds: float | None = None,
    seed: int | None = None,
    jobs: int = 1,
    limits: Limits = LIMITS,
) -> Settings:
    uri = target if target == "reference" or ":" in target else f"tests.unit.planners:{target}"
    return Settings(
        targets=(Prepared(uri),),
        surfaces=("pack",),
        seconds=seconds,
        mixes=mixes,
        seed=_seed(1) if seed is None else seed,
        lanes=jobs,
        use_ledger=False,
        cases=tmp_path / "cases",
        limits=limits,
    )


def run(settings: Settings, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """A campaign with those settings, in the folder of their cases."""
    plan = Plan(
        kind="run", targets=(), surfaces=(), seconds=None, mixes=None, seed=0, use_ledger=False
    )
    with State(settings.cases.parent) as state:
        yield from run_campaign(settings, LocalCrew(settings.lanes), state.begin(plan), stop)


def _report(events: Iterator[Event]) -> Report:
    *_, last = events
    assert isinstance(last, Finished)
    return last.report


def _tally(report: Report) -> Tally:
    (target,) = report.targets
    (surface,) = target.surfaces
    return surface.tally


def _kinds(finding: Finding) -> list[str]:
    return sorted(spec.kind for _, spec in finding.scenario)


def _assert_case(finding: Finding, tmp_path: Path) -> None:
    case, scenario = read_case(tmp_path / "cases" / f"{finding.id}.json", Case)
    assert case.fingerprint == finding.fingerprint
    assert scenario == finding.scenario


def _descendants() -> list[psutil.Process]:
    """Workers of this process that live."""
    found = psutil.Process().children(recursive=True)
    return [process for process in found if "kvfuzz.engine.worker" in process.cmdline()]


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
    report = _report(run(_settings(tmp_path, planner, limits=limits)))
    (finding,) = report.findings
    symptom, got = INCIDENTS[planner]
    assert finding.invariant == "plan-or-refusal"
    assert (finding.symptom, finding.got) == (symptom, got)
    assert finding.status == "new"
    assert finding.shrunk
    assert _kinds(finding) == ["mla_attention", "sliding_window_mla", "sliding_window_mla"]
    _assert_case(finding, tmp_path)
    # Exact, although a worker may have died with counts that it had not sent.
    tally = _tally(report)
    assert tally.mixes == MIXES
    assert tally.outcomes.total() == MIXES
    assert tally.outcomes["crash"] == 1
    assert tally.violated == {"plan-or-refusal": 1}
    assert report.targets[0].error == ""
    assert report.targets[0].surfaces[0].stopped == ""
    assert not _descendants()


@pytest.mark.slow
def test_several_deaths_are_one_finding(tmp_path: Path):
    settings = _settings(tmp_path, "dies_by_signal", seed=_seed(3), jobs=2)
    report = _report(run(settings))
    assert [finding.symptom for finding in report.findings] == ["died"]
    assert _tally(report).mixes == MIXES
    assert _tally(report).violated == {"plan-or-refusal": 3}


@pytest.mark.slow
def test_a_planner_that_always_dies_is_given_up(tmp_path: Path):
    limits = msgspec.structs.replace(LIMITS, deaths=3, shrink_seconds=4.0)
    settings = _settings(tmp_path, "tests.sabotage.planners:exits", seed=1, limits=limits)
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
    assert _tally(report).outcomes["crash"] == 3


def test_what_a_planner_says_is_not_heard(tmp_path: Path):
    settings = _settings(tmp_path, "tests.sabotage.planners:talks", mixes=100)
    report = _report(run(settings))
    assert report.findings == []
    assert _tally(report).mixes == 100


def test_a_planner_that_cannot_be_made(tmp_path: Path):
    settings = _settings(tmp_path, "tests.sabotage.planners:cannot_be_made", jobs=2)
    report = _report(run(settings))
    (target,) = report.targets
    assert target.error == (
        "The factory of tests.sabotage.planners:cannot_be_made failed: "
        "RuntimeError: no planner today"
    )
    assert target.surfaces == []
    assert report.findings == []


def test_an_answer_that_is_not_the_same_each_time(tmp_path: Path):
    report = _report(run(_settings(tmp_path, "answers_at_random")))
    # It may have come back often enough to be shrunk, or not; it is kept.
    (finding,) = report.findings
    assert finding.invariant == "deterministic"
    _assert_case(finding, tmp_path)
    assert _tally(report).mixes == MIXES


def test_a_time_out_that_does_not_come_back_is_dropped(tmp_path: Path):
    settings = _settings(tmp_path, "is_slow_once")
    met = [event.finding for event in run(settings) if isinstance(event, FindingMade)]
    assert [finding.symptom for finding in met] == ["time-out"]
    assert list(settings.cases.iterdir()) == []
    # All time-outs have one name: a case of an earlier run is not this run's to delete.
    kept = settings.cases / f"{met[0].id}.json"
    kept.write_text("from before")
    assert _report(run(settings)).findings == []
    assert kept.read_text() == "from before"


@pytest.mark.slow
def test_a_death_while_shrinking_loses_nothing(tmp_path: Path):
    report = _report(run(_settings(tmp_path, "wrong_and_then_deadly")))
    # One mix broke two rules: both are known before the first is shrunk.
    found = {finding.invariant for finding in report.findings}
    assert "partition" in found
    assert found & {"uniform-is-none", "single-page-size"}
    for finding in report.findings:
        assert finding.shrunk
        assert len(finding.scenario) == 3
        _assert_case(finding, tmp_path)
    # The mix was counted before it was shrunk, and is not counted again.
    assert _tally(report).mixes == MIXES
    assert _tally(report).outcomes["crash"] == 0
    assert _tally(report).violated == dict.fromkeys(found, 1)


@pytest.mark.slow
def test_what_a_planner_forks_ends_with_its_worker(tmp_path: Path):
    before = {process.pid for process in psutil.process_iter()}
    report = _report(run(_settings(tmp_path, "hangs_in_a_fork")))
    (finding,) = report.findings
    assert finding.got == "the death of the process exit status 3"
    deadline = time.monotonic() + 5
    while _left_behind(before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _left_behind(before) == []


def _left_behind(before: set[int]) -> list[int]:
    """Living workers that were not there before, whoever their parent is by now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                process.pid not in before
                and process.status() != psutil.STATUS_ZOMBIE
                and "kvfuzz.engine.worker" in process.cmdline()
                # Not another test's, which may run beside this one.
                and process.environ().get("PYTEST_CURRENT_TEST")
                == os.environ["PYTEST_CURRENT_TEST"]
            ):
                found.append(process.pid)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mixes", [1, 3 * CHUNK + 7])
def test_any_number_of_workers_judges_the_same_mixes(tmp_path: Path, mixes: int):
    tallies = [
        _tally(_report(run(_settings(tmp_path, "reference", mixes=mixes, seed=5, jobs=jobs))))
        for jobs in (1, 2, 3)
    ]
    assert tallies[0].mixes == mixes
    assert tallies[1] == tallies[0]
    assert tallies[2] == tallies[0]


@pytest.mark.slow
def test_the_same_seed_finds_the_same(tmp_path: Path):
    target = "tests.sabotage.planners:loses_the_widest_window"
    reports = [
        _report(run(_settings(tmp_path / str(jobs), target, seed=3, mixes=300, jobs=jobs)))
        for jobs in (1, 2)
    ]
    for report in reports:
        (finding,) = report.findings
        assert (finding.invariant, finding.symptom) == ("partition", "lost")
        assert len(finding.scenario) == 3
    assert _tally(reports[0]) == _tally(reports[1])
    assert _tally(reports[0]).violated["partition"] > 1


def _shrunk(events: list[Event]) -> bool:
    return any(isinstance(event, FindingMade) and event.finding.shrunk for event in events)


def test_stop_ends_a_run(tmp_path: Path):
    settings = _settings(
        tmp_path, "tests.sabotage.planners:packs_uniform_mixes", mixes=None, seconds=600.0
    )
    events: list[Event] = []
    began = time.monotonic()
    for event in run(settings, lambda: _shrunk(events)):
        events.append(event)
    assert time.monotonic() - began < 60
    report = _report(iter(events))
    assert report.interrupted
    (finding,) = report.findings
    assert finding.invariant == "uniform-is-none"
    _assert_case(finding, tmp_path)
    assert not _descendants()


def test_a_run_that_is_stopped_at_once_asks_nothing(tmp_path: Path):
    report = _report(run(_settings(tmp_path, "reference"), lambda: True))
    assert report.interrupted
    assert [target.surfaces for target in report.targets] == [[]]


@pytest.mark.slow
def test_a_worker_killed_from_outside(tmp_path: Path):
    """As by a system that is short of memory: no finding, and nothing is lost."""
    settings = _settings(
        tmp_path, "tests.sabotage.planners:packs_uniform_mixes", mixes=None, seconds=12.0
    )
    killed = 0
    mixes_then = 0
    events: list[Event] = []
    for event in run(settings):
        events.append(event)
        if isinstance(event, Searching) and _shrunk(events) and not killed:
            (worker,) = _descendants()
            worker.kill()
            killed = worker.pid
            mixes_then = event.report.tally.mixes
    report = _report(iter(events))
    assert killed
    (finding,) = report.findings
    assert (finding.invariant, finding.shrunk) == ("uniform-is-none", True)
    _assert_case(finding, tmp_path)
    assert [path.stem for path in settings.cases.iterdir()] == [finding.id]
    assert _tally(report).mixes > mixes_then + 300


def test_a_case_that_cannot_be_written_ends_the_run_but_is_told(tmp_path: Path):
    settings = _settings(tmp_path, "raises_system_exit")
    settings.cases.write_text("not a folder")
    made: list[FindingMade] = []
    with pytest.raises(UsageError, match="cannot be written"):
        made.extend(event for event in run(settings) if isinstance(event, FindingMade))
    assert [(event.finding.got, event.path) for event in made] == [("SystemExit in leave: 2", "")]
    assert not _descendants()


@pytest.mark.slow
@pytest.mark.parametrize("planner", ["reference", "tests.unit.planners:waits"])
def test_workers_end_with_a_run_that_is_killed(tmp_path: Path, planner: str):
    """Even one whose planner is in a loop that no alarm ends, and that sends nothing."""
    script = tmp_path / "run.py"
    script.write_text(
        "from pathlib import Path\n"
        "from kvfuzz.targets.load import Prepared\n"
        "from tests.unit.test_supervision import Settings, run\n"
        f"settings = Settings(targets=(Prepared({planner!r}),), surfaces=('pack',),\n"
        "    seconds=600.0, mixes=None, seed=1, lanes=2, use_ledger=False,\n"
        "    cases=Path('cases').absolute())\n"
        "for event in run(settings):\n"
        "    print(type(event).__name__, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "Searching\n":
                break
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) == 2
        process.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert _running(alive) == []


def _running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that are not just waiting for someone to take note of their end."""
    running = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running
