"""Each invariant can fire: on a planner that is wrong in just its way, and on no other."""

from __future__ import annotations

from itertools import islice

import pytest

from kvfuzz.engine.session import Session, Tally
from kvfuzz.invariants import all_invariants
from kvfuzz.reference import group_and_unify_kv_cache_specs
from kvfuzz.strategies.builders import stream
from kvfuzz.strategies.choices import SeededChoices
from kvfuzz.targets.base import NeutralPlanner, NeutralTarget
from tests.sabotage import planners


def _tally(planner: NeutralPlanner, mixes: int, seed: int) -> Tally:
    session = Session(NeutralTarget("sabotaged", planner, "0"), "pack")
    tally = Tally()
    for number, (_, mix) in enumerate(islice(stream(SeededChoices(seed)), mixes)):
        session.judge(mix, tally, number)
    return tally


def test_every_invariant_has_a_sabotaged_planner():
    assert set(planners.SABOTAGED.values()) == {rule.id for rule in all_invariants()}


@pytest.mark.parametrize(("factory", "invariant"), planners.SABOTAGED.items())
def test_one_invariant_alone_catches_a_sabotaged_planner(factory: str, invariant: str):
    tally = _tally(getattr(planners, factory)(), 2_000, seed=1)
    assert {name for name, count in tally.violated.items() if count} == {invariant}


@pytest.mark.parametrize("seed", range(10))
def test_the_reference_breaks_nothing(seed: int):
    tally = _tally(group_and_unify_kv_cache_specs, 5_000, seed)
    assert not tally.violated
    assert tally.mixes == 5_000
    # Not vacuous: every rule judged its share of these mixes.
    assert set(tally.checked) == {rule.id for rule in all_invariants()}
    assert min(tally.checked.values()) > 100
