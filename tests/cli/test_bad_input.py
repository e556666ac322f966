"""Case files that are none: one sentence that names the place, exit 2, nothing executed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import Result, case, layer, window, write_case

Invoke = Callable[..., Result]
GOOD = json.dumps(case(layer(), window()))

BAD_TEXT = {
    "empty": ("", "bad.json is empty: a case file holds one JSON object."),
    "blank": (" \n", "bad.json is empty: a case file holds one JSON object."),
    "torn": (GOOD[:100], "bad.json: Input data was truncated."),
    "binary": ("\x00\x01PK\x03", "bad.json: JSON is malformed: invalid character (byte 0)."),
    "array": ("[]", "bad.json: Expected `object`, got `array`."),
    "NaN": (GOOD.replace('"head_size": 64', '"head_size": NaN'), "invalid character"),
    "deep": ("[" * 100_000, "bad.json: Expected `object`, got `array`."),
    "deep in an unknown field": (
        '{"format": 1, "x": ' + "[" * 100_000,
        "bad.json is nested too deeply for a case file.",
    ),
    "deep in the mix": (
        '{"format": 1, "scenario": {"mix": ' + "[" * 100_000,
        "bad.json is nested too deeply for a case file.",
    ),
    "later format": (
        GOOD.replace('"format": 1', '"format": 2'),
        "bad.json has format 2, and this kvfuzz reads format 1: use the kvfuzz that wrote it, "
        "or upgrade.",
    ),
    "no format": ("{}", "bad.json: Object missing required field `format`."),
}


def _engine(**scenario: Any) -> dict[str, Any]:
    """A case of one layer, and what it says of its engine."""
    return {"format": 1, "surface": "config", "scenario": {"mix": [layer()], **scenario}}


BAD_CASE: dict[str, tuple[dict[str, Any], str]] = {
    "negative head size": (
        case(layer(), window(head_size=-576)),
        "Expected `int` >= 1 - at `$.scenario.mix[1].head_size`.",
    ),
    "huge head size": (
        case(layer(head_size=2**40)),
        "Expected `int` <= 16777216 - at `$.scenario.mix[0].head_size`.",
    ),
    "fraction": (
        case(layer(block_size=16.5)),
        "Expected `int`, got `float` - at `$.scenario.mix[0].block_size`.",
    ),
    "unknown kind": (
        case(layer(kind="paged")),
        "Invalid value 'paged' - at `$.scenario.mix[0].kind`.",
    ),
    "no kind": (
        case({"name": "a"}),
        "Object missing required field `kind` - at `$.scenario.mix[0]`.",
    ),
    "unknown field": (
        case(layer(colour="red")),
        "Object contains unknown field `colour` - at `$.scenario.mix[0]`.",
    ),
    "unknown field above": (
        case(layer(), colour="red"),
        "bad.json: Object contains unknown field `colour`.",
    ),
    "unknown dtype": (
        case(layer(dtype="float7")),
        "Invalid enum value 'float7' - at `$.scenario.mix[0].dtype`.",
    ),
    "window of a layer without one": (
        case(layer(extra_retained_tokens=1)),
        "Object contains unknown field `extra_retained_tokens` - at `$.scenario.mix[0]`.",
    ),
    "layer name with a newline": (case(layer("a\nb")), "at `$.scenario.mix[0].name`."),
    "layer name with an escape": (case(layer("a\x1b[2Jb")), "at `$.scenario.mix[0].name`."),
    "empty layer name": (case(layer("")), "at `$.scenario.mix[0].name`."),
    "one name twice": (
        case(layer("a"), window("a")),
        "layer name 'a' stands twice - at `$.scenario.mix[1].name`.",
    ),
    "no layers": (case(), "Expected `array` of length >= 1 - at `$.scenario.mix`."),
    "too many layers": (
        case(*[layer("a")] * 3000),
        "Expected `array` of length <= 2048 - at `$.scenario.mix`.",
    ),
    "more draft layers than layers": (
        _engine(drafts=2),
        "bad.json: 2 draft layers of 1 - at `$.scenario.drafts`.",
    ),
    "ranks of other layers": (
        _engine(ranks=[0, 1]),
        "bad.json: 2 ranks for 1 layers - at `$.scenario.ranks`.",
    ),
    "unknown setting": (
        _engine(config={"colour": "red"}),
        "bad.json: Object contains unknown field `colour` - at `$.scenario.config`.",
    ),
    "a layout that is none": (
        _engine(config={"layout": "\x1b[2J"}),
        r"Expected `str` matching regex '\\A[A-Z]*\\Z' - at `$.scenario.config.layout`.",
    ),
    "unknown surface": (
        case(layer(), surface="p\x1b[2J"),
        r"there is no surface 'p\x1b[2J' - at `$.surface`.",
    ),
    "unknown invariant": (
        case(layer(), invariant="partitoin"),
        "No invariant is called 'partitoin'. Did you mean partition?",
    ),
}


def _refused(result: Result, sentence: str) -> None:
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("kvfuzz: ")
    assert sentence in result.err
    # One line, and nothing in it that a terminal would obey.
    assert result.err.endswith("\n")
    assert result.err[:-1].isprintable()


@pytest.mark.parametrize("command", ["replay", "show"])
@pytest.mark.parametrize("name", BAD_TEXT)
def test_a_file_that_is_no_case(invoke: Invoke, tmp_path: Path, name: str, command: str):
    text, sentence = BAD_TEXT[name]
    (tmp_path / "bad.json").write_text(text)
    _refused(invoke(command, "bad.json"), sentence)


@pytest.mark.parametrize("name", BAD_CASE)
def test_a_case_with_a_bad_field(invoke: Invoke, tmp_path: Path, name: str):
    data, sentence = BAD_CASE[name]
    (tmp_path / "bad.json").write_text(json.dumps(data))
    _refused(invoke("replay", "bad.json"), sentence)


def test_a_gigabyte_is_not_read(invoke: Invoke, tmp_path: Path):
    with (tmp_path / "bad.json").open("wb") as file:
        file.truncate(1 << 30)
    _refused(invoke("replay", "bad.json"), "bad.json is over 4 MiB: that is no case file.")


def test_bytes_that_are_no_text(invoke: Invoke, tmp_path: Path):
    (tmp_path / "bad.json").write_bytes(GOOD.encode().replace(b"layers.0", b"\xff\xfe"))
    _refused(invoke("replay", "bad.json"), "bad.json: ")


def test_a_folder(invoke: Invoke, tmp_path: Path):
    (tmp_path / "bad.json").mkdir()
    _refused(invoke("replay", "bad.json"), "bad.json cannot be read: Is a directory.")


def test_a_fifo_is_not_waited_for(invoke: Invoke, tmp_path: Path):
    os.mkfifo(tmp_path / "bad.json")
    _refused(invoke("replay", "bad.json"), "bad.json is not a regular file.")


def test_a_device(invoke: Invoke):
    _refused(invoke("replay", "/dev/zero"), "/dev/zero is not a regular file.")


def test_a_missing_file(invoke: Invoke):
    _refused(invoke("replay", "no.json"), "no.json cannot be read: No such file or directory.")


def test_a_file_name_with_an_escape(invoke: Invoke, tmp_path: Path):
    name = "\x1b[2J.json"
    (tmp_path / name).write_text("")
    _refused(invoke("replay", name), r"\x1b[2J.json is empty")


def test_a_name_that_no_file_can_have(invoke: Invoke):
    _refused(invoke("replay", "x" * 5000), "There is no case file")


def test_a_page_padded_below_its_data(invoke: Invoke, tmp_path: Path):
    write_case(tmp_path / "bad.json", layer(page_size_padded=1))
    _refused(invoke("show", "bad.json"), "cannot hold its 4096 bytes")


def test_a_case_is_data(invoke: Invoke, tmp_path: Path):
    """What looks like code in the texts of a case is shown, and is not run."""
    ran = tmp_path / "ran"
    bomb = f"__import__('pathlib').Path({str(ran)!r}).touch()"
    markup = "[bold red]not markup[/] [link=x]"
    write_case(
        tmp_path / "good.json", layer(bomb), window(markup), message=bomb, id=markup, target=bomb
    )
    result = invoke("show", "good.json")
    assert result.code == 0
    assert markup in result.out
    assert bomb in result.out
    assert not ran.exists()
