"""The pytest plugin: property tests of whatever target `--kvfuzz-target` names.

It is loaded in every pytest run where kvfuzz is installed, so it imports
nothing heavy until a test asks for one of its fixtures:

* `kvfuzz_session`: the target, loaded in the test process, ready to be asked;
* `kvfuzz_check`: checks one invariant of it on random mixes;
* `kvfuzz_shard`: parametrises a test so that every xdist worker has a share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from kvfuzz.engine.session import Session
    from kvfuzz.errors import KvfuzzError
    from kvfuzz.invariants import Invariant, Violation
    from kvfuzz.specs import Scenario

_SESSION = pytest.StashKey["Session"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all of which begin with --kvfuzz-."""
    group = parser.getgroup("kvfuzz", "KV-cache planners under test")
    group.addoption(
        "--kvfuzz-target",
        metavar="T",
        help="planner that kvfuzz's property tests test: reference, vllm, vllm==X, vllm@PATH or "
        "module:factory (default: vllm if it is installed, else reference)",
    )
    group.addoption(
        "--kvfuzz-profile",
        metavar="P",
        default="dev",
        help="dev, ci, nightly or replay: how many mixes, and whether at random (default: dev)",
    )
    group.addoption(
        "--kvfuzz-database",
        metavar="WHERE",
        help="where failures are remembered: a folder or redis://HOST:PORT "
        "(default: .hypothesis/examples)",
    )


def _shards(config: pytest.Config) -> int:
    """Workers of this run: the same number on each of them and on the controller."""
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:
        return int(workerinput["workercount"])
    return int(getattr(config.option, "numprocesses", None) or 1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that uses `kvfuzz_shard` one run for each xdist worker.

    xdist spreads tests, not examples: without this one property keeps one
    core busy.
    """
    if "kvfuzz_shard" in metafunc.fixturenames:
        metafunc.parametrize("kvfuzz_shard", range(_shards(metafunc.config)), scope="session")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the target, if one was chosen."""
    target = config.getoption("--kvfuzz-target")
    return f"kvfuzz: target {target}" if target else None


def _give_up(config: pytest.Config, error: KvfuzzError) -> NoReturn:
    """End the run with the error's sentence and exit code.

    A worker of xdist must not end on its own, which xdist takes for a bug:
    there every test fails with the sentence, and the exit code is pytest's.
    """
    if hasattr(config, "workerinput"):
        pytest.fail(f"kvfuzz: {error}", pytrace=False)
    pytest.exit(f"kvfuzz: {error}", returncode=int(error.exit_code))


@pytest.fixture(scope="session")
def kvfuzz_session(request: pytest.FixtureRequest) -> Session:
    """The target of `--kvfuzz-target`, loaded in this process, on the surface `pack`."""
    from kvfuzz.engine.session import Session
    from kvfuzz.errors import KvfuzzError
    from kvfuzz.targets.load import load, prepare
    from kvfuzz.targets.uri import default_target

    # One process can hold one release; a second fixture request must not load again.
    stash = request.config.stash
    if _SESSION not in stash:
        uri = request.config.getoption("--kvfuzz-target") or default_target()
        try:
            stash[_SESSION] = Session(load(prepare(uri)), "pack")
        except KvfuzzError as error:
            _give_up(request.config, error)
    return stash[_SESSION]


@pytest.fixture
def kvfuzz_check(
    request: pytest.FixtureRequest, kvfuzz_session: Session, kvfuzz_shard: int
) -> Callable[[Invariant], None]:
    """A function that checks one invariant on random mixes, and fails with a minimal one.

    What the ledger knows of the target is passed over.
    """
    from hypothesis import given, seed

    from kvfuzz.engine.corpus import open_database
    from kvfuzz.errors import UsageError
    from kvfuzz.profiles import hypothesis_settings
    from kvfuzz.strategies import spec_mixes

    where = request.config.getoption("--kvfuzz-database")
    try:
        settings = hypothesis_settings(
            request.config.getoption("--kvfuzz-profile"), open_database(where) if where else None
        )
    except UsageError as error:
        _give_up(request.config, error)

    def check(rule: Invariant) -> None:
        def property_holds(scenario: Scenario) -> None:
            for violation in kvfuzz_session.judge(scenario):
                if violation.invariant == rule.id and not _expected(kvfuzz_session, violation):
                    violation.add_note(_as_case(kvfuzz_session, violation, scenario))
                    raise violation

        test = settings(given(spec_mixes(dialect=kvfuzz_session.target.dialect))(property_holds))
        if settings.derandomize:  # or each shard would draw the same examples
            test = seed(kvfuzz_shard)(test)
        test()

    return check


def _expected(session: Session, violation: Violation) -> bool:
    from kvfuzz.findings import fingerprint
    from kvfuzz.ledger import find_expected

    target = session.target
    digest = fingerprint(session.surface, violation)
    return find_expected(digest, target.uri, target.version) is not None


def _as_case(session: Session, violation: Violation, scenario: Scenario) -> str:
    """The scenario as a case file's text, to be pasted into one and replayed."""
    import msgspec

    from kvfuzz.cases import FORMAT
    from kvfuzz.specs import scenario_to_json

    case = {
        "format": FORMAT,
        "surface": session.surface,
        "invariant": violation.invariant,
        "scenario": scenario_to_json(scenario),
    }
    return f"As a case for `kvfuzz replay`: {msgspec.json.encode(case).decode()}"
