"""Every release: each small pattern can be put to it, and shows nothing that the ledger lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.helpers import kvfuzz
from tests.live.releases import RELEASES


@pytest.mark.live
@pytest.mark.parametrize("version", RELEASES)
def test_patterns_of_three_layers(version: str, tmp_path: Path):
    result = kvfuzz(
        "verify", "--layers", "3", "--target", f"vllm=={version}", "--json", "o.json", cwd=tmp_path
    )
    assert result.code == 0
    (target,) = json.loads((tmp_path / "o.json").read_text())["targets"]
    (surface,) = target["surfaces"]
    assert surface["mixes"] == 794
    assert surface["outcomes"]["not-expressible"] == 0
    assert surface["verified"]["finished"] is True
