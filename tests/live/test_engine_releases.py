"""Every release: its whole planner is asked, and shows nothing that the ledger lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.helpers import kvfuzz
from tests.live.releases import RELEASES

_MIXES = 700


@pytest.mark.live
@pytest.mark.parametrize("surface", ["groups", "config"])
@pytest.mark.parametrize("version", RELEASES)
def test_the_whole_planner(version: str, surface: str, tmp_path: Path):
    result = kvfuzz(
        "run", "--surface", surface, "--target", f"vllm=={version}", "--seed", "1", "--jobs", "1",
        "--examples", f"{_MIXES}", "--json", "o.json", cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 0, result.out
    report = json.loads((tmp_path / "o.json").read_text())
    (target,) = report["targets"]
    (asked,) = target["surfaces"]
    outcomes = asked["outcomes"]
    assert sum(outcomes.values()) == _MIXES
    assert outcomes["plan"] > 0.25 * _MIXES
    assert outcomes["refusal"] < 0.35 * _MIXES
    assert outcomes["not-expressible"] < 0.1 * _MIXES
    # Each rule had something to judge, but for those that judge what is rare.
    rare = {"accepts-what-fits", "split-agrees", "necessary-refusal"}
    unjudged = {rule["id"] for rule in asked["invariants"] if not rule["checked"]}
    assert unjudged <= rare
