"""`kvfuzz diff`: what it finds between two targets, how it says it, and what ends it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvfuzz.errors import Exit
from tests.cli.helpers import SABOTAGE, Result, interrupted, kvfuzz

Invoke = Callable[..., Result]

_HERE = "tests.cli.differing:"
PLAIN = f"{_HERE}plain"


def _diff(folder: Path, other: str, *words: str, one: str = PLAIN) -> tuple[Result, dict[str, Any]]:
    """What comes of comparing `plain` with another target, and the JSON of it."""
    budget = () if {"--examples", "--budget"} & {*words} else ("--examples", "300")
    words = (*words, *budget, "--seed", "1", "--json", "o.json")
    result = kvfuzz("diff", one, f"{_HERE}{other}", *words, cwd=folder)
    report: dict[str, Any] = json.loads((folder / "o.json").read_text())
    return result, report


#: Target -> aspect, how it differs with the target as T, kinds, layers of the minimal mix.
DIFFERENCES = {
    "refuses": (
        "refusal", "refused by T: NotImplementedError: There are # specs at <name>.", [], 3,
    ),
    "crashes": ("refusal", "crashes in T: KeyError in look_up: <name>", [], 1),
    "dies_on_windows": ("refusal", "crashes in T: died by SIGSEGV", [], 2),
    "joins_groups": ("groups", f"more groups in {PLAIN}", ["sliding_window"], 2),
    "converts": ("kinds", "planned as sliding_window -> full_attention", ["sliding_window"], 1),
    "pads": ("geometry", "another page_size_padded", ["sliding_window"], 1),
    "has_larger_pages": ("pages", "larger pages in T", ["full_attention"], 1),
    "marks_drafts": ("drafts", "more groups marked in T", [], 1),
    "needs_more": ("need", "more bytes in T", ["full_attention"], 1),
    "has_fewer_blocks": ("capacity", f"more blocks in {PLAIN}", ["full_attention"], 1),
    "plans_shorter": ("capacity", f"longer requests in {PLAIN}", ["full_attention"], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_of_each_aspect(name: str, tmp_path: Path):
    aspect, how, kinds, layers = DIFFERENCES[name]
    result, report = _diff(tmp_path, name, "--surface", "config")
    assert result.code == Exit.NEW_FINDING
    first, *others = report["differences"]
    assert (first["aspect"], first["kinds"]) == (aspect, kinds)
    assert first["how"] == re.sub(r"\bT\b", f"{_HERE}{name}", how)
    assert first["shrunk"]
    assert len(first["scenario"]["mix"]) == layers
    assert {other["aspect"] for other in others} <= {aspect}
    (surface,) = report["surfaces"]
    assert surface["scenarios"] == 300
    assert 0 < first["scenarios"] <= surface["differing"] <= 300
    # What needs a layer of either kind has a minimal mix of each.
    assert [other["kinds"] for other in others] == [["sliding_window"]] * len(others)
    assert len(others) == (aspect in ("need", "capacity"))


def test_what_is_printed(tmp_path: Path):
    result, _ = _diff(tmp_path, "joins_groups", "--surface", "groups", "--markdown", "o.md")
    assert result.code == 1
    shown = [
        "  minimal mix, 2 layers:",
        "    layer     kind            block  heads  dim  dtype     window   page",
        "    layers.0  sliding window     16      1   64  bfloat16     128  1,024",
        "    layers.1  sliding window     16      1   64  bfloat16    1024  1,024",
        f"  {PLAIN} plans 2 groups:",
        "    1 sliding window, page 1,024",
        "    1 sliding window, page 1,024",
        f"  {_HERE}joins_groups plans 1 group:",
        "    1 sliding window, page 1,024; 1 sliding window, page 1,024",
    ]
    lines = result.out.splitlines()
    assert lines[0] == f"{PLAIN} and {_HERE}joins_groups, surface groups"
    assert lines[1].startswith("300 scenarios in ")
    head = f"groups: more groups in {PLAIN} (sliding window)"
    at = next(number for number, line in enumerate(lines) if line.startswith(head))
    assert lines[at + 1 : at + 1 + len(shown)] == shown
    assert lines[-1].startswith("1 difference, shown by ")
    assert lines[-1].endswith(" of 300 scenarios. Seed 1.")
    assert f"found on groups: {head}, 2 layers\n" in result.err
    text = (tmp_path / "o.md").read_text()
    assert text.startswith(f"# `{PLAIN}` and `{_HERE}joins_groups`\n\n1 difference, shown by ")
    assert f"### {head}\n" in text
    assert "\n".join(["```", *(line[2:] for line in shown), "```"]) in text


def test_what_is_in_the_json(tmp_path: Path):
    _, report = _diff(tmp_path, "needs_more", "--surface", "config")
    assert [target["version"] for target in report["targets"]] == ["1", "1"]
    assert (report["seed"], report["interrupted"]) == (1, False)
    first = report["differences"][0]
    spec = {"block_size": 16, "num_kv_heads": 1, "head_size": 64, "dtype": "bfloat16"}
    layer = {"name": "layers.0", "kind": "full_attention"} | spec
    assert first["scenario"] == {"mix": [layer]}
    assert first["pages"] == [[1024], [1024]]
    mine, theirs = first["answers"]
    part = {"layer": 0, "given": "full_attention", "kind": "full_attention", "fields": spec}
    part |= {"count": 1, "page": 1024}
    assert mine["groups"] == theirs["groups"] == [{"times": 1, "drafts": False, "layers": [part]}]
    assert mine["ranks"] == [{"blocks": 100, "needed": 4, "block": 1024}]
    assert theirs["ranks"] == [{"blocks": 100, "needed": 5, "block": 1024}]
    assert mine["max_model_len"] == 4096
    assert (mine["outcome"], mine["message"]) == ("plan", "")


def test_alike_targets_on_all_surfaces(tmp_path: Path):
    result, report = _diff(tmp_path, "plain_again")
    assert result.code == Exit.OK
    assert result.out.endswith("\nNo difference that matters in 600 scenarios. Seed 1.\n")
    assert [surface["surface"] for surface in report["surfaces"]] == ["groups", "config"]
    assert report["differences"] == []


def test_the_same_seed_gives_the_same(tmp_path: Path):
    reports = [_diff(tmp_path, "refuses", "--surface", "config")[1] for _ in range(2)]
    for report in reports:
        report["surfaces"][0].pop("seconds")
    assert reports[0] == reports[1]


def test_configs_of_which_one_is_no_engines(tmp_path: Path):
    one, other = f"{_HERE}installed", f"{_HERE}alone"
    result, report = _diff(tmp_path, "alone", one=one)
    assert result.code == 0
    said = f"one plans by an engine's own config: {one} by a real, {other} by a stand-in config"
    assert said in " ".join(result.out.split())
    assert [target["config"] for target in report["targets"]] == ["real", "stand-in"]
    result, report = _diff(tmp_path, "plain_again")
    assert "config: " not in result.out
    assert [target["config"] for target in report["targets"]] == [None, None]


def test_what_only_one_has(tmp_path: Path):
    result, report = _diff(tmp_path, "has_more")
    assert result.code == 0
    assert [surface["surface"] for surface in report["surfaces"]] == ["groups"]
    mine, theirs = report["targets"]
    assert (mine["only_surfaces"], mine["only"]) == (["config"], ["sliding_window"])
    assert (theirs["only_surfaces"], theirs["only"]) == (
        ["merge"],
        ["full_attention.sinks", "brand_new"],
    )
    assert f"only {PLAIN} has the surface config\n" in result.out
    assert "neither was asked about: kind brand_new, sinks of full_attention\n" in result.out


def test_the_guard_of_uniform_mixes(tmp_path: Path):
    result, report = _diff(tmp_path, "packs_without_guard", one="reference")
    assert result.code == 1
    (difference,) = report["differences"]
    assert difference["how"] == f"packed by {_HERE}packs_without_guard only"
    assert difference["kinds"] == ["mla_attention", "sliding_window_mla"]
    assert len(difference["scenario"]["mix"]) == 2
    assert len({*difference["pages"][0]}) == 1
    assert [answer["outcome"] for answer in difference["answers"]] == ["none", "plan"]
    assert "  reference does not pack the mix\n" in result.out


def test_a_difference_that_does_not_come_back(tmp_path: Path):
    result, report = _diff(tmp_path, "is_fickle", "--surface", "groups")
    assert result.code == 0
    (surface,) = report["surfaces"]
    assert surface["fickle"] == surface["differing"] > 0
    assert report["differences"] == []
    assert f"{surface['fickle']} differed once, and not when both were asked again" in result.out


@pytest.mark.slow
def test_a_target_that_hangs(tmp_path: Path):
    result, report = _diff(tmp_path, "hangs_on_windows", "--surface", "groups")
    assert result.code == 1
    (difference,) = report["differences"]
    assert difference["how"] == f"crashes in {_HERE}hangs_on_windows: time-out"
    assert len(difference["scenario"]["mix"]) == 1


def test_a_budget_of_time(tmp_path: Path):
    result, report = _diff(tmp_path, "crashes", "--budget", "8s")
    assert result.code == 1
    assert [surface["surface"] for surface in report["surfaces"]] == ["groups", "config"]
    assert all(surface["scenarios"] for surface in report["surfaces"])
    assert sum(surface["seconds"] for surface in report["surfaces"]) < 10


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_was_found_is_kept(tmp_path: Path, number: signal.Signals, code: int):
    words = ("diff", PLAIN, f"{_HERE}dawdles", "--surface", "groups", "--budget", "1h")
    done, out, err = interrupted(
        *words, "--json", "o.json", until="found on ", number=number, cwd=tmp_path
    )
    assert done == code
    assert "Traceback" not in out + err
    assert "refusal: crashes in tests.cli.differing:dawdles: KeyError in turn: <name>" in out
    assert err.endswith("stopped; what was found until then is above\n")
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["interrupted"] is True
    assert len(report["differences"]) == 1


def test_a_target_that_cannot_be_loaded(tmp_path: Path):
    result = kvfuzz("diff", "reference", f"{SABOTAGE}:cannot_be_made", cwd=tmp_path)
    assert (result.code, result.out) == (3, "")
    assert "no planner today" in result.err


def test_a_target_that_cannot_be_driven_to_the_end(tmp_path: Path):
    result, report = _diff(tmp_path, "needs_what_is_not_there", "--surface", "groups")
    assert result.code == 3
    # It fails in the first chunk, of which nothing is known then.
    assert report["surfaces"][0]["scenarios"] == 0
    assert "surface groups\n0 scenarios in " in result.out
    assert result.err.endswith("HarnessFault: a stand-in is lacking\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("reference", "reference"), "Both targets are reference: there is nothing to compare."),
        (("reference", "nonsense"), "nonsense"),
        (
            ("reference", PLAIN, "--surface", "pakc"),
            "There is no surface 'pakc'. Did you mean pack?",
        ),
        (
            ("reference", PLAIN, "--budget", "1s", "--examples", "5"),
            "--budget and --examples exclude each other: give one of them.",
        ),
        (("reference", PLAIN, "--budget", "soon"), "--budget 'soon' is no time"),
        (("reference", PLAIN, "--json", "."), "--json . is a folder: name a file."),
        (
            ("reference", PLAIN, "--json", "o", "--markdown", "o"),
            "--json and --markdown both name o: name two files.",
        ),
    ],
)
def test_mistaken_words(invoke: Invoke, words: tuple[str, ...], sentence: str):
    result = invoke("diff", *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("kvfuzz: ")
    assert sentence in result.err
    assert result.err.count("\n") == 1


def test_one_target_is_not_enough(invoke: Invoke):
    result = invoke("diff", "reference")
    assert result.code == 2
    assert "Missing argument 'T2'" in result.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--surface", "pack"), f"{PLAIN} has no surface pack.\n"),
        ((), f"{PLAIN} and reference have no surface in common.\n"),
    ],
)
def test_surfaces_that_are_not_there(tmp_path: Path, words: tuple[str, ...], sentence: str):
    result = kvfuzz("diff", PLAIN, "reference", "--budget", "20s", *words, cwd=tmp_path)
    assert result.code == 2
    assert result.err.endswith(f"kvfuzz: {sentence}")
