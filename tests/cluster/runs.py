"""`kvfuzz run` in a process of its own, and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.helpers import Result, environment
from tests.cluster.servers import wait_until

#: The file that the planners of `tests.cluster.planners` wait for.
GO = "go"

#: Dask tasks of a second or so, and little patience, where a test would wait for it.
_IMPATIENT = """
from kvfuzz.engine import cluster
cluster.DaskCrew.task_seconds = 2.0
cluster._CONNECT_SECONDS = 4
cluster._LOOK_SECONDS = 0.5
cluster._GONE_SECONDS = 4.0
"""


class Run:
    """`kvfuzz run` with these words, running in a folder that is made for it.

    Args:
        words: What follows `run`.
        cwd: The folder.
        impatient: Whether it has little patience with a cluster.
    """

    def __init__(self, *words: str, cwd: Path, impatient: bool = False) -> None:
        cwd.mkdir(exist_ok=True)
        self.folder = cwd
        code = f"{_IMPATIENT if impatient else ''}\nfrom kvfuzz.cli import main\nmain()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "run", *words, "--json", "o.json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=environment(),
        )

    def wait_for(self, true: Callable[[], object], what: str) -> None:
        """Wait until something has come of it."""
        wait_until(lambda: true() or self.process.poll() is not None, what)
        if self.process.poll() is not None:
            raise AssertionError((what, self.end()))

    def end(self) -> Result:
        """Its result, once it has ended by itself."""
        try:
            out, err = self.process.communicate(timeout=90)
        finally:
            self.process.kill()
        result = Result(self.process.returncode, out, err)
        assert "Traceback" not in out + err, result
        assert "distributed" not in err, result
        return result


def told(result: Result) -> list[str]:
    """The sentences that a run ended with."""
    return [line for line in result.err.splitlines() if line.startswith("kvfuzz: ")]


def report_of(folder: Path) -> dict[str, Any]:
    """What a run found and counted, without times and without what depends on where it ran."""
    report = json.loads((folder / "o.json").read_text())
    (target,) = report["targets"]
    surfaces = [
        {key: value for key, value in surface.items() if "second" not in key}
        for surface in target["surfaces"]
    ]
    kept = ("id", "fingerprint", "status", "scenario", "got", "shrunk")
    findings = [{key: finding[key] for key in kept} for finding in report["findings"]]
    return {"surfaces": surfaces, "findings": findings}
