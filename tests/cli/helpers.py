"""Calling the command line: in this process where that is enough, in one of its own elsewhere."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from kvfuzz.engine.state import STATE_FILE

SABOTAGE = "tests.sabotage.planners"
ROOT = Path(__file__).resolve().parents[2]


class Result(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str


def environment() -> dict[str, str]:
    """The environment of commands: colourless, 100 columns, this checkout importable."""
    keep = {name: value for name, value in os.environ.items() if name != "KVFUZZ_DEBUG"}
    return {**keep, "NO_COLOR": "1", "COLUMNS": "100", "PYTHONPATH": str(ROOT), "TERM": "dumb"}


def start(*words: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """`kvfuzz` with these words, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "kvfuzz.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(),
        **options,
    )


def stored_mixes(folder: Path) -> int:
    """Mixes that the state in a folder says are done; it can be read at any time."""
    path = folder / "reports" / STATE_FILE
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path, timeout=30)) as db:
        try:
            return int(db.execute("SELECT sum(mixes) FROM campaign").fetchone()[0] or 0)
        except sqlite3.OperationalError:  # it has no tables yet
            return 0


def stopped(number: int, above: int, folder: Path, *words: str) -> tuple[Result, int]:
    """A command that is sent a signal once more mixes than `above` are done; and how many then."""
    with start(*words, cwd=folder) as process:
        deadline = time.monotonic() + 60
        while stored_mixes(folder) <= above:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert "Traceback" not in out + err
    return Result(process.returncode, out, err), stored_mixes(folder)


def kvfuzz(*words: str, cwd: Path) -> Result:
    """What `kvfuzz` with these words does, to its end."""
    with start(*words, cwd=cwd) as process:
        out, err = process.communicate(timeout=120)
    result = Result(process.returncode, out, err)
    assert "Traceback" not in out + err, result
    return result


def layer(name: str = "layers.0", **fields: Any) -> dict[str, Any]:
    """A full MLA layer as it stands in a case file, with other fields."""
    spec = {"kind": "mla_attention", "block_size": 16, "num_kv_heads": 1, "head_size": 64}
    return {"name": name, **spec, "dtype": "float32", **fields}


def window(name: str = "layers.1", **fields: Any) -> dict[str, Any]:
    """A sliding-window MLA layer as it stands in a case file, with other fields."""
    return layer(name, **{"kind": "sliding_window_mla", "sliding_window": 128, **fields})


def case(*layers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A case with these layers and further fields."""
    return {"format": 1, "surface": "pack", **fields, "scenario": {"mix": list(layers)}}


def write_case(path: Path, *layers: dict[str, Any], **fields: Any) -> Path:
    """Write that case to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(case(*layers, **fields)))
    return path


#: Options of a run that writes a report in each form, o.json and so on.
EVERY_REPORT = (
    "--json", "o.json", "--html", "o.html", "--markdown", "o.md", "--junit", "o.xml",
)  # fmt: skip


def interrupted(*words: str, until: str, number: signal.Signals, cwd: Path) -> tuple[int, str, str]:
    """Exit code, output and errors of a command that is sent a signal.

    Args:
        words: The command's.
        until: What the line of its errors begins with after which it is sent.
        number: The signal; SIGINT reaches the workers too, as Ctrl-C does.
        cwd: Where it runs.
    """
    # A session of its own, so that a whole group can be reached.
    with start(*words, cwd=cwd, start_new_session=True) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith(until):
                break
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=30)
    return process.returncode, out, said + err
