"""`kvfuzz replay` and the commands that show cases, with ledgers of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kvfuzz.commands.replay
import kvfuzz.engine.replay
import kvfuzz.ledger
from kvfuzz.engine.replay import Verdict, known_item
from kvfuzz.engine.session import Session
from kvfuzz.findings import finding_id, fingerprint
from kvfuzz.ledger import KnownFinding, Observation
from kvfuzz.outcomes import Plan
from kvfuzz.specs import MLAAttentionSpec, Scenario, SlidingWindowMLASpec
from kvfuzz.targets.base import NeutralPlanner, NeutralTarget
from tests.cli.helpers import SABOTAGE, Result, case, layer, window, write_case
from tests.sabotage import planners

Invoke = Callable[..., Result]

OLD, NEW, IMPURE = (f"tests.cli.planners:{name}" for name in ("old", "new", "impure"))
MIXED = f"{SABOTAGE}:mixes_page_sizes"


def _digest(planner: NeutralPlanner, invariant: str, scenario: Scenario) -> str:
    session = Session(NeutralTarget("t", planner, "0"), "pack")
    (found,) = [v for v in session.judge(scenario) if v.invariant == invariant]
    return fingerprint("pack", found)


FULL = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype="float32")
WINDOW = SlidingWindowMLASpec(
    block_size=16, num_kv_heads=1, head_size=64, dtype="float32", sliding_window=128
)
DIGEST = _digest(
    planners.packs_uniform_mixes(),
    "uniform-is-none",
    Scenario(mix=(("layers.0", FULL), ("layers.1", WINDOW))),
)
NAME = finding_id("uniform-is-none", DIGEST)


def entry(**observed: str) -> dict[str, Any]:
    """A ledger entry of uniform mixes being packed."""
    return case(
        layer(),
        window(),
        id=NAME,
        invariant="uniform-is-none",
        fingerprint=DIGEST,
        title="Uniform mixes are packed",
        reason="upstream-fixed",
        explanation="The guard was missing.",
        observed=observed,
    )


@pytest.fixture
def write_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Any]], Path]:
    """A ledger that holds the given entry only; its file."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    for module in (kvfuzz.ledger, kvfuzz.commands.replay):
        monkeypatch.setattr(module, "ledger_folder", lambda: folder)
    # These planners stand in for releases, of which alone the ledger speaks.
    for module in (kvfuzz.ledger, kvfuzz.engine.replay):
        monkeypatch.setattr(module, "speaks_of", lambda target: target in (OLD, NEW, IMPURE))

    def write(data: dict[str, Any]) -> Path:
        kvfuzz.ledger.ledger.cache_clear()
        path = folder / f"{data['id']}.json"
        path.write_text(json.dumps(data))
        return path

    kvfuzz.ledger.ledger.cache_clear()
    return write


@pytest.fixture(autouse=True)
def _forget_ledgers() -> Iterator[None]:
    yield
    kvfuzz.ledger.ledger.cache_clear()


def test_an_unknown_case_that_holds(invoke: Invoke, tmp_path: Path):
    write_case(tmp_path / "a.json", layer(), window())
    result = invoke("replay", "a.json", "--target", "reference")
    assert result.code == 0
    assert result.out.splitlines()[1].split()[-3:] == ["none", "holds", "-"]


def test_an_unknown_case_that_violates(invoke: Invoke, tmp_path: Path):
    write_case(tmp_path / "a.json", layer(), window())
    result = invoke("replay", "a.json", "--target", OLD)
    assert result.code == 1
    assert result.out.splitlines()[1].split()[-3:] == ["plan", "violates", "-"]


def test_another_rule_than_the_cases_own_is_a_note(invoke: Invoke, tmp_path: Path):
    write_case(
        tmp_path / "a.json", layer(), layer("b", head_size=128), window(), invariant="partition"
    )
    result = invoke("replay", "a.json", "--target", MIXED, "--target", "reference")
    assert result.code == 0
    rows = result.out.splitlines()
    assert rows[1].split()[-3:] == ["plan", "holds", "-"]
    (note,) = [row for row in rows if row.startswith("note: ")]
    assert "violates single-page-size-" in note


