"""What `kvfuzz diff` says of releases whose differences are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import kvfuzz


def _differences(folder: Path, one: str, other: str, *words: str) -> list[dict[str, Any]]:
    result = kvfuzz(
        "diff", f"vllm=={one}", f"vllm=={other}", *words, "--seed", "1", "--json", "o.json",
        cwd=folder,
    )  # fmt: skip
    assert result.code == 1, result.err
    report = json.loads((folder / "o.json").read_text())
    (compared,) = report["surfaces"]
    assert not compared["stopped"]
    # Specs that the classes themselves do not take.
    assert max(compared["left_out"]) < compared["scenarios"] / 10
    return list(report["differences"])


@pytest.mark.live
def test_the_guard_of_uniform_mixes(tmp_path: Path):
    differences = _differences(
        tmp_path, "0.25.1", "0.26.0", "--surface", "pack", "--examples", "1000"
    )
    (guard,) = (found for found in differences if found["aspect"] == "groups")
    assert guard["how"] == "packed by vllm==0.25.1 only"
    assert guard["shrunk"]
    assert [layer["kind"] for layer in guard["scenario"]["mix"]] == [
        "mla_attention",
        "sliding_window_mla",
    ]
    assert len({*guard["pages"][0], *guard["pages"][1]}) == 1
    # The others are assertions that mixes of one page size failed.
    rest = [found["how"] for found in differences if found is not guard]
    assert rest
    assert all(how.startswith("crashes in vllm==0.25.1: AssertionError in ") for how in rest)


@pytest.mark.live
def test_the_groups_of_an_engine(tmp_path: Path):
    differences = _differences(
        tmp_path, "0.28.0", "0.29.0", "--surface", "groups", "--examples", "3000"
    )
    assert {"refusal", "groups"} <= {found["aspect"] for found in differences}
    shrunk = [found for found in differences if found["shrunk"]]
    # One that was met once has nothing to begin from but that mix.
    again = [found for found in shrunk if found["scenarios"] > 1]
    assert all(len(found["scenario"]["mix"]) <= 6 for found in again)
    common = sorted(differences, key=lambda found: -found["scenarios"])[:3]
    assert all(found["shrunk"] for found in common)
    assert max(len(found["scenario"]["mix"]) for found in common) <= 4


@pytest.mark.live
def test_the_marks_of_draft_models(tmp_path: Path):
    differences = _differences(
        tmp_path, "0.32.0", "0.33.0", "--surface", "groups", "--budget", "60s"
    )
    marks = next(found for found in differences if found["aspect"] == "drafts")
    assert marks["how"] == "more groups marked in vllm==0.32.0"
    assert marks["shrunk"]
    assert len(marks["scenario"]["mix"]) <= 3
