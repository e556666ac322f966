"""Four ways to search for a mix that breaks a planner; each says how long its search took.

A search takes a mutant, the number of a seed and a limit in seconds. It returns the seconds
from its first input to the one that breaks the planner, or None if the limit came first. kvfuzz
judges by all of its rules, the others by `mutants.broken`; for all of them a crash counts.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kvfuzz.engine.calls import Watch
from kvfuzz.engine.messages import FuzzJob, Heartbeat, Message, Violated
from kvfuzz.engine.places import Place
from kvfuzz.engine.scout import Scout
from kvfuzz.engine.session import Session
from kvfuzz.specs import LayerSpec, MLAAttentionSpec, Scenario, SlidingWindowMLASpec
from kvfuzz.targets.base import NeutralTarget
from kvfuzz.targets.load import prepare
from tests.bench.mutants import Mix, Mutant, fails
from tests.bench.random_mixes import MOST_LAYERS, VALUES, WINDOWS, padded, random_mix

ROOT = Path(__file__).parents[2]


class _Ended(BaseException):
    """The search is over: found, or out of time."""


class Kvfuzz:
    """The scout on one core, as a worker of `kvfuzz run` runs it, in this process."""

    def __init__(self, mutant: Mutant, number: int) -> None:
        self._watch = Watch()
        target = NeutralTarget(mutant.name, mutant.planner, "0")
        session = Session(target, "pack", watch=self._watch)
        self._file, heartbeat = Heartbeat.create()
        self._scout = Scout(session, number, heartbeat, self._send)
        self._number = number
        self._violated: Violated | None = None

    def _send(self, message: Message) -> None:
        if isinstance(message, Violated):
            self._violated = message
            raise _Ended

    def search(self, seconds: float) -> float | None:
        with tempfile.TemporaryDirectory() as claims:
            job = FuzzJob(
                target=prepare("reference"),  # read by the worker alone
                surface="pack",
                seed=self._number,
                start=Place(0, 0),
                stride=1,
                deadline=time.monotonic() + seconds,
                mixes=None,
                witnesses={},
                done=[],
                claims=claims,
            )
            self._watch.start()
            start = time.perf_counter()
            try:
                self._scout.search(job)
            except _Ended:
                return time.perf_counter() - start
            finally:
                self._watch.stop()
        return None

    def shrunk(self) -> Scenario | None:
        """What was found, shrunk as `kvfuzz run` does; None if nothing was."""
        if self._violated is None:
            return None
        place, digest = self._violated.place, self._violated.finding.fingerprint
        found = self._scout.shrink(place, digest)
        assert found is not None
        return found.scenario


def plain_random(mutant: Mutant, number: int, seconds: float) -> float | None:
    """`random.choice` of everything."""
    source = random.Random(number)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        if fails(mutant.planner, random_mix(source.choice)):
            return time.perf_counter() - start
    return None


def _dictionaries() -> st.SearchStrategy[Mix]:
    """What one writes first: names to specs, every layer and field by itself."""
    fields = {name: st.sampled_from(values) for name, values in VALUES.items()}
    plain: st.SearchStrategy[LayerSpec] = st.builds(MLAAttentionSpec, **fields) | st.builds(
        SlidingWindowMLASpec, **fields, sliding_window=st.sampled_from(WINDOWS)
    )
    names = st.integers(0, 63).map("layers.{}".format)
    return st.dictionaries(names, plain | plain.map(padded), min_size=1, max_size=MOST_LAYERS)


def naive_hypothesis(mutant: Mutant, number: int, seconds: float) -> float | None:
    """`@given` a dictionary, without shrinking."""
    start = 0.0
    spent: float | None = None

    @seed(number)
    @settings(
        database=None,
        deadline=None,
        max_examples=10**8,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_dictionaries())
    def search(mix: Mix) -> None:
        nonlocal start, spent
        start = start or time.perf_counter()
        if fails(mutant.planner, mix):
            spent = time.perf_counter() - start
            raise _Ended
        if time.perf_counter() - start > seconds:
            raise _Ended

    try:
        search()
    except _Ended:
        return spent
    raise AssertionError("Hypothesis stopped by itself")


def guided_by_coverage(mutant: Mutant, number: int, seconds: float) -> float | None:
    """atheris, in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.atheris_search"]
    done = subprocess.run(
        [*command, mutant.name, str(number), str(seconds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"atheris ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return float(done.stdout) if done.stdout else None
