"""The state file: what is saved is read back, a killed run leaves it whole, damage is told."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections import Counter
from datetime import UTC, datetime, tzinfo
from multiprocessing.synchronize import Event
from pathlib import Path

import msgspec
import pytest

from kvfuzz import __version__
from kvfuzz.engine.places import Coverage, Place
from kvfuzz.engine.records import Plan, Snapshot, Totals, Unshrunk
from kvfuzz.engine.session import Tally
from kvfuzz.engine.state import STATE_FILE, State
from kvfuzz.errors import UsageError
from kvfuzz.outcomes import Crash
from kvfuzz.reporting.history import past_runs
from tests.report_samples import a_report, lost

PLAN = Plan(
    kind="run",
    targets=("reference", "vllm==0.28.0"),
    surfaces=("pack",),
    seconds=60.0,
    mixes=None,
    seed=7,
    use_ledger=True,
)
PAIR = ("vllm==0.28.0", "pack")


def _snapshot(mixes: int) -> Snapshot:
    return Snapshot(
        version="0.28.0",
        seconds=1.5,
        tally=Tally(mixes=mixes, outcomes=Counter(plan=mixes), violated=Counter(partition=2)),
        coverage=Coverage(3, {5}, {7: 11}),
        skip={Place(1, 2)},
        unshrunk=[Unshrunk(place=Place(1, 2), fingerprint=None, crash=Crash(symptom="died"))],
    )


def _save(folder: Path, mixes: int, *, finished: bool = False) -> int:
    """A campaign that has done so many mixes; its number."""
    with State(folder) as state, state.begin(PLAN) as campaign:
        finding = msgspec.structs.replace(lost(), target=PAIR[0])
        totals = Totals(1.5, mixes, 1, 0)
        campaign.save(2.5, totals, {PAIR: _snapshot(mixes)}, {PAIR: [finding]}, finished=finished)
        return campaign.number


def test_what_is_saved_is_read_back(tmp_path: Path):
    number = _save(tmp_path, 100)
    with State(tmp_path) as state:
        past = state.latest("run")
        assert past is not None
        assert past == (number, PLAN, 2.5, False)
        with state.go_on(past) as campaign:
            assert campaign.seconds == 2.5
            (stored,) = campaign.stored.values()
    assert stored.snapshot == _snapshot(100)
    assert stored.snapshot.tally.violated["order-free"] == 0  # a Counter again
    assert stored.findings == [msgspec.structs.replace(lost(), target=PAIR[0])]


def test_a_finding_that_is_gone_is_gone_and_one_that_shrank_is_replaced(tmp_path: Path):
    finding = msgspec.structs.replace(lost(), target=PAIR[0])
    smaller = msgspec.structs.replace(finding, message="smaller")
    for findings in ([finding], [smaller], []):
        with State(tmp_path) as state:
            past = state.latest("run")
            with state.go_on(past) if past else state.begin(PLAN) as campaign:
                snapshots = {PAIR: _snapshot(1)}
                campaign.save(
                    1.0, Totals(1.5, 1, 1, 0), snapshots, {PAIR: findings}, finished=False
                )
        with State(tmp_path) as state:
            past = state.latest("run")
            assert past is not None
            with state.go_on(past) as campaign:
                assert campaign.stored[PAIR].findings == findings


def test_the_last_campaign_of_a_kind_and_plan(tmp_path: Path):
    other = msgspec.structs.replace(PLAN, kind="verify", layers=3)
    with State(tmp_path) as state:
        assert state.latest("run") is None
        for plan in (PLAN, other, msgspec.structs.replace(other, layers=4)):
            state.begin(plan).__exit__()
        assert (state.latest("run") or (0,))[0] == 1
        assert (state.latest("verify") or (0,))[0] == 3
        assert (state.latest("verify", other) or (0,))[0] == 2
        assert state.latest("verify", PLAN) is None
    with sqlite3.connect(tmp_path / STATE_FILE) as db:
        db.execute("UPDATE campaign SET kvfuzz = '0.0.9'")
    db.close()
    with State(tmp_path) as state:  # of another version of kvfuzz, whose stream may be another
        assert state.latest("run") is None


def test_history_is_of_the_runs_before_that_did_anything(tmp_path: Path):
    _save(tmp_path, 100, finished=True)
    _save(tmp_path, 0)
    number = _save(tmp_path, 300)
    with State(tmp_path) as state:
        history = state.history(number)
        assert [past.mixes for past in state.history(number + 1)] == [100, 300]
    (past,) = history
    assert (past.mixes, past.seconds, past.new, past.known) == (100, 1.5, 1, 0)
    assert past.interrupted is False
    assert past.label == "reference, vllm==0.28.0"
    assert past.started.endswith("+00:00")


def test_a_clock_that_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs stand in the order in which they were begun, whatever their dates say."""

    class Clock:
        dates = iter([datetime(2026, 3, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)])

        @classmethod
        def now(cls, _zone: tzinfo) -> datetime:
            return next(cls.dates)

    monkeypatch.setattr("kvfuzz.engine.state.datetime", Clock)
    _save(tmp_path, 100, finished=True)
    number = _save(tmp_path, 300)
    with State(tmp_path) as state:
        past = state.latest("run")
        assert past is not None
        assert past.number == number  # --resume goes on with the one that was begun last
        report = a_report()
        report.history = state.history(number + 1)
    assert [(run.started[:10], run.mixes) for run in report.history] == [
        ("2026-03-01", 100),
        ("2025-01-01", 300),
    ]
    shown = past_runs(report)
    assert shown is not None
    assert [row["when"] for row in shown["rows"]] == [
        "this run",
        "2025-01-01 00:00",
        "2026-03-01 00:00",
    ]


