"""Ctrl-C and SIGTERM in mid-run: what was found is on disk and summarised."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.helpers import SABOTAGE, interrupted, start

UNIFORM = f"{SABOTAGE}:packs_uniform_mixes"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_findings_so_far_are_kept(tmp_path: Path, number: signal.Signals, code: int):
    words = ("run", "--target", UNIFORM, "--budget", "1h", "--json", "o.json")
    done, out, err = interrupted(*words, until="shrunk: ", number=number, cwd=tmp_path)
    assert done == code
    assert "Traceback" not in out + err
    assert "NEW uniform-is-none-" in out
    assert "minimal mix, 2 layers" in out
    assert "1 new finding, 0 known." in out.splitlines()[-1]
    (path,) = (tmp_path / "reports/cases").iterdir()
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["interrupted"] is True
    assert [finding["id"] for finding in report["findings"]] == [path.stem]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_before_the_first_mix(tmp_path: Path, number: signal.Signals, code: int):
    with start("run", "--target", "reference", "--budget", "1h", cwd=tmp_path) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("reference pack: loading"):
            pass
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in out + err
    assert "0 new findings, 0 known." in out
