"""Each invariant can fire: on a planner that is wrong in just its way, and on no other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest

from kvfuzz.engine.session import Session, Tally
from kvfuzz.invariants import all_invariants, invariants_of
from kvfuzz.reference import group_and_unify_kv_cache_specs
from kvfuzz.strategies.choices import SeededChoices
from kvfuzz.strategies.spaces import space_of
from kvfuzz.targets.base import NeutralPlanner, NeutralTarget, Target
from tests.sabotage import engine_groups, engine_memory, engine_planner, merging, paging, planners
from tests.sabotage.engine_planner import Caught

ENGINES = engine_groups.SABOTAGED | engine_memory.SABOTAGED


def _tally(target: Target, surface: str, mixes: int, seed: int) -> Tally:
    session = Session(target, surface)
    space = space_of(surface, target.dialect)
    tally = Tally()
    for number, (_, mix) in enumerate(islice(space.stream(SeededChoices(seed)), mixes)):
        session.judge(mix, tally, number)
    return tally


def _packer(planner: NeutralPlanner) -> Target:
    return NeutralTarget("sabotaged", planner, "0")


def _violated(tally: Tally) -> set[str]:
    return {name for name, count in tally.violated.items() if count}


def test_every_invariant_has_a_sabotaged_planner():
    engines = {(c.surface, c.invariant) for all_ in ENGINES.values() for c in all_}
    packers = {("pack", invariant) for invariant in planners.SABOTAGED.values()}
    merges = {("merge", invariant) for invariant in merging.SABOTAGED.values()}
    pages = {("page", invariant) for _, invariant in paging.SABOTAGED.values()}
    rules = {(surface, rule.id) for rule in all_invariants() for surface in rule.surfaces}
    assert engines | packers | merges | pages == rules


@pytest.mark.parametrize(("factory", "invariant"), planners.SABOTAGED.items())
def test_one_invariant_alone_catches_a_sabotaged_planner(factory: str, invariant: str):
    tally = _tally(_packer(getattr(planners, factory)()), "pack", 2_000, seed=1)
    assert _violated(tally) == {invariant}


@pytest.mark.parametrize("merge", merging.SABOTAGED, ids=lambda merge: merge.__name__)
def test_one_invariant_alone_catches_a_sabotaged_merge(merge: merging.Merge):
    tally = _tally(merging.target_of(merge), "merge", 2_000, seed=1)
    assert _violated(tally) == {merging.SABOTAGED[merge]}


@pytest.mark.parametrize(("make", "invariant"), paging.SABOTAGED.values(), ids=paging.SABOTAGED)
def test_one_invariant_alone_catches_a_sabotaged_page(make: Callable[[], Target], invariant: str):
    tally = _tally(make(), "page", 3_000, seed=1)
    assert _violated(tally) == {invariant}


@pytest.mark.parametrize(
    ("planner", "caught"),
    [(planner, caught) for planner, all_ in ENGINES.items() for caught in all_],
    ids=lambda value: value.surface if isinstance(value, Caught) else value.__name__,
)
def test_one_invariant_alone_catches_a_sabotaged_engine(
    planner: type[engine_planner.Planner], caught: Caught
):
    target = engine_planner.target_of(planner)
    session = Session(target, caught.surface)
    tally = Tally()
    scenarios = space_of(caught.surface, target.dialect).stream(SeededChoices(1))
    violations = [
        (violation.invariant, violation.symptom)
        for number, (_, scenario) in enumerate(islice(scenarios, caught.scenarios))
        for violation in session.judge(scenario, tally, number)
    ]
    assert set(violations) == {(caught.invariant, caught.symptom)}
    assert len(violations) > 1


def _nothing_broken(tally: Tally, surface: str, mixes: int) -> None:
    assert not tally.violated
    assert tally.mixes == mixes
    # Not vacuous: every rule judged its share of these mixes.
    assert set(tally.checked) == {rule.id for rule in invariants_of(surface)}
    assert min(tally.checked.values()) > 100


@pytest.mark.parametrize("seed", range(10))
def test_the_reference_breaks_nothing(seed: int):
    packer = _packer(group_and_unify_kv_cache_specs)
    _nothing_broken(_tally(packer, "pack", 5_000, seed), "pack", 5_000)


@pytest.mark.parametrize("seed", range(3))
def test_a_right_merge_breaks_nothing(seed: int):
    tally = _tally(merging.target_of(), "merge", 2_000, seed)
    _nothing_broken(tally, "merge", 2_000)
    assert tally.outcomes == {"plan": 2_000}


@pytest.mark.parametrize("seed", range(3))
def test_a_right_page_breaks_nothing(seed: int):
    tally = _tally(paging.target_of(), "page", 3_000, seed)
    _nothing_broken(tally, "page", 3_000)
    assert tally.outcomes == {"plan": 3_000}


@pytest.mark.parametrize("surface", ["groups", "config"])
def test_a_right_engine_breaks_nothing(surface: str):
    tally = _tally(engine_planner.target_of(), surface, 3_000, seed=2)
    assert not tally.violated
    assert set(tally.outcomes) == {"plan", "refusal", "not-expressible"}
    assert tally.outcomes["plan"] > 1_500
    # Each rule judged its share, but for the one whose every judgement is a violation.
    rules = {rule.id for rule in invariants_of(surface)} - {"necessary-refusal"}
    assert set(tally.checked) == rules


def test_a_right_engine_of_older_tensors_breaks_nothing():
    tally = _tally(engine_planner.target_of(engine_planner.OlderPlanner), "config", 500, seed=3)
    assert not tally.violated
    assert tally.checked["tensors-disjoint"] > 250
