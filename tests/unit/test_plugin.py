"""The pytest plugin, in pytest runs of its own: options, fixtures, failures and exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase

from kvfuzz.cases import Case, read_case
from kvfuzz.profiles import hypothesis_settings
from kvfuzz.specs import MLAAttentionSpec, SlidingWindowMLASpec

ROOT = Path(__file__).parents[2]

CHECK = """
    import pytest
    from kvfuzz.invariants import get_invariant

    @pytest.mark.parametrize("name", ["uniform-is-none", "partition"])
    def test_rule(name, kvfuzz_check):
        kvfuzz_check(get_invariant(name))
"""

#: Writes what is drawn to a file a shard.
DRAWN = """
    from kvfuzz.invariants import get_invariant

    def test_rule(kvfuzz_check, kvfuzz_session, kvfuzz_shard, monkeypatch):
        drawn = []
        judge = kvfuzz_session.judge

        def noted(scenario):
            drawn.append(repr(scenario))
            return judge(scenario)

        monkeypatch.setattr(kvfuzz_session, "judge", noted)
        kvfuzz_check(get_invariant("partition"))
        with open(f"shard-{kvfuzz_shard}.txt", "w") as file:
            file.write("\\n".join(drawn))
"""


@pytest.fixture(autouse=True)
def _runs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # The outer run's own workers are no concern of the inner one.
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)


def _run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    """A pytest in a process of its own, where the plugin comes by its entry point."""
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *words)


def _drawn(pytester: pytest.Pytester, shard: int) -> list[str]:
    return (pytester.path / f"shard-{shard}.txt").read_text().splitlines()


def test_the_options_are_there(pytester: pytest.Pytester):
    result = _run(pytester, "--help")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*--kvfuzz-target=T*", "*--kvfuzz-profile=P*"])


def test_a_wrong_planner_fails_with_a_case_to_paste(pytester: pytest.Pytester):
    pytester.makepyfile(CHECK)
    # A planner of this test's own: it is wrong from two layers on, one of each
    # kind, so that there is one minimum for Hypothesis to reach.
    pytester.makepyfile(
        both_kinds="""
        from kvfuzz.reference import group_and_unify_kv_cache_specs as reference
        from tests.sabotage.planners import packs_uniform_mixes

        def factory():
            wrong = packs_uniform_mixes()
            both = lambda specs: len({spec.kind for spec in specs.values()}) == 2
            return lambda specs: wrong(specs) if both(specs) else reference(specs)
        """
    )
    target = "both_kinds:factory"
    result = _run(pytester, "--kvfuzz-target", target)
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            f"kvfuzz: target {target}",
            "*uniform-is-none: If all layers have one page size, the packer returns None.",
            "*got:      2 groups",
            "*expected: None, since every page is * bytes",
            "FAILED *test_rule[[]*uniform-is-none*",
        ]
    )
    (text,) = set(re.findall(r"As a case for `kvfuzz replay`: (\{.*\})", result.stdout.str()))
    path = pytester.path / "case.json"
    path.write_text(text)
    case, scenario = read_case(path, Case)
    assert (case.surface, case.invariant) == ("pack", "uniform-is-none")
    assert {type(spec) for _, spec in scenario} == {MLAAttentionSpec, SlidingWindowMLASpec}
    assert len(scenario) == 2


def test_a_right_planner_passes(pytester: pytest.Pytester):
    pytester.makepyfile(CHECK)
    result = _run(pytester, "--kvfuzz-target", "reference", "--kvfuzz-profile", "ci")
    result.assert_outcomes(passed=2)
    assert result.ret == 0


@pytest.mark.parametrize(("words", "shards"), [((), 1), (("-n", "2"), 2)])
def test_a_shard_for_each_worker(pytester: pytest.Pytester, words: tuple[str, ...], shards: int):
    pytester.makepyfile(
        """
        def test_shard(kvfuzz_shard):
            open(f"shard-{kvfuzz_shard}.txt", "x").close()
        """
    )
    result = _run(pytester, *words)
    result.assert_outcomes(passed=shards)
    names = sorted(path.name for path in pytester.path.glob("shard-*"))
    assert names == [f"shard-{number}.txt" for number in range(shards)]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--kvfuzz-target", "vlm==1"), 2, "kvfuzz: 'vlm==1' is no target: a target is *"),
        (("--kvfuzz-target", "no_such:thing"), 3, "kvfuzz: *no_such:thing names no module: *"),
        (
            ("--kvfuzz-target", "tests.sabotage.planners:cannot_be_made"),
            3,
            "kvfuzz: The factory of *:cannot_be_made failed: RuntimeError: no planner today*",
        ),
        (
            ("--kvfuzz-target", "reference", "--kvfuzz-profile", "hourly"),
            2,
            "kvfuzz: No profile is called 'hourly': choose dev, ci, nightly, replay.*",
        ),
    ],
)
def test_a_wrong_word_is_one_sentence(
    pytester: pytest.Pytester, words: tuple[str, ...], code: int, sentence: str
):
    pytester.makepyfile(CHECK)
    result = _run(pytester, *words)
    assert result.ret == code
    said = result.stdout.str() + result.stderr.str()
    assert "Traceback" not in said
    assert "Error:" not in said.replace("RuntimeError: no planner today", "")
    header = "kvfuzz: target "
    (line,) = [t for t in said.splitlines() if "kvfuzz: " in t and not t.startswith(header)]
    pytest.LineMatcher([line]).fnmatch_lines([f"*{sentence}"])


@pytest.mark.slow
def test_a_wrong_target_is_a_sentence_on_workers_too(pytester: pytest.Pytester):
    """A worker that ends by itself would be an internal error of xdist's."""
    pytester.makepyfile(CHECK)
    result = _run(pytester, "--kvfuzz-target", "no_such:thing", "-n", "2")
    result.assert_outcomes(errors=4)
    assert result.ret == 1
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    result.stdout.fnmatch_lines(["kvfuzz: The target no_such:thing names no module: *"])


