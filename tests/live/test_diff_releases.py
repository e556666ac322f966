"""What `kvfuzz diff` says of releases whose differences are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import kvfuzz


def _differences(folder: Path, one: str, other: str, surface: str) -> list[dict[str, Any]]:
    result = kvfuzz(
        "diff", f"vllm=={one}", f"vllm=={other}", "--surface", surface, "--examples", "2000",
        "--seed", "1", "--json", "o.json", cwd=folder,
    )  # fmt: skip
    assert result.code == 1, result.err
    report = json.loads((folder / "o.json").read_text())
    (compared,) = report["surfaces"]
    assert compared["scenarios"] + max(compared["left_out"]) >= 2000
    assert not compared["stopped"]
    return list(report["differences"])


@pytest.mark.live
def test_the_guard_of_uniform_mixes(tmp_path: Path):
    differences = _differences(tmp_path, "0.25.1", "0.26.0", "pack")
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
    differences = _differences(tmp_path, "0.28.0", "0.29.0", "groups")
    assert {"refusal", "groups"} <= {found["aspect"] for found in differences}
    shrunk = [found for found in differences if found["shrunk"]]
    assert len(shrunk) >= 3
    assert all(len(found["scenario"]["mix"]) <= 6 for found in shrunk)


@pytest.mark.live
def test_the_marks_of_draft_models(tmp_path: Path):
    differences = _differences(tmp_path, "0.32.0", "0.33.0", "groups")
    (marks,) = (found for found in differences if found["aspect"] == "drafts")
    assert marks["how"] == "more groups marked in vllm==0.32.0"
    assert len(marks["scenario"]["mix"]) <= 3
