"""Shrinking a failure that the scout recorded, with Hypothesis."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.errors import HypothesisException, HypothesisWarning
from hypothesis.strategies import SearchStrategy

from kvfuzz.engine.replay_backend import BACKEND, ReplayProvider
from kvfuzz.invariants import Violation
from kvfuzz.specs import Scenario


class _OutOfTime(BaseException):
    """Ends a shrink at its deadline; Hypothesis lets a BaseException through."""


def shrink(
    recorded: Sequence[int],
    mixes: SearchStrategy[Scenario],
    broken: Callable[[Scenario], Violation | None],
    *,
    seconds: float,
) -> tuple[Scenario, Violation] | None:
    """The smallest scenario that Hypothesis finds for a recorded failure.

    Args:
        recorded: The choices from which `mixes` built the failing scenario.
        mixes: The strategy that drew it.
        broken: The violation sought, if the scenario still has it.
        seconds: Time after which the best so far will do.

    Returns:
        The scenario and its violation, or None if the failure does not come
        back when its choices are replayed.
    """
    best: tuple[Scenario, Violation] | None = None
    deadline = time.monotonic() + seconds

    @settings(
        backend=BACKEND,
        database=None,
        derandomize=True,  # the same failure is shrunk to the same scenario
        deadline=None,
        max_examples=2,  # the simplest mix, which Hypothesis always tries, then the recorded one
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(mixes)
    def attempt(scenario: Scenario) -> None:
        nonlocal best
        if time.monotonic() > deadline and best is not None:
            raise _OutOfTime
        violation = broken(scenario)
        if violation is not None:
            # Hypothesis keeps what is simpler in its own order of choices and
            # ends by running the simplest again, so the last one is it. If
            # time runs out, the one with the fewest layers is.
            if best is None or len(scenario) <= len(best[0]):
                best = scenario, violation
            raise violation

    ReplayProvider.recorded = recorded
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)
            attempt()
    except (Violation, _OutOfTime, HypothesisException):
        pass  # `best` says what was found; a flaky failure is one of these
    return best
