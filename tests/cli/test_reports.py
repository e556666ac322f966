"""`--json --markdown --html --junit` of run and verify: files that are written, and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from bs4 import BeautifulSoup

from tests.cli.helpers import SABOTAGE, Result, kvfuzz

UNIFORM = f"{SABOTAGE}:packs_uniform_mixes"


def test_one_run_writes_all_of_them(tmp_path: Path):
    result = kvfuzz(
        "run", "--target", UNIFORM, "--target", "reference", "--examples", "512", "--seed", "1",
        "--json", "o/o.json", "--markdown", "o/o.md", "--html", "o/o.html", "--junit", "o/o.xml",
        cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 1
    folder = tmp_path / "o"
    assert sorted(path.name for path in folder.iterdir()) == ["o.html", "o.json", "o.md", "o.xml"]
    (finding,) = json.loads((folder / "o.json").read_text())["findings"]
    name = finding["id"]

    page = BeautifulSoup((folder / "o.html").read_bytes(), "html.parser")
    assert page.h1.get_text() == "1 new finding in 1,024 mixes on 2 targets."
    (article,) = page.find_all("article")
    assert article["id"] == f"new-{name}"
    replay, case = article.find_all("pre")
    assert replay.string == f"kvfuzz replay reports/cases/{name}.json --target {UNIFORM}"
    assert case.string == (tmp_path / f"reports/cases/{name}.json").read_text()
    assert "Over time" in [h2.get_text() for h2 in page.find_all("h2")]

    root = ET.parse(folder / "o.xml").getroot()
    assert [suite.get("name") for suite in root] == [f"{UNIFORM} pack", "reference pack"]
    assert [root.get(count) for count in ("tests", "failures", "errors", "skipped")] == [
        "14", "1", "0", "0",
    ]  # fmt: skip
    failure = root.find("testsuite/testcase[@name='uniform-is-none']/failure")
    assert failure is not None
    assert failure.get("message") == (
        f"{name}: 2 groups; expected None, since every page is 4096 bytes"
    )
    assert "| **new** |" not in (folder / "o.md").read_text()
    assert "1 new findings." in (folder / "o.md").read_text()


def test_so_does_a_verification(tmp_path: Path):
    result = kvfuzz(
        "verify", "--layers", "2", "--target", "reference",
        "--json", "o.json", "--markdown", "o.md", "--html", "o.html", "--junit", "o.xml",
        cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 0
    (target,) = json.loads((tmp_path / "o.json").read_text())["targets"]
    assert target["surfaces"][0]["verified"]["finished"] is True
    covered = "22 patterns, 2 layers, all hold"
    assert f"- `reference`: {covered}\n" in (tmp_path / "o.md").read_text()
    page = BeautifulSoup((tmp_path / "o.html").read_bytes(), "html.parser")
    assert f"{covered}.\n" in page.find(class_="verified").get_text()
    assert f"Verified: {covered}." in (tmp_path / "o.xml").read_text()


@pytest.mark.parametrize("option", ["--json", "--markdown", "--html", "--junit"])
def test_a_file_that_cannot_be_written_is_said_before_the_run(
    invoke: Callable[..., Result], tmp_path: Path, option: str
):
    result = invoke("run", "--target", "reference", option, str(tmp_path))
    assert result == Result(2, "", f"kvfuzz: {option} {tmp_path} is a folder: name a file.\n")
    (tmp_path / "taken").write_text("")
    result = invoke("run", "--target", "reference", option, "taken/report")
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("kvfuzz: taken/.probe-")
    assert result.err.endswith(
        "cannot be written: File exists; choose another folder or make room.\n"
    )


def test_two_reports_in_one_file_are_refused(invoke: Callable[..., Result], tmp_path: Path):
    result = invoke("run", "--target", "reference", "--html", "x", "--junit", "./x")
    assert result == Result(2, "", "kvfuzz: --html and --junit both name x: name two files.\n")
    assert not (tmp_path / "x").exists()


def test_a_target_that_fails_is_in_both(tmp_path: Path):
    broken = f"{SABOTAGE}:cannot_be_made"
    result = kvfuzz(
        "run", "--target", broken, "--examples", "9", "--html", "o.html", "--junit", "o.xml",
        cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 3
    page = BeautifulSoup((tmp_path / "o.html").read_bytes(), "html.parser")
    assert page.h1.get_text() == (
        f"Incomplete: {broken} could not be tested in full. Nothing new in 0 mixes on 0 targets."
    )
    assert "no planner today" in page.find(class_="failures").get_text()
    (error,) = ET.parse(tmp_path / "o.xml").getroot().iter("error")
    assert "no planner today" in (error.get("message") or "")