@pytest.mark.slow
def test_the_profile_ci_draws_the_same_each_time(pytester: pytest.Pytester):
    pytester.makepyfile(DRAWN)
    words = ("--kvfuzz-target", "reference", "--kvfuzz-profile", "ci")
    _run(pytester, *words).assert_outcomes(passed=1)
    first = _drawn(pytester, 0)
    _run(pytester, *words, "-n", "2").assert_outcomes(passed=2)
    assert len(first) >= 300
    assert _drawn(pytester, 0) == first
    assert _drawn(pytester, 1) != first
    # Nothing is remembered.
    assert not (pytester.path / ".hypothesis" / "examples").exists()


@pytest.mark.slow
def test_the_profile_dev_draws_others_each_time(pytester: pytest.Pytester):
    pytester.makepyfile(DRAWN)
    drawn = []
    for _ in range(2):
        _run(pytester, "--kvfuzz-target", "reference").assert_outcomes(passed=1)
        drawn.append(_drawn(pytester, 0))
    assert drawn[0] != drawn[1]


def test_profiles_do_not_depend_on_where_they_run():
    """With CI=true, Hypothesis's own default is derandomised and without a database."""
    script = (
        "from kvfuzz.profiles import hypothesis_settings\n"
        "for name in ('dev', 'ci', 'nightly', 'replay'):\n"
        "    made = hypothesis_settings(name)\n"
        "    print(name, made.derandomize, type(made.database).__name__, made.max_examples)\n"
    )
    for environment in ({"CI": "true"}, {}):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines() == [
            "dev False DirectoryBasedExampleDatabase 300",
            "ci True NoneType 300",
            "nightly False DirectoryBasedExampleDatabase 20000",
            "replay False DirectoryBasedExampleDatabase 1",
        ]


def test_where_failures_are_remembered():
    database = hypothesis_settings("dev").database
    assert isinstance(database, DirectoryBasedExampleDatabase)
    assert Path(database.path) == Path(".hypothesis/examples")


def test_loading_the_plugin_imports_nothing_heavy():
    """It is loaded in every pytest run where kvfuzz is installed."""
    script = (
        "import sys, kvfuzz.pytest_plugin\n"
        "print(sorted({'hypothesis', 'torch', 'rich', 'typer', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "[]\n"
