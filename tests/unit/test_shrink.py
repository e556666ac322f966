"""A recorded failure goes through Hypothesis's shrinker; fails loudly if its interface changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfuzz.engine.shrink import shrink
from kvfuzz.invariants import Violation
from kvfuzz.invariants.grouping import PartitionViolation
from kvfuzz.specs import Scenario, SlidingWindowMLASpec
from kvfuzz.strategies import spec_mixes
from kvfuzz.strategies.builders import build_mix
from kvfuzz.strategies.choices import SeededChoices

Broken = Callable[[Scenario], Violation | None]


def _broken(condition: Callable[[Scenario], bool]) -> Broken:
    def broken(scenario: Scenario) -> Violation | None:
        if condition(scenario):
            return PartitionViolation(symptom="lost", got="", expected="")
        return None

    return broken


def _first(broken: Broken, seed: int) -> list[int]:
    """The choices of the first mix of a seed that is broken."""
    for number in range(20_000):
        choices = SeededChoices(seed, number)
        choices.record()
        if broken(build_mix(choices.choose)) is not None:
            return choices.recorded
    raise AssertionError("no mix of this seed is broken")


def _windows(scenario: Scenario) -> int:
    return sum(isinstance(spec, SlidingWindowMLASpec) for _, spec in scenario)


@pytest.mark.parametrize("seed", range(3))
def test_two_kinds_of_one_page_size_shrink_to_two_layers(seed: int):
    def condition(scenario: Scenario) -> bool:
        return 0 < _windows(scenario) < len(scenario)

    broken = _broken(condition)
    found = shrink(_first(broken, seed), spec_mixes(), broken, seconds=60)
    assert found is not None
    assert (len(found[0]), _windows(found[0])) == (2, 1)


@pytest.mark.parametrize("seed", range(3))
def test_twenty_layers_and_two_kinds_shrink_to_twenty_layers(seed: int):
    def condition(scenario: Scenario) -> bool:
        return len(scenario) >= 20 and 0 < _windows(scenario) < len(scenario)

    broken = _broken(condition)
    found = shrink(_first(broken, seed), spec_mixes(), broken, seconds=60)
    assert found is not None
    assert len(found[0]) == 20
    # Two specs in the simplest pattern that holds both.
    assert len({spec for _, spec in found[0]}) == 2


def test_a_failure_that_does_not_come_back_is_none():
    broken = _broken(lambda scenario: False)
    assert shrink([1, 2, 3], spec_mixes(), broken, seconds=60) is None


def test_time_running_out_keeps_the_smallest_so_far():
    broken = _broken(lambda scenario: len(scenario) >= 20)
    recorded = _first(broken, seed=5)
    found = shrink(recorded, spec_mixes(), broken, seconds=0)
    assert found is not None
    assert len(found[0]) >= 20
