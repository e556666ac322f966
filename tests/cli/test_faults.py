"""`kvfuzz run` when the world fails it: full disks, damaged files, floods of findings, company."""

from __future__ import annotations

import json
import resource
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvfuzz.cases import Case, read_case
from kvfuzz.engine.calls import Limits
from kvfuzz.engine.settings import Settings
from kvfuzz.engine.state import STATE_FILE
from tests.cli.helpers import SABOTAGE, Result, kvfuzz, start

Invoke = Callable[..., Result]

FLOOD = "tests.unit.planners:crashes_anew_each_time"
UNIFORM = f"{SABOTAGE}:packs_uniform_mixes"


def _sentences(result: Result) -> list[str]:
    return [line for line in result.err.splitlines() if line.startswith("kvfuzz: ")]


def _rows(folder: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "reports" / STATE_FILE, timeout=30)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return db.execute(query).fetchall()


def _assert_whole(folder: Path) -> list[str]:
    """Every case file can be read, and nothing else lies beside them; their names."""
    paths = sorted((folder / "reports/cases").iterdir())
    for path in paths:
        assert read_case(path, Case)[0].id == path.stem
    return [path.stem for path in paths]


@pytest.mark.slow
def test_thousands_of_findings(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    few = partial(Settings, limits=Limits(shrinks=2, shrink_seconds=1.0))
    monkeypatch.setattr("kvfuzz.commands.run.Settings", few)
    files = ("--json", "o.json", "--html", "o.html", "--markdown", "o.md", "--junit", "o.xml")
    result = invoke(
        "run", "--target", FLOOD, "--examples", "3000", "--seed", "1", "--no-ledger", *files
    )
    assert result.code == 1
    found = json.loads((tmp_path / "o.json").read_text())["findings"]
    assert len(found) > 2_900
    assert _assert_whole(tmp_path) == sorted(finding["id"] for finding in found)
    assert f"  and {len(found) - 100:,} more, in reports/cases\n" in result.out
    assert len(result.out) < 200_000
    assert (tmp_path / "o.md").stat().st_size < 1 << 20
    assert (tmp_path / "o.html").stat().st_size < 3 << 20
    assert _rows(tmp_path, "SELECT count(*) FROM finding") == [(len(found),)]

    again = invoke("run", "--resume", "--budget", "5s", "--json", "o.json")
    assert again.code == 1
    more = json.loads((tmp_path / "o.json").read_text())["findings"]
    assert {f["id"] for f in found} <= {f["id"] for f in more}
    assert len([f for f in more if f["shrunk"]]) == len([f for f in found if f["shrunk"]]) <= 2
    assert _assert_whole(tmp_path) == sorted(finding["id"] for finding in more)


def _limited(size: int, *words: str, cwd: Path) -> Result:
    """`kvfuzz` where no file can grow beyond that size, as on a disk that is full."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    with start(*words, cwd=cwd, preexec_fn=limit) as process:
        out, err = process.communicate(timeout=120)
    assert "Traceback" not in out + err
    return Result(process.returncode, out, err)


@pytest.mark.slow
def test_a_disk_that_is_full_in_mid_run(tmp_path: Path):
    """The state can grow no more; what was found until then is told, and is on disk."""
    result = _limited(
        66 << 10, "run", "--target", FLOOD, "--budget", "60s", "--jobs", "1", cwd=tmp_path
    )
    assert result.code == 2
    (sentence,) = _sentences(result)
    assert sentence.startswith("kvfuzz: reports/state.sqlite cannot be read and written: ")
    assert sentence.endswith(
        "; make room, wait for whoever holds it, or choose another folder with --out."
    )
    names = _assert_whole(tmp_path)
    assert names
    assert all(f"/{name}.json" in result.out for name in names)
    assert result.out.endswith(f"{len(names):,} new findings, 0 known. Seed {_seed(result)}.\n")
    # What the file held before is still there.
    assert len(_rows(tmp_path, "SELECT id FROM campaign")) == 1


def _seed(result: Result) -> str:
    return result.err.split("seed ")[1].split(",")[0]


def test_a_report_that_cannot_be_written_in_the_end(tmp_path: Path):
    """The others are, and the sentence says which one is not."""
    result = kvfuzz(
        "run", "--target", "tests.cli.planners:spoils_the_report", "--examples", "300",
        "--json", "o.json", "--junit", "o.xml", cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 2
    assert _sentences(result) == [
        "kvfuzz: o.json cannot be written: Is a directory; choose another folder or make room."
    ]
    (name,) = _assert_whole(tmp_path)
    assert f"NEW {name} on tests.cli.planners:spoils_the_report" in result.out
    assert name in (tmp_path / "o.xml").read_text()
    assert list((tmp_path / "o.json").iterdir()) == []
    assert not list(tmp_path.glob(".o.json*"))


LEAKS = "tests.unit.planners:leaks"


@pytest.mark.slow
@pytest.mark.parametrize(("deaths", "code"), [(20, 0), (1, 3)])
def test_a_target_that_leaks(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deaths: int, code: int
):
    """That is no finding about a mix. If there was no end to it, the search has failed."""
    limits = Limits(call_bytes=64 << 20, deaths=deaths)
    monkeypatch.setattr("kvfuzz.commands.run.Settings", partial(Settings, limits=limits))
    result = invoke("run", "--target", LEAKS, "--examples", "24", "--json", "o.json", "--jobs", "1")
    assert result.code == code
    assert "0 new findings, 0 known." in result.out
    assert "\nthe target leaks memory: " in result.out
    (surface,) = json.loads((tmp_path / "o.json").read_text())["targets"][0]["surfaces"]
    assert surface["outcomes"]["crash"] == 0
    if code == 0:
        assert surface["leaks"] >= 1
        assert (surface["stopped"], surface["mixes"]) == ("", 24)
        assert _sentences(result) == []
    else:
        assert surface["leaks"] == 1
        assert _sentences(result) == [
            f"kvfuzz: {LEAKS}, surface pack: the target leaks memory: 1 worker was ended for "
            "having grown, a little with each call; 1 worker died, 1 of them of leaked memory, "
            "so it was not searched to its end."
        ]


def _until(met: Callable[[], bool], process: Any) -> None:
    deadline = time.monotonic() + 60
    while not met():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_state_that_is_damaged_in_mid_run(tmp_path: Path):
    path = tmp_path / "reports" / STATE_FILE
    words = ("run", "--target", UNIFORM, "--no-ledger", "--budget", "60s", "--json", "o.json")
    with start(*words, cwd=tmp_path) as process:
        _until(lambda: path.exists() and bool(list(path.parent.glob("cases/u*.json"))), process)
        path.write_bytes(b"no database" * 1_000)
        out, err = process.communicate(timeout=60)
    result = Result(process.returncode, out, err)
    assert "Traceback" not in out + err
    assert result.code == 2
    (sentence,) = _sentences(result)
    assert sentence == (
        "kvfuzz: reports/state.sqlite is damaged: file is not a database; move it away to "
        "begin anew. The case files beside it do not need it."
    )
    (name,) = _assert_whole(tmp_path)
    assert f"NEW {name} on {UNIFORM}" in result.out
    assert [f["id"] for f in json.loads((tmp_path / "o.json").read_text())["findings"]] == [name]
    assert path.read_bytes() == b"no database" * 1_000


def test_a_folder_of_cases_that_is_lost_in_mid_run(tmp_path: Path):
    """What is found then is printed, though it cannot be kept."""
    result = kvfuzz(
        "run", "--target", "tests.cli.planners:spoils_the_folder", "--budget", "60s",
        "--jobs", "1", "--json", "o.json", cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 2
    (sentence,) = _sentences(result)
    assert sentence.startswith("kvfuzz: reports/cases/")
    assert "cannot be written: " in sentence
    found = json.loads((tmp_path / "o.json").read_text())["findings"]
    assert found
    for finding in found:
        assert f"NEW {finding['id']} on tests.cli.planners:spoils_the_folder" in result.out


@pytest.mark.slow
def test_three_at_a_time_in_one_folder(tmp_path: Path):
    """Two searches that find the same and a verification; nobody may go on with what is run."""
    targets = (UNIFORM, "tests.cli.planners:old")  # one planner by two names
    words = [
        ("run", "--target", target, "--no-ledger", "--examples", "4000", "--seed", f"{number}",
         "--jobs", "1", "--json", f"{number}.json")
        for number, target in enumerate(targets)
    ] + [("verify", "--target", UNIFORM, "--no-ledger", "--layers", "3", "--jobs", "1",
          "--json", "2.json")]  # fmt: skip
    processes = [start(*each, cwd=tmp_path) for each in words]
    results = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in out + err
        results.append(process.returncode)
    assert results == [1, 1, 1]
    reports = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(3)]
    mixes = [report["targets"][0]["surfaces"][0]["mixes"] for report in reports]
    assert mixes == [4000, 4000, 794]
    ids = {finding["id"] for report in reports for finding in report["findings"]}
    assert _assert_whole(tmp_path) == sorted(ids)
    rows = _rows(tmp_path, "SELECT kind, mixes, new, finished FROM campaign ORDER BY kind, id")
    assert sorted(rows) == [("run", 4000, 1, 1), ("run", 4000, 1, 1), ("verify", 794, 1, 1)]
    assert _rows(tmp_path, "SELECT count(*) FROM finding") == [(3,)]


@pytest.mark.slow
def test_a_run_that_is_going_on_is_not_gone_on_with(tmp_path: Path):
    path = tmp_path / "reports" / STATE_FILE
    words = ("run", "--target", "reference", "--budget", "60s", "--jobs", "1")
    with start(*words, cwd=tmp_path) as process:
        searched = "SELECT mixes > 0 FROM campaign"
        _until(lambda: path.exists() and _rows(tmp_path, searched) == [(1,)], process)
        result = kvfuzz("run", "--resume", cwd=tmp_path)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert result.code == 2
    assert result.out == ""
    assert _sentences(result) == [
        "kvfuzz: Another kvfuzz runs campaign 1 of reports/state.sqlite: wait for it, or choose "
        "another folder with --out."
    ]
    assert process.returncode == 130, err
    assert kvfuzz("run", "--resume", "--budget", "8s", cwd=tmp_path).code == 0
