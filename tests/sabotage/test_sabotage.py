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
from tests.sabotage import merging, paging, planners


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
    caught = {*planners.SABOTAGED.values(), *merging.SABOTAGED.values()}
    caught |= {invariant for _, invariant in paging.SABOTAGED.values()}
    assert caught == {rule.id for rule in all_invariants()}


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
