"""Runs on a Dask cluster that works: what they find and count is what a local run does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cli.helpers import SABOTAGE, stored_mixes
from tests.cluster.conftest import NewCluster
from tests.cluster.runs import GO, Run, report_of, told
from tests.cluster.servers import Cluster, jobs_of, wait_until
from tests.unit.campaigns import MIXES, seed_with

pytestmark = pytest.mark.cluster

UNIFORM = f"{SABOTAGE}:packs_uniform_mixes"
SLOW = "tests.cluster.planners:slow_until_told"


def _locally(folder: Path, *words: str) -> dict:
    """What a run finds and counts on this machine, in as many lanes as the cluster has."""
    folder.mkdir()
    (folder / GO).touch()
    Run(*words, "--jobs", "2", cwd=folder).end()
    return report_of(folder)


def test_as_a_local_run(cluster: Cluster, tmp_path: Path):
    words = ("--target", UNIFORM, "--examples", "3000", "--seed", "5")
    result = Run(*words, "--dask", cluster.address, cwd=tmp_path / "dask").end()
    assert result.code == 1
    assert "seed 5, 2 workers" in result.err
    report = report_of(tmp_path / "dask")
    assert report["surfaces"][0]["mixes"] == 3000
    assert [finding["id"] for finding in report["findings"]] == ["uniform-is-none-82c27ad5"]
    assert report == _locally(tmp_path / "local", *words)


@pytest.mark.parametrize(
    ("planner", "got"),
    [
        ("dies_by_signal", "the death of the process SIGSEGV"),
        ("loops_forever", "no answer within the time limit"),
    ],
)
def test_a_planner_that_ends_or_holds_its_process(
    cluster: Cluster, tmp_path: Path, planner: str, got: str
):
    """The Dask worker survives: see the fixture."""
    words = ("--target", f"tests.unit.planners:{planner}")
    words = (*words, "--examples", f"{MIXES}", "--seed", f"{seed_with(1)}")
    result = Run(*words, "--dask", cluster.address, cwd=tmp_path / "dask").end()
    assert result.code == 1
    report = report_of(tmp_path / "dask")
    assert report["surfaces"][0]["mixes"] == MIXES
    assert report["surfaces"][0]["outcomes"]["crash"] == 1
    (finding,) = report["findings"]
    assert finding["id"].startswith("plan-or-refusal-")
    assert finding["shrunk"] is True
    assert len(finding["scenario"]["mix"]) == 3  # fewer would not do
    assert finding["got"] == got


def test_a_budget_of_time_is_kept_and_what_was_done_in_it_is_counted(
    cluster: Cluster, tmp_path: Path
):
    words = ("--target", "reference", "--budget", "6s", "--dask", cluster.address)
    result = Run(*words, cwd=tmp_path / "o").end()
    assert (result.code, told(result)) == (0, [])
    assert report_of(tmp_path / "o")["surfaces"][0]["mixes"] > 0


def test_interrupted_and_gone_on_with_elsewhere(cluster: Cluster, tmp_path: Path):
    """As if nothing had happened; what Dask had in hand is done again."""
    words = ("--target", SLOW, "--examples", "2000", "--seed", "5")
    folder = tmp_path / "dask"
    run = Run(*words, "--dask", cluster.address, cwd=folder, impatient=True)
    run.wait_for(lambda: stored_mixes(folder), "a task has come back")
    run.process.send_signal(signal.SIGINT)
    result = run.end()
    assert result.code == 130
    assert "stopped; this goes on from here: kvfuzz run --resume --out reports\n" in result.err
    assert "1 new finding, 0 known. Seed 5." in result.out
    kept = stored_mixes(folder)
    assert 0 < kept < 2000
    assert report_of(folder)["surfaces"][0]["mixes"] == kept
    (case,) = (folder / "reports/cases").iterdir()

    (folder / GO).touch()
    assert Run("--resume", "--jobs", "1", cwd=folder).end().code == 1
    assert case.exists()
    assert report_of(folder) == _locally(tmp_path / "local", *words)


def test_a_worker_killed_in_mid_run(new_cluster: NewCluster, tmp_path: Path):
    """Its task is done again by the other: nothing is lost, and nothing counted twice."""
    cluster = new_cluster()
    words = ("--target", SLOW, "--examples", "2000", "--seed", "5")
    folder = tmp_path / "dask"
    run = Run(*words, "--dask", cluster.address, cwd=folder)
    run.wait_for(lambda: len(list(cluster.folder.glob("begun-*"))) == 2, "both have begun")
    first, second = cluster.workers
    (job,) = jobs_of(first)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    wait_until(lambda: not job.is_running(), "its job ends with it")
    (cluster.folder / GO).touch()
    result = run.end()
    assert second.process.poll() is None
    assert (result.code, told(result)) == (1, [])
    report = report_of(folder)
    assert report["surfaces"][0]["mixes"] == 2000
    assert report == _locally(tmp_path / "local", *words)


def test_a_module_that_the_workers_do_not_have(cluster: Cluster, tmp_path: Path):
    (tmp_path / "only_here.py").write_text("def factory(): return lambda specs: None\n")
    words = ("--target", "only_here:factory", "--examples", "10", "--dask", cluster.address)
    result = Run(*words, cwd=tmp_path).end()
    assert result.code == 3
    assert told(result) == [
        "kvfuzz: On a Dask worker: The target only_here:factory names no module: No module named "
        "'only_here'."
    ]


@pytest.mark.live
def test_workers_fetch_releases_themselves(new_cluster: NewCluster, tmp_path: Path):
    cache = tmp_path / "cache"
    cluster = new_cluster(KVFUZZ_CACHE_DIR=str(cache))
    words = ("--target", "vllm==0.28.0", "--examples", "500", "--seed", "1")
    result = Run(*words, "--dask", cluster.address, cwd=tmp_path / "dask").end()
    assert (result.code, told(result)) == (0, [])
    assert [path.name for path in cache.glob("vllm-*")] == ["vllm-0.28.0"]
    report, local = report_of(tmp_path / "dask"), _locally(tmp_path / "local", *words)
    assert report["surfaces"] == local["surfaces"]
    # What the ledger knows is shown as it was met first, by whichever lane.
    assert {f["id"] for f in report["findings"]} == {f["id"] for f in local["findings"]}