def _hold(folder: Path, held: Event, let_go: Event) -> None:
    with State(folder) as state:
        past = state.latest("run")
        assert past is not None
        with state.go_on(past):
            held.set()
            let_go.wait(30)


def test_a_campaign_is_run_by_one_process_at_a_time(tmp_path: Path):
    number = _save(tmp_path, 1)
    context = multiprocessing.get_context("spawn")
    held, let_go = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, held, let_go))
    process.start()
    assert held.wait(30)
    with State(tmp_path) as state:
        past = state.latest("run")
        assert past is not None
        with pytest.raises(UsageError, match=f"Another kvfuzz runs campaign {number} of "):
            state.go_on(past)
        with state.begin(PLAN) as other:  # another one may write to the same file
            other.save(1.0, Totals(1.5, 5, 0, 0), {PAIR: _snapshot(5)}, {}, finished=True)
    let_go.set()
    process.join(30)
    with State(tmp_path) as state, state.go_on(past):
        pass


def _write(folder: Path, times: int) -> None:
    with State(folder) as state, state.begin(PLAN) as campaign:
        for mixes in range(1, times + 1):
            snapshots = {PAIR: _snapshot(mixes)}
            campaign.save(1.0, Totals(1.5, mixes, 0, 0), snapshots, {}, finished=mixes == times)


def test_campaigns_in_parallel_on_one_file(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write, args=(tmp_path, 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    with State(tmp_path) as state:
        history = state.history(99)
    assert [(past.mixes, past.interrupted) for past in history] == [(20, False)] * 3


@pytest.mark.parametrize("data", [b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file(tmp_path: Path, data: bytes):
    (tmp_path / STATE_FILE).write_bytes(data)
    with pytest.raises(UsageError) as raised, State(tmp_path):
        pass
    text = str(raised.value)
    assert text.startswith(f"{tmp_path / STATE_FILE} is damaged: ")
    assert text.endswith("move it away to begin anew. The case files beside it do not need it.")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', "[" * 100_000])
def test_a_damaged_row(tmp_path: Path, text: str):
    _save(tmp_path, 1)
    with sqlite3.connect(tmp_path / STATE_FILE) as db:
        db.execute("UPDATE search SET snapshot = ?", (text,))
    db.close()
    with State(tmp_path) as state:
        past = state.latest("run")
        assert past is not None
        with pytest.raises(UsageError, match=r"state\.sqlite is damaged: "):
            state.go_on(past)


def test_a_file_that_is_cut_off(tmp_path: Path):
    _save(tmp_path, 1)
    path = tmp_path / STATE_FILE
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UsageError, match=r"state\.sqlite is damaged: "):
        _save(tmp_path, 2)


def test_a_file_of_a_later_kvfuzz(tmp_path: Path):
    _save(tmp_path, 1)
    with sqlite3.connect(tmp_path / STATE_FILE) as db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(UsageError, match="is of another version of kvfuzz: choose another folder"):
        State(tmp_path)


def test_a_folder_in_place_of_the_file(tmp_path: Path):
    (tmp_path / STATE_FILE).mkdir()
    with pytest.raises(UsageError, match="cannot be read and written: unable to open"):
        State(tmp_path)


def test_the_version_is_kept(tmp_path: Path):
    _save(tmp_path, 1)
    with sqlite3.connect(tmp_path / STATE_FILE) as db:
        assert db.execute("SELECT kvfuzz, kind FROM campaign").fetchall() == [(__version__, "run")]
    db.close()
