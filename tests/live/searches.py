"""A search of a real release, for the live tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.helpers import kvfuzz


def searched(version: str, surface: str, folder: Path, *, examples: int, seed: int) -> Any:
    """The report of a search that shows nothing that the ledger lacks."""
    result = kvfuzz(
        "run", "--surface", surface, "--target", f"vllm=={version}", "--examples", f"{examples}",
        "--seed", f"{seed}", "--jobs", "1", "--json", "o.json", cwd=folder,
    )  # fmt: skip
    assert result.code == 0, result.out
    return json.loads((folder / "o.json").read_text())
