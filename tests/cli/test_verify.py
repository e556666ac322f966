"""`kvfuzz verify`: what it covers, finds and says, and that it goes on where it was stopped."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvfuzz.engine import patterns
from kvfuzz.engine.enumerator import Enumerator
from kvfuzz.engine.messages import Message, Progress, Shrunk, VerifyJob
from kvfuzz.engine.places import Coverage, Place
from kvfuzz.engine.session import Session, Tally
from kvfuzz.findings import Finding
from kvfuzz.invariants import invariants_of
from kvfuzz.reference import group_and_unify_kv_cache_specs
from kvfuzz.targets.base import NeutralPlanner, NeutralTarget
from kvfuzz.targets.load import Prepared
from tests.cli.helpers import SABOTAGE, Result, kvfuzz, stopped, stored_mixes
from tests.sabotage import planners

Invoke = Callable[..., Result]

SLOW = "tests.cli.planners:slows_down"

#: Sabotaged planner -> the fewest layers on which it can be caught.
FEWEST = {
    "packs_uniform_mixes": 1,
    "loses_the_widest_window": 3,
    "repeats_a_full_layer": 2,
    "mixes_page_sizes": 2,
    "asserts_a_full_layer": 2,
    "reorders_its_input": 2,
    "writes_into_specs": 2,
    "answers_otherwise_next_time": 2,
    "groups_neighbours_only": 3,
}


class _NoHeartbeat:
    def beat(self, place: Place) -> None:
        """Nobody listens."""


def _enumerate(planner: NeutralPlanner, folder: Path, **job: Any) -> tuple[Tally, list[Finding]]:
    """What a worker counts and finds, in this process."""
    said: list[Message] = []
    session = Session(NeutralTarget("x", planner, "1"), "pack")
    enumerator = Enumerator(session, _NoHeartbeat(), said.append)  # type: ignore[arg-type]
    common: dict[str, Any] = {
        "target": Prepared("x"), "surface": "pack", "seed": 0, "start": Place(0, 0), "stride": 1,
        "deadline": None, "mixes": None, "witnesses": {}, "done": [], "claims": str(folder),
        "layers": 3, "version": "1",
    }  # fmt: skip
    enumerator.search(VerifyJob(**{**common, **job}))
    tally = Tally()
    for message in said:
        if isinstance(message, Progress):
            tally.add(message.tally)
    findings = [m.finding for m in said if isinstance(m, Shrunk) and m.finding is not None]
    return tally, findings


@pytest.mark.parametrize("factory", planners.SABOTAGED)
def test_a_sabotaged_planner_is_caught_with_the_fewest_layers(factory: str, tmp_path: Path):
    tally, findings = _enumerate(getattr(planners, factory)(), tmp_path)
    assert tally.mixes == patterns.mixes(3) == 794
    caught = {finding.invariant for finding in findings}
    if factory == "writes_into_specs":  # what it writes makes pages of a group differ
        caught.discard("single-page-size")
    assert caught == {planners.SABOTAGED[factory]}
    assert min(len(finding.scenario) for finding in findings) == FEWEST[factory]
    assert all(finding.shrunk for finding in findings)


def test_shards_and_resumption_cover_each_mix_once(tmp_path: Path):
    reference = group_and_unify_kv_cache_specs
    whole, _ = _enumerate(reference, tmp_path)
    coverage = Coverage()
    coverage.advance(Place(0, 0), Place(2, 100), 2)  # as the first of two workers leaves it
    dead = Place(1, 7)
    parts = [
        _enumerate(reference, tmp_path, stride=2, coverage=coverage, skip=frozenset({dead}))[0],
        _enumerate(
            reference, tmp_path, stride=2, start=Place(1, 0), coverage=coverage,
            skip=frozenset({dead}),
        )[0],
    ]  # fmt: skip
    # Chunk 0, 101 mixes of chunk 2 and the dead one are left out.
    assert sum(part.mixes for part in parts) == whole.mixes - 256 - 101 - 1
    # Coverage of another version counts for nothing.
    other, _ = _enumerate(reference, tmp_path, version="0", coverage=coverage)
    assert other == whole


def test_coverage():
    coverage = Coverage()
    coverage.advance(Place(0, 0), Place(4, 9), 2)
    assert (coverage.below, coverage.beyond, coverage.begun) == (1, {2}, {4: 10})
    assert [coverage.of(chunk) for chunk in range(6)] == [256, 0, 256, 0, 10, 0]
    coverage.advance(Place(1, 0), Place(3, 0), 2)
    assert (coverage.below, coverage.beyond, coverage.begun) == (3, set(), {4: 10, 3: 1})
    coverage.finish(3)
    coverage.finish(4)
    coverage.finish(0)
    assert (coverage.below, coverage.beyond, coverage.begun) == (5, set(), {})


def _surface(folder: Path) -> dict[str, Any]:
    report = json.loads((folder / "o.json").read_text())
    (target,) = report["targets"]
    (surface,) = target["surfaces"]
    return dict(surface)


def test_the_reference_holds(tmp_path: Path):
    result = kvfuzz(
        "verify", "--layers", "3", "--target", "reference", "--json", "o.json", cwd=tmp_path
    )
    assert result.code == 0
    assert "397 patterns, 3 layers, all hold\n" in result.out
    assert result.out.endswith("0 new findings, 0 known.\n")
    surface = _surface(tmp_path)
    assert surface["mixes"] == 794
    assert surface["verified"] == {
        "layers": 3, "patterns": 397, "mixes": 794, "resumed": 0, "finished": True
    }  # fmt: skip
    assert surface["outcomes"]["not-expressible"] == 0
    # Up to three layers every rule judges every mix that it applies to.
    checked = {rule["id"]: rule["checked"] for rule in surface["invariants"]}
    assert list(checked) == [rule.id for rule in invariants_of("pack")]
    assert checked["deterministic"] == checked["pure"] == checked["plan-or-refusal"] == 794
    assert checked["order-free"] == 794 - 4  # a single layer has one order
    assert stored_mixes(tmp_path) == 794


def test_a_finding_is_one_like_any_other(tmp_path: Path):
    target = f"{SABOTAGE}:mixes_page_sizes"
    result = kvfuzz("verify", "--layers", "2", "--target", target, cwd=tmp_path)
    assert result.code == 1
    assert "22 patterns, 2 layers, violated: single-page-size\n" in result.out
    (path,) = (tmp_path / "reports/cases").iterdir()
    assert f"NEW {path.stem} on {target}, surface pack\n" in result.out
    assert "  minimal mix, 2 layers:\n" in result.out
    replay = f"kvfuzz replay reports/cases/{path.name} --target {target}\n"
    assert result.out.endswith(f"  replay    {replay}\n1 new finding, 0 known.\n")
    case = json.loads(path.read_text())
    assert [layer["kind"] for layer in case["scenario"]["mix"]] == ["sliding_window_mla"] * 2
    assert case["scenario"]["mix"][0]["dtype"] == "bfloat16"  # the plain one comes first


def _counted(surface: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    outcomes = {name: count for name, count in surface["outcomes"].items() if count}
    violated = {rule["id"]: rule["violated"] for rule in surface["invariants"] if rule["violated"]}
    return outcomes, violated


def _stopped(number: int, above: int, folder: Path, *words: str) -> tuple[Result, int]:
    """As `stopped`, in the middle of the patterns of four layers."""
    result, done = stopped(number, above, folder, *words)
    assert above < done < patterns.mixes(4)
    return result, done


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_counts_nothing_twice(tmp_path: Path):
    words = ("verify", "--layers", "4", "--target", SLOW, "--json", "o.json", "--jobs")
    result, killed = _stopped(signal.SIGKILL, 0, tmp_path, *words, "1")
    assert result.code == -signal.SIGKILL

    # With another number of workers, too.
    result, interrupted = _stopped(signal.SIGINT, killed, tmp_path, *words, "2")
    assert result.code == 130
    assert f"{killed:,} of 22,214 mixes were done before\n" in result.err
    covered = f"{interrupted:,} of 22,214 mixes of 11,107 patterns, 4 layers"
    assert f"{covered}, violated: uniform-is-none\n" in result.out
    surface = _surface(tmp_path)
    assert surface["mixes"] == interrupted
    assert surface["verified"]["resumed"] == killed
    assert surface["verified"]["finished"] is False

    result, terminated = _stopped(signal.SIGTERM, interrupted, tmp_path, *words, "1")
    assert result.code == 143
    (case,) = (tmp_path / "reports/cases").iterdir()

    (tmp_path / "go").touch()
    result = kvfuzz(*words, "2", cwd=tmp_path)
    assert result.code == 1
    assert "11,107 patterns, 4 layers, violated: uniform-is-none\n" in result.out
    # Found in the first run, and told in the last.
    assert f"NEW {case.stem} on {SLOW}" in result.out
    surface = _surface(tmp_path)
    assert surface["verified"]["resumed"] == terminated
    assert surface["verified"]["finished"] is True
    whole, _ = _enumerate(planners.packs_uniform_mixes(), tmp_path, layers=4)
    assert surface["mixes"] == whole.mixes == 22_214
    assert _counted(surface) == (dict(whole.outcomes), dict(whole.violated))


def test_a_mix_that_ends_its_worker_is_a_finding_and_the_rest_is_covered(tmp_path: Path):
    target = "tests.cli.planners:dies_on_one"
    result = kvfuzz(
        "verify", "--layers", "2", "--target", target, "--jobs", "1", "--json", "o.json",
        cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 1
    assert "22 patterns, 2 layers, violated: plan-or-refusal\n" in result.out
    assert "  got       the death of the process SIGSEGV\n  " in result.out
    assert "  minimal mix, 2 layers:\n" in result.out
    surface = _surface(tmp_path)
    assert surface["mixes"] == 44
    assert surface["outcomes"]["crash"] == 1
    assert surface["verified"]["finished"] is True


@pytest.mark.parametrize("words", [(), ("--layers", "0"), ("--layers", "9"), ("--layers", "x")])
def test_mistaken_words(invoke: Invoke, words: tuple[str, ...]):
    result = invoke("verify", *words)
    assert result.code == 2
    assert result.out == ""
    assert "--layers" in result.err
