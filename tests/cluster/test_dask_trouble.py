"""Clusters that are not there, or go: one sentence, a documented exit code, nothing lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kvfuzz import __version__
from tests.cli.helpers import stored_mixes
from tests.cluster.conftest import NewCluster
from tests.cluster.runs import GO, Run, report_of, told
from tests.cluster.servers import Cluster, free_port

pytestmark = pytest.mark.cluster

SLOW = "tests.cluster.planners:slow_until_told"


@pytest.mark.usefixtures("_distributed")
def test_no_scheduler(tmp_path: Path):
    address = f"tcp://127.0.0.1:{free_port()}"
    words = ("--target", "reference", "--examples", "10", "--dask", address)
    result = Run(*words, cwd=tmp_path, impatient=True).end()
    assert (result.code, result.out) == (2, "")
    assert told(result) == [
        f"kvfuzz: No Dask scheduler answers at {address} (OSError); start one with "
        "`dask scheduler`, or leave out --dask."
    ]
    assert not (tmp_path / "o.json").exists()


@pytest.mark.usefixtures("_distributed")
@pytest.mark.parametrize("address", ["scheduler", "tcp://a", "tcp://a:99999", "tcp://\x1b[:1", ""])
def test_no_address(tmp_path: Path, address: str):
    words = ("--target", "reference", "--examples", "10", "--dask", address)
    result = Run(*words, cwd=tmp_path).end()
    assert (result.code, result.out) == (2, "")
    shown = address.replace("\x1b", "\\x1b")
    assert told(result) == [f"kvfuzz: --dask {shown} is no address: write it as tcp://HOST:8786."]


def test_no_workers(new_cluster: NewCluster, tmp_path: Path):
    cluster = new_cluster(0)
    words = ("--target", "reference", "--examples", "10", "--dask", cluster.address)
    result = Run(*words, cwd=tmp_path, impatient=True).end()
    assert (result.code, result.out) == (2, "")
    assert told(result) == [
        f"kvfuzz: The Dask scheduler at {cluster.address} has no workers; start some with "
        f"`dask worker {cluster.address}`."
    ]


@pytest.mark.parametrize(
    ("version", "has"), [("", "no kvfuzz"), ("Version: 0.0.1\n", "kvfuzz 0.0.1")]
)
def test_workers_without_this_kvfuzz(
    new_cluster: NewCluster, tmp_path: Path, version: str, has: str
):
    """They are asked for what is installed there: here, what says so before any other."""
    (tmp_path / "kvfuzz.dist-info").mkdir()
    (tmp_path / "kvfuzz.dist-info/METADATA").write_text(f"Name: kvfuzz\n{version}")
    cluster = new_cluster(1, PYTHONPATH=str(tmp_path))
    words = ("--target", "reference", "--examples", "10", "--dask", cluster.address)
    result = Run(*words, cwd=tmp_path / "o").end()
    assert (result.code, result.out) == (2, "")
    (sentence,) = told(result)
    assert sentence.startswith("kvfuzz: The Dask worker tcp://127.0.0.1:")
    assert sentence.endswith(
        f" has {has}, and this is {__version__}: install one version on all of them."
    )
    assert cluster.alive() == [True]


def _kill_scheduler(cluster: Cluster) -> None:
    cluster.scheduler.kill()


def _stop_scheduler(cluster: Cluster) -> None:
    """It keeps its connections, and says nothing."""
    os.kill(cluster.scheduler.process.pid, signal.SIGSTOP)


def _kill_workers(cluster: Cluster) -> None:
    for worker in cluster.workers:
        worker.kill()


@pytest.mark.parametrize("trouble", [_kill_scheduler, _stop_scheduler, _kill_workers])
def test_gone_in_mid_run(
    new_cluster: NewCluster, tmp_path: Path, trouble: Callable[[Cluster], None]
):
    cluster = new_cluster()
    words = ("--target", SLOW, "--examples", "2000", "--seed", "5")
    folder = tmp_path / "dask"
    run = Run(*words, "--dask", cluster.address, cwd=folder, impatient=True)
    run.wait_for(lambda: stored_mixes(folder), "a task has come back")
    trouble(cluster)
    result = run.end()
    assert result.code == 3
    assert told(result) == [
        f"kvfuzz: The Dask cluster at {cluster.address} has no scheduler or no workers any more. "
        "What was found is kept, and --resume goes on from here."
    ]
    assert "1 new finding, 0 known. Seed 5." in result.out
    kept = stored_mixes(folder)
    report = report_of(folder)
    assert 0 < report["surfaces"][0]["mixes"] == kept < 2000
    assert [finding["id"] for finding in report["findings"]] == ["uniform-is-none-82c27ad5"]
    assert [path.stem for path in (folder / "reports/cases").iterdir()] == [
        "uniform-is-none-82c27ad5"
    ]

    (folder / GO).touch()
    assert Run("--resume", "--jobs", "2", cwd=folder).end().code == 1
    assert report_of(folder)["surfaces"][0]["mixes"] == 2000
