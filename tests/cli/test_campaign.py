"""`kvfuzz run` as a campaign: stopped, gone on with, ended early; profiles and kept cases."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvfuzz.engine.state import STATE_FILE
from tests.cli.helpers import (
    SABOTAGE,
    Result,
    kvfuzz,
    layer,
    stopped,
    stored_mixes,
    window,
    write_case,
)

Invoke = Callable[..., Result]

SLOW = "tests.cli.planners:slows_down"
UNIFORM = f"{SABOTAGE}:packs_uniform_mixes"


def _surface(folder: Path, name: str = "o.json", target: int = 0) -> dict[str, Any]:
    report = json.loads((folder / name).read_text())
    (surface,) = report["targets"][target]["surfaces"]
    return {key: value for key, value in surface.items() if "second" not in key}


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_counts_nothing_twice(tmp_path: Path):
    """Killed, then interrupted, then left to its end: as if nothing had happened."""
    words = ("run", "--target", SLOW, "--examples", "20000", "--seed", "5", "--json", "o.json")
    go_on = ("run", "--resume", "--json", "o.json", "--jobs")
    result, killed = stopped(signal.SIGKILL, 3_000, tmp_path, *words, "--jobs", "1")
    assert result.code == -signal.SIGKILL
    result, interrupted = stopped(signal.SIGINT, killed, tmp_path, *go_on, "2")
    assert result.code == 130
    assert "stopped; this goes on from here: kvfuzz run --resume --out reports\n" in result.err
    assert killed < interrupted < 20_000
    assert _surface(tmp_path)["mixes"] == interrupted
    (case,) = (tmp_path / "reports/cases").iterdir()
    case.unlink()

    (tmp_path / "go").touch()
    result = kvfuzz(*go_on, "1", cwd=tmp_path)
    assert result.code == 1
    assert f"NEW {case.stem} on {SLOW}" in result.out
    assert case.exists()  # what was found before is written again
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "go").touch()
    kvfuzz(*words, cwd=whole)
    assert _surface(tmp_path) == _surface(whole)

    result = kvfuzz(*go_on, "1", cwd=tmp_path)
    assert result.code == 2
    assert "came to its end: give it --budget to search on" in result.err


def test_a_campaign_that_ended_goes_on_for_more_time(tmp_path: Path):
    words = ("run", "--target", "reference", "--examples", "300", "--json", "o.json", "--seed", "4")
    assert kvfuzz(*words, cwd=tmp_path).code == 0
    before = _surface(tmp_path)
    result = kvfuzz("run", "--resume", "--budget", "3s", "--json", "o.json", cwd=tmp_path)
    assert result.code == 0
    assert result.out.endswith("0 new findings, 0 known. Seed 4.\n")
    after = _surface(tmp_path)
    assert after["mixes"] > before["mixes"] == 300


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "There is no campaign in reports to go on with: leave out --resume."),
        (
            ("--target", "reference", "--seed", "0"),
            "--resume goes on with what was begun: leave out --target, --seed.",
        ),
        (("--no-ledger",), "--resume goes on with what was begun: leave out --no-ledger."),
        (("--profile", "ci"), "--resume goes on with what was begun: leave out --profile."),
    ],
)
def test_nothing_to_go_on_with(
    invoke: Invoke, tmp_path: Path, words: tuple[str, ...], sentence: str
):
    result = invoke("run", "--resume", *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith(f"kvfuzz: {sentence}\n")
    assert not (tmp_path / "reports").exists()


def test_a_damaged_state_is_told_and_left_alone(invoke: Invoke, tmp_path: Path):
    path = tmp_path / "reports" / STATE_FILE
    path.parent.mkdir()
    path.write_bytes(b"no database" * 100)
    for words in (("run", "--examples", "1", "--target", "reference"), ("run", "--resume"),
                  ("verify", "--layers", "1", "--target", "reference")):  # fmt: skip
        result = invoke(*words)
        assert (result.code, result.out) == (2, "")
        (sentence,) = [line for line in result.err.splitlines() if line.startswith("kvfuzz: ")]
        assert sentence == (
            "kvfuzz: reports/state.sqlite is damaged: file is not a database; move it away to "
            "begin anew. The case files beside it do not need it."
        )
    assert path.read_bytes() == b"no database" * 100


def test_enough_findings_end_a_run(tmp_path: Path):
    result = kvfuzz(
        "run", "--target", UNIFORM, "--target", f"{SABOTAGE}:mixes_page_sizes", "--budget", "1h",
        "--max-findings", "2", "--json", "o.json", cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 1
    report = json.loads((tmp_path / "o.json").read_text())
    assert len(report["findings"]) >= 2
    # What was being shrunk was waited for.
    assert all(len(finding["scenario"]["mix"]) <= 3 for finding in report["findings"])


@pytest.mark.slow
def test_several_targets_share_a_budget_of_time(tmp_path: Path):
    words = ("--target", "reference", "--target", f"{SABOTAGE}:talks", "--target", UNIFORM)
    result = kvfuzz("run", *words, "--budget", "6s", "--json", "o.json", cwd=tmp_path)
    assert result.code == 1
    mixes = [_surface(tmp_path, target=number)["mixes"] for number in range(3)]
    assert min(mixes) > 0
    assert sum(mixes) == stored_mixes(tmp_path)


@pytest.mark.slow
def test_the_profile_ci_is_the_same_each_time(tmp_path: Path):
    for name in ("1.json", "2.json"):
        result = kvfuzz(
            "run", "--target", "reference", "--profile", "ci", "--json", name, cwd=tmp_path
        )
        assert result.code == 0
    assert _surface(tmp_path, "1.json") == _surface(tmp_path, "2.json")
    assert _surface(tmp_path, "1.json")["mixes"] == 20_000
    assert json.loads((tmp_path / "1.json").read_text())["seed"] == 0


@pytest.mark.parametrize(
    ("planner", "sentence"),
    [
        ("dawdles", "are too few for a nightly, which wants 1,000; give it more time"),
        ("refuses_most", "were refused or not expressible, so that little was tested"),
    ],
)
def test_a_nightly_that_tried_next_to_nothing_fails(tmp_path: Path, planner: str, sentence: str):
    target = f"tests.cli.planners:{planner}"
    mixes = "20" if planner == "dawdles" else "1500"
    words = ("run", "--target", target, "--no-ledger", "--examples", mixes)
    assert kvfuzz(*words, cwd=tmp_path).code == 0
    result = kvfuzz(*words, "--profile", "nightly", cwd=tmp_path)
    assert result.code == 3
    assert f"kvfuzz: {target}, surface pack: " in result.err
    assert sentence in result.err


def test_the_profile_replay_judges_what_is_kept(invoke: Invoke, tmp_path: Path):
    words = ("run", "--target", UNIFORM, "--no-ledger", "--profile", "replay")
    result = invoke(*words)
    assert (result.code, result.out) == (2, "")
    assert "There is nothing to replay: no case in reports/cases, and no other is kept." in (
        result.err
    )
    write_case(tmp_path / "reports/cases/a.json", layer(), window())
    write_case(tmp_path / "reports/cases/b.json", layer(), window(head_size=128))
    (tmp_path / "reports/cases/c.json").write_text("{")
    result = invoke(*words, "--json", "o.json")
    assert result.code == 1
    assert "left out: reports/cases/c.json: " in result.err
    report = json.loads((tmp_path / "o.json").read_text())
    (finding,) = report["findings"]
    assert finding["invariant"] == "uniform-is-none"
    assert _surface(tmp_path)["mixes"] == 0
    assert invoke(*words[:2], "reference", *words[3:]).code == 0


def test_a_database_hands_cases_from_one_to_another(tmp_path: Path):
    """Found in one folder, found at once in another that has the same database."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    words = ("--target", UNIFORM, "--seed", "1", "--database", str(tmp_path / "db"))
    assert kvfuzz("run", *words, "--examples", "512", cwd=one).code == 1
    (case,) = (one / "reports/cases").iterdir()
    result = kvfuzz("run", *words, "--examples", "1", cwd=two)
    assert result.code == 1
    assert f"NEW {case.stem} on {UNIFORM}" in result.out
    assert (two / "reports/cases" / case.name).read_bytes() == case.read_bytes()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--database", "http://x"), "--database 'http://x' is neither a folder nor redis://"),
        (("--max-findings", "0"), "--max-findings"),
        (("--profile", "hourly"), "No profile is called 'hourly': choose dev, ci, nightly, replay"),
    ],
)
def test_mistaken_words(invoke: Invoke, words: tuple[str, ...], sentence: str):
    result = invoke("run", "--target", "reference", "--examples", "1", *words)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err


def _with_redis(invoke: Invoke) -> Result:
    words = ("--target", "reference", "--examples", "1")
    return invoke("run", *words, "--database", "redis://:secret@127.0.0.1:1/0")


def test_a_server_that_does_not_answer(invoke: Invoke):
    pytest.importorskip("redis")
    result = _with_redis(invoke)
    assert (result.code, result.out) == (2, "")
    assert "The database redis://127.0.0.1:1/0 cannot be used: " in result.err
    assert "secret" not in result.err


def test_packages_that_are_not_installed(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "distributed", None)
    for result, option, extra in (
        (_with_redis(invoke), "--database redis://...", "redis"),
        (invoke("run", "--target", "reference", "--dask", "tcp://127.0.0.1:1"), "--dask", "dask"),
    ):
        assert (result.code, result.out) == (2, "")
        package = "redis" if extra == "redis" else "distributed"
        assert result.err.endswith(
            f"kvfuzz: {option} needs the package {package}: pip install 'kvfuzz[{extra}]'.\n"
        )
