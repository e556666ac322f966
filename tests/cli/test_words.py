"""Help, lists, explanations and mistaken words."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvfuzz import __version__
from kvfuzz.invariants import all_invariants
from kvfuzz.surfaces import SURFACES
from tests.cli.helpers import SABOTAGE, Result, environment, kvfuzz, write_case

Invoke = Callable[..., Result]


def test_version(invoke: Invoke):
    assert invoke("--version") == Result(0, f"kvfuzz {__version__}\n", "")


@pytest.mark.parametrize("command", ["run", "verify", "diff", "replay", "list", "explain", "show"])
def test_every_command_has_help_with_examples(invoke: Invoke, command: str):
    result = invoke(command, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: kvfuzz {command} ")
    assert f"Examples:\n    kvfuzz {command}" in result.out
    assert invoke(command, "-h") == result


def test_help_names_commands_and_exit_codes(invoke: Invoke):
    result = invoke("--help")
    assert result.code == 0
    for word in ("run", "verify", "diff", "replay", "list", "explain", "show", "130, 143"):
        assert word in result.out
    assert "--install-completion" in result.out


@pytest.mark.parametrize(
    "words", [("--help",), ("list", "invariants"), ("list", "surfaces"), ("explain", "partition")]
)
def test_words_load_no_engine(words: tuple[str, ...], tmp_path: Path):
    code = (
        "import sys\n"
        "from kvfuzz.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    heavy = {'torch', 'numpy', 'hypothesis', 'kvfuzz.engine'} & set(sys.modules)\n"
        "    print('HEAVY', sorted(heavy))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.stdout.endswith("HEAVY []\n")
    assert done.stderr == ""


def test_shell_completion(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "kvfuzz.cli"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={
            **environment(),
            "_KVFUZZ_COMPLETE": "complete_bash",
            "COMP_WORDS": "kvfuzz list inv",
            "COMP_CWORD": "2",
        },
    )
    assert done.stdout.split() == ["invariants"]


def test_list_invariants(invoke: Invoke):
    result = invoke("list", "invariants")
    assert result.code == 0
    named = [line.split()[0] for line in result.out.splitlines() if line[0] != " "]
    assert named == [rule.id for rule in all_invariants()]
    assert re.search(r"^single-page-size +No group mixes page sizes\.$", result.out, re.MULTILINE)


def test_list_surfaces(invoke: Invoke):
    result = invoke("list", "surfaces")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines() if line[0] != " "] == list(SURFACES)


def test_list_targets_shows_every_form(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KVFUZZ_CACHE_DIR", "cache")
    result = invoke("list", "targets")
    assert result.code == 0
    for form in ("reference", "vllm", "vllm==0.28.0", "vllm@PATH", "module:factory"):
        assert f"\n{form} " in f"\n{result.out}"
    assert "cached releases:  none yet\n" in result.out


def test_explain_an_invariant(invoke: Invoke):
    assert invoke("explain", "single-page-size") == Result(
        0,
        "single-page-size\n"
        "claim       No group mixes page sizes.\n"
        "source      A block of a group is one page of each of its layers, and a pool has\n"
        "            one page size.\n"
        "applies to  plans with groups\n"
        "surfaces    pack\n"
        "costs       silent wrong plan\n",
        "",
    )


def test_explain_an_unknown_name(invoke: Invoke):
    result = invoke("explain", "partitoin\x1b[2J")
    assert result.code == 2
    assert result.out == ""
    assert r"called 'partitoin\x1b[2J'. Did you mean partition?" in result.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("rum",), "No such command 'rum'. Did you mean 'run'?"),
        (("run", "--colour"), "No such option"),
        (("list", "planets"), "'planets' is not one of"),
        (("run", "--examples", "0"), "Invalid value for '--examples'"),
        (("run", "--jobs", "x"), "Invalid value for '--jobs'"),
    ],
)
def test_mistaken_words(invoke: Invoke, words: tuple[str, ...], sentence: str):
    result = invoke(*words)
    assert result.code == 2
    assert result.out == ""
    assert sentence in result.err


@pytest.mark.parametrize("budget", ["60", "0s", "-1s", "1d", "s", "nans", "1e9s", "1s 2s"])
def test_a_budget_that_is_no_time(invoke: Invoke, budget: str):
    result = invoke("run", "--budget", budget)
    assert result.code == 2
    assert result.err == f"kvfuzz: --budget {budget!r} is no time: write it as 60s, 10m or 8h.\n"


def test_budget_and_examples_exclude_each_other(invoke: Invoke):
    result = invoke("run", "--budget", "1s", "--examples", "5")
    assert result.code == 2
    assert result.err == ("kvfuzz: --budget and --examples exclude each other: give one of them.\n")


def test_an_unknown_surface(invoke: Invoke):
    result = invoke("run", "--surface", "pakc")
    assert result.code == 2
    assert "There is no surface 'pakc'. Did you mean pack?" in result.err


def test_an_unknown_id(invoke: Invoke, tmp_path: Path):
    write_case(tmp_path / "reports/cases/partition-00000000.json", {})
    result = invoke("show", "partition-00000001")
    assert result.code == 2
    assert result.err == (
        "kvfuzz: There is no case file 'partition-00000001', and neither the ledger nor "
        "reports/cases has that id. Did you mean partition-00000000?\n"
    )


def test_an_id_that_begins_several(invoke: Invoke, tmp_path: Path):
    for name in ("zzz-00000000", "zzz-00000001"):
        write_case(tmp_path / f"reports/cases/{name}.json", {})
    result = invoke("show", "zzz")
    assert result.code == 2
    assert result.err == "kvfuzz: 'zzz' begins several ids: zzz-00000000, zzz-00000001.\n"


@pytest.mark.parametrize(
    "target", ["nonsense", "vllm=0.28.0", "vllm==", "vllm@", "a:b:c", "vllm==0.28.0; rm -rf", ""]
)
def test_a_malformed_target(invoke: Invoke, target: str):
    result = invoke("run", "--target", target, "--examples", "1")
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("kvfuzz: ")


@pytest.mark.parametrize("command", ["run", "replay"])
def test_a_planner_that_cannot_be_made(command: str, tmp_path: Path):
    write_case(
        tmp_path / "a.json",
        {
            "name": "a",
            "kind": "mla_attention",
            "block_size": 16,
            "num_kv_heads": 1,
            "head_size": 64,
            "dtype": "float32",
        },
    )
    words = ("run", "--examples", "1") if command == "run" else ("replay", "a.json")
    result = kvfuzz(*words, "--target", f"{SABOTAGE}:cannot_be_made", cwd=tmp_path)
    assert result.code == 3
    assert "no planner today" in result.err


def test_an_internal_error_asks_to_be_reported(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    def fail(_name: str) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("kvfuzz.commands.browse.explain", fail)
    result = invoke("explain", "partition")
    assert result == Result(
        3,
        "",
        "kvfuzz: internal error, ZeroDivisionError: by\\nzero. Please report it, with the "
        "traceback that KVFUZZ_DEBUG=1 shows.\n",
    )


def test_a_reader_that_leaves_is_no_error(tmp_path: Path):
    done = subprocess.run(
        f"{sys.executable} -m kvfuzz.cli list invariants | true; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
