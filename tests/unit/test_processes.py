"""The processes of whole runs: they end when the run does, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kvfuzz.engine.events import Event, FindingMade, Searching
from tests.unit.campaigns import (
    assert_case,
    descendants,
    report_of,
    run,
    settings_of,
    tally_of,
)

pytestmark = pytest.mark.usefixtures("_planners_importable")


@pytest.mark.slow
def test_what_a_planner_forks_ends_with_its_worker(tmp_path: Path):
    before = {process.pid for process in psutil.process_iter()}
    report = report_of(run(settings_of(tmp_path, "hangs_in_a_fork")))
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


def _shrunk(events: list[Event]) -> bool:
    return any(isinstance(event, FindingMade) and event.finding.shrunk for event in events)


def test_stop_ends_a_run(tmp_path: Path):
    settings = settings_of(
        tmp_path, "tests.sabotage.planners:packs_uniform_mixes", mixes=None, seconds=600.0
    )
    events: list[Event] = []
    began = time.monotonic()
    for event in run(settings, lambda: _shrunk(events)):
        events.append(event)
    assert time.monotonic() - began < 60
    report = report_of(iter(events))
    assert report.interrupted
    (finding,) = report.findings
    assert finding.invariant == "uniform-is-none"
    assert_case(finding, tmp_path)
    assert not descendants()


def test_a_run_that_is_stopped_at_once_asks_nothing(tmp_path: Path):
    report = report_of(run(settings_of(tmp_path, "reference"), lambda: True))
    assert report.interrupted
    assert [target.surfaces for target in report.targets] == [[]]


@pytest.mark.slow
def test_a_worker_killed_from_outside(tmp_path: Path):
    """As by a system that is short of memory: no finding, and nothing is lost."""
    settings = settings_of(
        tmp_path, "tests.sabotage.planners:packs_uniform_mixes", mixes=None, seconds=12.0
    )
    killed = 0
    mixes_then = 0
    events: list[Event] = []
    for event in run(settings):
        events.append(event)
        if isinstance(event, Searching) and _shrunk(events) and not killed:
            (worker,) = descendants()
            worker.kill()
            killed = worker.pid
            mixes_then = event.report.tally.mixes
    report = report_of(iter(events))
    assert killed
    (finding,) = report.findings
    assert (finding.invariant, finding.shrunk) == ("uniform-is-none", True)
    assert_case(finding, tmp_path)
    assert [path.stem for path in settings.cases.iterdir()] == [finding.id]
    assert tally_of(report).mixes > mixes_then + 300


@pytest.mark.slow
@pytest.mark.parametrize("planner", ["reference", "tests.unit.planners:waits"])
def test_workers_end_with_a_run_that_is_killed(tmp_path: Path, planner: str):
    """Even one whose planner is in a loop that no alarm ends, and that sends nothing."""
    script = tmp_path / "run.py"
    script.write_text(
        "from pathlib import Path\n"
        "from kvfuzz.targets.load import Prepared\n"
        "from tests.unit.campaigns import Settings, run\n"
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