def test_a_known_case_does_what_the_ledger_says(invoke: Invoke, write_ledger: Callable[..., Path]):
    write_ledger(entry(**{"1.0": "violates"}))
    for words in ((), (NAME,), ("uniform",)):
        result = invoke("replay", *words, "--target", OLD)
        assert result.code == 0
        assert result.out.splitlines()[1].split()[-3:] == ["plan", "violates", "violates"]
    assert invoke("replay", "--target", OLD, "--no-ledger").code == 1


@pytest.mark.parametrize(
    ("target", "version", "said", "seen"),
    [(OLD, "1.0", "holds", "violates"), (NEW, "2.0", "violates", "holds")],
)
def test_drift_both_ways(
    invoke: Invoke,
    write_ledger: Callable[..., Path],
    target: str,
    version: str,
    said: str,
    seen: str,
):
    write_ledger(entry(**{version: said}))
    result = invoke("replay", "--target", target)
    assert result.code == 4
    assert result.out.splitlines()[1].split()[-3:] == [seen, said, "(drift)"]


def test_a_version_that_is_not_recorded(invoke: Invoke, write_ledger: Callable[..., Path]):
    write_ledger(entry(**{"99.0": "holds"}))
    result = invoke("replay", "--target", OLD)
    assert result.code == 0
    assert result.out.splitlines()[1].split()[-3:] == ["violates", "not", "recorded"]


def test_violating_in_another_way_is_drift(invoke: Invoke, write_ledger: Callable[..., Path]):
    data = entry(**{"3.0": "holds"})
    data["scenario"]["mix"].append(layer("other", head_size=128))
    write_ledger(data)
    result = invoke("replay", "--target", IMPURE)
    assert result.code == 4
    (note,) = [row for row in result.out.splitlines() if row.startswith("note: ")]
    assert "violates pure-" in note
    assert note.endswith(" as well, which the ledger does not expect")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--target", "reference"), "--update records releases only"),
        (("--target", "vllm@x"), "--update records releases only"),
        (("--target", "vllm==0.28.0", "--no-ledger"), "--update writes the ledger"),
    ],
)
def test_what_update_refuses(invoke: Invoke, words: tuple[str, ...], sentence: str):
    result = invoke("replay", "--update", *words)
    assert result.code == 2
    assert sentence in result.err


def test_update_writes_what_was_seen(
    invoke: Invoke, write_ledger: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kvfuzz.commands.replay, "_check_update", lambda *_, **__: None)
    version = "1.0"
    path = write_ledger(entry(**{version: "holds", "99.0": "holds"}))
    result = invoke("replay", "--update", "--target", OLD)
    assert result.code == 0
    assert f"{NAME}: {version} violates, was holds\n" in result.out
    assert result.out.endswith("1 observation changed in the ledger.\n")
    assert json.loads(path.read_text())["observed"] == {version: "violates", "99.0": "holds"}
    kvfuzz.ledger.ledger.cache_clear()
    again = invoke("replay", "--update", "--target", OLD)
    assert again.out.endswith("0 observations changed in the ledger.\n")


def _installed(known: KnownFinding, observation: Observation, config: str = "real") -> Verdict:
    """What an installed release did with an entry's witness."""
    return Verdict(
        item=known_item(known),
        target="vllm",
        version="0.28.0",
        config=config,
        known=known,
        outcome=Plan(None),
        observation=observation,
        findings=(),
    )


