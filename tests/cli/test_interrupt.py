"""Ctrl-C and SIGTERM in mid-run: what was found is on disk and summarised."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.cli.helpers import SABOTAGE, start

UNIFORM = f"{SABOTAGE}:packs_uniform_mixes"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_findings_so_far_are_kept(tmp_path: Path, number: int, code: int):
    words = ("run", "--target", UNIFORM, "--budget", "1h", "--json", "o.json")
    # A session of its own, so that the signal reaches the workers too, as Ctrl-C does.
    with start(*words, cwd=tmp_path, start_new_session=True) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("shrunk: "):
                break
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in out + said + err
    assert "NEW uniform-is-none-" in out
    assert "minimal mix, 2 layers" in out
    assert "1 new finding, 0 known." in out.splitlines()[-1]
    (path,) = (tmp_path / "reports/cases").iterdir()
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["interrupted"] is True
    assert [finding["id"] for finding in report["findings"]] == [path.stem]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_before_the_first_mix(tmp_path: Path, number: int, code: int):
    with start("run", "--target", "reference", "--budget", "1h", cwd=tmp_path) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("reference pack: loading"):
            pass
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in out + err
    assert "0 new findings, 0 known." in out
