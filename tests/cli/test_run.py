"""`kvfuzz run`: output, files and exit codes, on planners that are wrong in known ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvfuzz.invariants import invariants_of
from kvfuzz.outcomes import OUTCOME_NAMES
from tests.cli.helpers import SABOTAGE, kvfuzz

UNIFORM = f"{SABOTAGE}:packs_uniform_mixes"


def test_the_reference_has_no_finding(tmp_path: Path):
    result = kvfuzz(
        "run", "--target", "reference", "--examples", "2000", "--seed", "3", "--json", "o.json",
        cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 0
    assert "2,000 mixes in " in result.out
    assert result.out.endswith("0 new findings, 0 known. Seed 3.\n")
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["seed"] == 3
    assert report["findings"] == []
    assert report["interrupted"] is False
    (target,) = report["targets"]
    assert target["uri"] == "reference"
    assert target["error"] == ""
    (surface,) = target["surfaces"]
    assert surface["surface"] == "pack"
    assert surface["mixes"] == 2000
    assert list(surface["outcomes"]) == list(OUTCOME_NAMES)
    assert sum(surface["outcomes"].values()) == 2000
    assert [rule["id"] for rule in surface["invariants"]] == [r.id for r in invariants_of("pack")]
    assert all(rule["checked"] and not rule["violated"] for rule in surface["invariants"])
    assert list((tmp_path / "reports/cases").iterdir()) == []


def test_a_seed_names_the_mixes(tmp_path: Path):
    words = ("run", "--target", "reference", "--examples", "300", "--seed", "11", "--json")
    one = kvfuzz(*words, "1.json", "--jobs", "1", cwd=tmp_path)
    two = kvfuzz(*words, "2.json", "--jobs", "2", cwd=tmp_path)
    assert one.code == two.code == 0
    surfaces = [
        json.loads((tmp_path / name).read_text())["targets"][0]["surfaces"][0]
        for name in ("1.json", "2.json")
    ]
    assert surfaces[0]["outcomes"] == surfaces[1]["outcomes"]
    assert surfaces[0]["shapes"] == surfaces[1]["shapes"]
    assert surfaces[0]["shapes"]["mixes"] == 10
    # Which mixes are judged by rules that call again depends on who judges them.
    single = [[r for r in s["invariants"] if r["id"] != "deterministic"][:4] for s in surfaces]
    assert single[0] == single[1]


def test_a_finding_in_full(tmp_path: Path):
    result = kvfuzz(
        "run", "--target", UNIFORM, "--examples", "512", "--seed", "1", "--json", "o.json",
        cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 1
    report = json.loads((tmp_path / "o.json").read_text())
    (finding,) = report["findings"]
    name = finding["id"]
    path = f"reports/cases/{name}.json"
    assert name == f"uniform-is-none-{finding['fingerprint'][:8]}"
    assert finding["invariant"] == "uniform-is-none"
    assert finding["status"] == "new"
    assert finding["ledger"] is None
    assert finding["target"] == UNIFORM
    assert finding["surface"] == "pack"
    assert finding["message"].startswith("uniform-is-none: ")
    kinds = [layer["kind"] for layer in finding["scenario"]["mix"]]
    assert sorted(kinds) == ["mla_attention", "sliding_window_mla"]
    # What is printed, from the finding on.
    shown = result.out[result.out.index("NEW ") :]
    assert shown == (
        f"NEW {name} on {UNIFORM}, surface pack\n"
        "  claim     If all layers have one page size, the packer returns None.\n"
        "  got       2 groups\n"
        "  expected  None, since every page is 4096 bytes\n"
        "  minimal mix, 2 layers:\n"
        "    layer     kind        block  heads  dim  dtype    window   page  group\n"
        "    layers.0  MLA            16      1   64  float32       -  4,096      1\n"
        "    layers.1  MLA window     16      1   64  float32     128  4,096      2\n"
        f"  case      {path}\n"
        f"  replay    kvfuzz replay {path} --target {UNIFORM}\n"
        "\n"
        "1 new finding, 0 known. Seed 1.\n"
    )
    # The case is on disk, and the printed command replays it.
    assert [p.name for p in (tmp_path / "reports/cases").iterdir()] == [f"{name}.json"]
    written = json.loads((tmp_path / path).read_text())
    assert written["scenario"] == finding["scenario"]
    assert kvfuzz("replay", path, "--target", UNIFORM, cwd=tmp_path).code == 1
    assert kvfuzz("replay", name, "--target", "reference", cwd=tmp_path).code == 0


@pytest.mark.slow
def test_a_planner_that_ends_its_process(tmp_path: Path):
    result = kvfuzz(
        "run", "--target", f"{SABOTAGE}:dies_by_signal", "--examples", "3", "--seed", "1",
        cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 1
    assert "  got       the death of the process SIGSEGV\n" in result.out
    assert "  minimal mix, 3 layers:\n" in result.out


def test_several_targets_and_one_that_fails(tmp_path: Path):
    result = kvfuzz(
        "run", "--target", "reference", "--target", f"{SABOTAGE}:cannot_be_made",
        "--examples", "300", "--json", "o.json", cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 3
    assert "300 mixes in" in result.out
    assert f"{SABOTAGE}:cannot_be_made: failed\n" in result.out
    assert "no planner today" in result.err.splitlines()[-1]
    targets = json.loads((tmp_path / "o.json").read_text())["targets"]
    assert [bool(target["error"]) for target in targets] == [False, True]


def test_an_output_folder_that_is_a_file(tmp_path: Path):
    (tmp_path / "taken").write_text("")
    result = kvfuzz("run", "--target", UNIFORM, "--out", "taken", cwd=tmp_path)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("kvfuzz: taken/cases/")
    assert "cannot be written: Not a directory; choose another folder" in result.err


def test_an_output_folder_that_cannot_be_made(tmp_path: Path):
    """/proc takes no folder, whoever asks; as a read-only one does."""
    result = kvfuzz("run", "--target", UNIFORM, "--out", "/proc/kvfuzz", cwd=tmp_path)
    assert result.code == 2
    assert result.out == ""
    assert "/proc/kvfuzz/cases/" in result.err
    assert "cannot be written: " in result.err


def test_a_full_output_folder(tmp_path: Path):
    """A limit on the size of files stands in for a full disk."""
    import resource
    import signal

    from tests.cli.helpers import start

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, 1 << 10))

    with start("run", "--target", UNIFORM, cwd=tmp_path, preexec_fn=limit) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == ""
    assert "cannot be written: File too large; choose another folder or make room." in err
    assert list((tmp_path / "reports/cases").iterdir()) == []


@pytest.mark.parametrize("path", ["folder", "file/o.json"])
def test_a_report_that_cannot_be_written(tmp_path: Path, path: str):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    result = kvfuzz("run", "--target", UNIFORM, "--json", path, cwd=tmp_path)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("kvfuzz: ")


def test_a_release_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without network: the index is a closed port of this machine."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("KVFUZZ_CACHE_DIR", str(tmp_path / "cache"))
    result = kvfuzz("run", "--target", "vllm==999.0.0", "--examples", "1", cwd=tmp_path)
    assert result.code == 3
    assert result.out == ""
    (sentence,) = [line for line in result.err.splitlines() if line.startswith("kvfuzz: ")]
    assert "The package index 127.0.0.1 cannot be used" in sentence