def test_update_keeps_what_an_installed_release_did_apart(
    invoke: Invoke, write_ledger: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    path = write_ledger(entry(**{"0.28.0": "violates"}))
    (known,) = kvfuzz.ledger.ledger()
    verdicts = [_installed(known, "holds", config=""), _installed(known, "not-expressible")]
    assert not any(verdict.drifted for verdict in verdicts[1:])
    monkeypatch.setattr(kvfuzz.commands.replay, "prepare_all", lambda *_: (["vllm"], []))
    monkeypatch.setattr(kvfuzz.commands.replay, "replay", lambda *_: verdicts)
    result = invoke("replay", "--update", "--target", "vllm")
    assert f"{NAME}: 0.28.0, real config not-expressible, was not recorded\n" in result.out
    assert result.out.endswith("1 observation changed in the ledger.\n")
    data = json.loads(path.read_text())
    assert data["observed"] == {"0.28.0": "violates"}
    assert data["real_config"] == {"0.28.0": "not-expressible"}
    kvfuzz.ledger.ledger.cache_clear()
    rows = invoke("explain", NAME).out.splitlines()
    assert "  release  observed  real config" in rows
    assert "  0.28.0   violates  not-expressible" in rows
    # From now on another answer is drift.
    (known,) = kvfuzz.ledger.ledger()
    assert _installed(known, "violates").drifted


def test_update_wants_an_installed_release(
    invoke: Invoke, write_ledger: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    write_ledger(entry())
    (known,) = kvfuzz.ledger.ledger()
    made = msgspec.structs.replace(_installed(known, "holds"), version="0.28.1.dev3+gabc")
    monkeypatch.setattr(kvfuzz.commands.replay, "prepare_all", lambda *_: (["vllm"], []))
    monkeypatch.setattr(kvfuzz.commands.replay, "replay", lambda *_: [made])
    result = invoke("replay", "--update", "--target", "vllm")
    assert result.code == 2
    assert "the installed vLLM is of the version 0.28.1.dev3+gabc" in result.err


def test_run_says_known_or_new(invoke: Invoke, write_ledger: Callable[..., Path], tmp_path: Path):
    words = ("run", "--target", OLD, "--examples", "256", "--seed", "1", "--json", "o.json")
    write_ledger(entry(**{"1.0": "violates"}))
    result = invoke(*words)
    assert result.code == 0
    assert "Known findings\n" in result.out
    assert f"  {NAME} on {OLD}: Uniform mixes are packed\n" in result.out
    assert result.out.endswith("0 new findings, 1 known. Seed 1.\n")
    (finding,) = json.loads((tmp_path / "o.json").read_text())["findings"]
    assert (finding["status"], finding["ledger"]) == ("known", NAME)
    assert list((tmp_path / "reports/cases").iterdir()) == []
    result = invoke(*words, "--no-ledger")
    assert result.code == 1
    assert f"NEW {NAME} on " in result.out
    # It is judged by another's record.
    write_ledger(entry(**{"0.9": "violates"}))
    said = f"What is known of {OLD} is what vllm==0.9 does, which may hide what is new. "
    assert f"{said}`kvfuzz diff vllm==0.9 {OLD}` shows it." in " ".join(invoke(*words).out.split())
    # A release that was seen to hold has it back: that is news.
    write_ledger(entry(**{"1.0": "holds"}))
    assert invoke(*words).code == 1


def test_list_and_explain_an_entry(invoke: Invoke, write_ledger: Callable[..., Path]):
    write_ledger(entry(**{"0.25.1": "violates", "0.26.0": "holds"}))
    assert invoke("list", "ledger").out == (
        f"{NAME}\n  Uniform mixes are packed\n  upstream-fixed: 0.25.1; holds from 0.26.0\n"
    )
    assert invoke("explain", NAME) == invoke("explain", "uniform-is-none-")
    assert invoke("explain", NAME).out == (
        f"{NAME}\n"
        "title      Uniform mixes are packed\n"
        "why known  upstream-fixed: a bug, fixed in a later release\n"
        "because    The guard was missing.\n"
        "violates   0.25.1; holds from 0.26.0\n"
        "\n"
        "  release  observed\n"
        "  0.25.1   violates\n"
        "  0.26.0   holds\n"
        "\n"
        "witness:\n"
        "  layer     kind        block  heads  dim  dtype    window   page\n"
        "  layers.0  MLA            16      1   64  float32       -  4,096\n"
        "  layers.1  MLA window     16      1   64  float32     128  4,096\n"
    )


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_show(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int):
    monkeypatch.setenv("COLUMNS", str(columns))
    write_case(
        tmp_path / "a.json",
        layer(),
        window("a.very.long.layer.name.that.no.terminal.has.room.for", head_size=32),
        layer("layers.2", head_size=16),
    )
    result = invoke("show", "a.json")
    assert result.code == 0
    assert max(len(line) for line in result.out.splitlines()) <= columns
    groups = [line for line in result.out.splitlines() if line.startswith("group ")]
    assert groups == [
        "group 1: MLA, 1 layer",
        "group 2: MLA window, 1 layer",
        "group 3: MLA, 1 layer",
    ]
    bars = [line for line in result.out.splitlines() if line.startswith("  ") and "1" in line]
    full, half, quarter = (line.count("M") + line.count("W") for line in bars)
    assert half == round(full / 2)
    assert quarter == round(full / 4)
    assert full > columns // 4
