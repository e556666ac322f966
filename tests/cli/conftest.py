"""The command line in this process, for what needs no process of its own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvfuzz import cli
from tests.cli.helpers import ROOT, Result


@pytest.fixture
def invoke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Result]]:
    """`kvfuzz` with the given words, in an empty folder, without colour, at 80 columns."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for workers: tests.sabotage is there
    monkeypatch.delenv("KVFUZZ_DEBUG", raising=False)
    handler = signal.getsignal(signal.SIGTERM)

    def call(*words: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["kvfuzz", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, out, err)

    yield call
    signal.signal(signal.SIGTERM, handler)
