"""Cases shared through a real Redis server, by runs and by pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfuzz.engine.corpus import _KEY
from tests.cli.helpers import ROOT, SABOTAGE
from tests.cluster.conftest import Redis
from tests.cluster.runs import GO, Run, report_of, told
from tests.cluster.servers import free_port

pytestmark = pytest.mark.cluster

UNIFORM = f"{SABOTAGE}:packs_uniform_mixes"
CASE = "uniform-is-none-82c27ad5"
#: Where Hypothesis keeps what is under our key.
STORED = b"hypothesis-example:" + _KEY


def _found(folder: Path) -> list[str]:
    return [finding["id"] for finding in report_of(folder)["findings"]]


def _find(url: str, folder: Path) -> None:
    """Find the case, and keep it in the database."""
    words = ("--target", UNIFORM, "--examples", "500", "--seed", "5", "--database", url)
    assert Run(*words, cwd=folder).end().code == 1
    assert _found(folder) == [CASE]


def test_what_one_run_found_another_begins_with(redis: Redis, tmp_path: Path):
    _find(redis.url, tmp_path / "one")
    words = ("--target", UNIFORM, "--examples", "1", "--seed", "5")
    assert Run(*words, cwd=tmp_path / "alone").end().code == 0  # one mix does not show it
    result = Run(*words, "--database", redis.url, cwd=tmp_path / "two").end()
    assert (result.code, told(result)) == (1, [])
    assert _found(tmp_path / "two") == [CASE]
    assert [path.stem for path in (tmp_path / "two/reports/cases").iterdir()] == [CASE]


def test_what_is_no_case_is_passed_over(redis: Redis, tmp_path: Path):
    _find(redis.url, tmp_path / "one")
    (good,) = redis.client.smembers(STORED)
    hostile = [
        b"", b"\0\xff" * 99, b"{}", b"null", b"[" * 50_000, b'{"format": 2}', good[:-9],
        good.replace(b'"format":', b'"format": 1e999, "was":'),
        b'{"format": 1, "surface": "pack", "scenario": {"mix": [{"name": "\\u001b[2J"}]}}',
    ]  # fmt: skip
    redis.client.sadd(STORED, *hostile)
    redis.client.set(b"hypothesis-example:", b"\x80\x04.")
    redis.client.sadd(b"hypothesis-example:other", b"\x80\x04.")
    words = ("--target", UNIFORM, "--examples", "1", "--seed", "5", "--database", redis.url)
    result = Run(*words, cwd=tmp_path / "two").end()
    assert (result.code, told(result)) == (1, [])
    assert "\x1b" not in result.out + result.err
    assert _found(tmp_path / "two") == [CASE]
    # What is not ours is not ours to take away.
    assert set(hostile) < redis.client.smembers(STORED)


def test_a_key_of_another_kind_is_a_sentence(redis: Redis, tmp_path: Path):
    redis.client.set(STORED, b"no set")
    words = ("--target", UNIFORM, "--examples", "1", "--database", redis.url)
    result = Run(*words, cwd=tmp_path).end()
    assert (result.code, result.out) == (2, "")
    (sentence,) = told(result)
    assert sentence.startswith("kvfuzz: The cases in the database cannot be read: ")
    assert "WRONGTYPE" in sentence
    assert sentence.endswith("; see to the server, or leave out --database.")


def test_the_server_killed_in_mid_run(redis: Redis, tmp_path: Path):
    words = (
        "--target",
        "tests.cluster.planners:made_when_told",
        "--examples",
        "500",
        "--seed",
        "5",
    )
    run = Run(*words, "--jobs", "1", "--database", redis.url, cwd=tmp_path)
    run.wait_for((tmp_path / "begun").exists, "it has begun")
    redis.kill()
    (tmp_path / GO).touch()
    result = run.end()
    assert result.code == 3
    (sentence,) = told(result)
    assert sentence.startswith("kvfuzz: A case could not be saved in the database: ")
    assert sentence.endswith("refused.")
    assert f"NEW {CASE}" in result.out
    assert _found(tmp_path) == [CASE]
    assert [path.stem for path in (tmp_path / "reports/cases").iterdir()] == [CASE]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:secret@127.0.0.1:{port}/0", "redis://127.0.0.1:{port}/0"),
        ("redis://me:secret@127.0.0.1:port", "redis://127.0.0.1:port"),
        ("redis://me:secret@[", "redis://..."),
        ("unix:///no/such/socket", "unix:///no/such/socket"),
    ],
)
def test_no_server(redis: Redis, tmp_path: Path, url: str, shown: str):
    port = free_port()
    words = ("--target", "reference", "--examples", "1", "--database", url.format(port=port))
    result = Run(*words, cwd=tmp_path).end()
    assert (result.code, result.out) == (2, "")
    (sentence,) = told(result)
    assert sentence.startswith(f"kvfuzz: The database {shown.format(port=port)} cannot be used: ")
    assert sentence.endswith("; start the server, or leave out --database.")
    assert "secret" not in sentence


def test_a_folder_may_be_called_redis(tmp_path: Path):
    words = ("--target", "reference", "--examples", "1", "--database", "redis")
    result = Run(*words, cwd=tmp_path).end()
    assert (result.code, told(result)) == (0, [])


PROPERTY = """
    from kvfuzz.invariants import get_invariant

    def test_rule(kvfuzz_check):
        kvfuzz_check(get_invariant("uniform-is-none"))
"""


def test_pytest_remembers_failures_there(
    redis: Redis, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    """One run finds it; another, that only replays what is remembered, finds it there too."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(PROPERTY)
    common = ("-p", "no:cacheprovider", "--kvfuzz-target", UNIFORM)
    replay = (*common, "--kvfuzz-profile", "replay", "--kvfuzz-database", redis.url)
    pytester.runpytest_subprocess(*replay).assert_outcomes(skipped=1)
    result = pytester.runpytest_subprocess(*common, "--kvfuzz-database", redis.url)
    result.assert_outcomes(failed=1)
    assert redis.client.dbsize() > 0
    assert not (pytester.path / ".hypothesis/examples").exists()
    result = pytester.runpytest_subprocess(*replay)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*As a case for `kvfuzz replay`: *"])


def test_pytest_without_its_server(redis: Redis, pytester: pytest.Pytester):
    redis.kill()
    pytester.makepyfile(PROPERTY)
    words = ("-p", "no:cacheprovider", "--kvfuzz-target", "reference")
    result = pytester.runpytest_subprocess(*words, "--kvfuzz-database", redis.url)
    assert result.ret == 2
    said = result.stdout.str() + result.stderr.str()
    assert "Traceback" not in said
    assert f"kvfuzz: The database {redis.url} cannot be used: " in said
