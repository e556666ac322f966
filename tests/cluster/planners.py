"""Planners that wait for the file `go` in their working folder, so that a test can act before."""

from __future__ import annotations

import os
import time
from pathlib import Path

from kvfuzz.targets.base import NeutralPlanner
from tests.sabotage.planners import Groups, Mix, packs_uniform_mixes


def slow_until_told() -> NeutralPlanner:
    """Packs mixes of one page size; says that it is there, and is slow until it is told."""
    planner = packs_uniform_mixes()
    go = Path("go")
    Path(f"begun-{os.getpid()}").touch()

    def slowly(specs: Mix) -> Groups:
        if not go.exists():
            time.sleep(0.005)
        return planner(specs)

    return slowly


def made_when_told() -> NeutralPlanner:
    """Packs mixes of one page size; is not to be had before it is told."""
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    return packs_uniform_mixes()
