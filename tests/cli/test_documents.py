"""Every command line that a document shows has words that kvfuzz knows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from kvfuzz import cli
from kvfuzz.profiles import PROFILES
from kvfuzz.targets.uri import parse
from tests.cli.helpers import ROOT

_GROUP: Any = typer.main.get_command(cli.app)
#: A line that begins with one of our commands, in a block of its own or in backticks.
_LINE = re.compile(
    r"^\s*(?:`|.*bin/)?(kvfuzz (?:run|verify|replay|list|explain|show)\b[^`\n]*)", re.MULTILINE
)


def _lines() -> list[str]:
    """`kvfuzz COMMAND ...` of the README, of tox.ini and of the commands' own help."""
    texts = [(ROOT / name).read_text() for name in ("README.md", "tox.ini", "kvfuzz/cli.py")]
    found = _LINE.findall("\n".join(texts))
    return sorted({_filled_in(line) for line in found})


def _filled_in(line: str) -> str:
    """The line as tox runs it, by default and with no further words."""
    line = re.sub(r"\{(?:env:\w+|posargs):([^{}]*)\}", r"\1", line).replace("{posargs}", "")
    return re.sub(r"\{\w+\}", "somewhere", line)


@pytest.mark.parametrize("line", _lines())
def test_a_line_can_be_parsed(line: str):
    _, name, *words = shlex.split(line, comments=True)
    command = _GROUP.commands[name]
    if words:
        context = command.make_context(name, words)
        for uri in context.params.get("targets") or ():
            parse(uri)
        if profile := context.params.get("profile"):
            assert profile in PROFILES


def test_there_are_such_lines():
    assert len(_lines()) > 25


def test_the_workflow_runs_the_environment_of_tox():
    workflow = (ROOT / ".github/workflows/nightly.yml").read_text()
    tox = (ROOT / "tox.ini").read_text()
    assert "run: tox -e nightly\n" in workflow
    section = tox.split("[testenv:nightly]")[1].split("[testenv:")[0]
    for path in re.findall(r"reports/nightly/[\w.*]+", workflow):
        name = Path(path).name
        assert name in ("state.sqlite", "cases") or name.replace("*", "md") in section, path
    assert "--out reports/nightly " in section
    assert "KVFUZZ_BUDGET" in section
