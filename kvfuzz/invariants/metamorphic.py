"""Rules over several calls of a planner: what must not change between them."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from math import gcd
from typing import Any

import msgspec

from kvfuzz.invariants.registry import Trial, Violation, answered, invariant, planned
from kvfuzz.outcomes import Crash, NotExpressible, Outcome, Plan, Refusal
from kvfuzz.specs import LayerSpec


def _ended_in_order(trial: Trial) -> bool:
    return type(trial.outcome) is not Crash and type(trial.outcome) is not NotExpressible


def describe(outcome: Outcome) -> str:
    """The outcome in a few words, for messages."""
    match outcome:
        case Plan(groups=None):
            return "None"
        case Plan(groups=groups):
            assert groups is not None
            return "groups " + " ".join("{" + ", ".join(g.layers) + "}" for g in groups)
        case Refusal(exception, message):
            return f"{exception}: {message}"
        case Crash(symptom, exception, function, message):
            return f"{symptom} {exception} in {function}: {message}"
        case _:
            return "not expressible"


class PureViolation(Violation):
    """A call changed its inputs."""

    invariant = "pure"


@invariant(
    PureViolation,
    claim="A call leaves its dict and the specs bit-equal.",
    source="Workers and scheduler plan from the same objects, and specs are frozen dataclasses.",
    applies_to="mixes that were answered or refused",
    surfaces=("pack", "groups", "config", "merge", "page"),
    severity="silent wrong plan",
    applies=_ended_in_order,
)
def pure(trial: Trial) -> None:
    """Judge the inputs after the call."""
    if trial.changed is not None:
        raise PureViolation(
            symptom="changed input",
            got=f"after the call {trial.changed}",
            expected="inputs as they were before it",
            layers=tuple(trial.pages),
        )


class DeterministicViolation(Violation):
    """The next call answers otherwise."""

    invariant = "deterministic"


@invariant(
    DeterministicViolation,
    claim="A second call on an equal mix gives an equal answer.",
    source="Each rank plans for itself, and all must come to the plan that the scheduler has.",
    applies_to="mixes that were answered or refused",
    surfaces=("pack", "groups", "config", "merge", "page"),
    severity="silent wrong plan",
    applies=_ended_in_order,
    calls_again=True,
)
def deterministic(trial: Trial) -> None:
    """Judge a second call."""
    second = trial.again(trial.scenario)
    if second != trial.outcome:
        raise answered_otherwise(describe(trial.outcome), describe(second), tuple(trial.pages))


def answered_otherwise(first: str, then: str, layers: tuple[str, ...]) -> DeterministicViolation:
    """The violation that two answers to equal mixes of these layers are."""
    return DeterministicViolation(
        symptom="second call differs",
        got=f"first {first}, then {then}",
        expected="the same answer twice",
        layers=layers,
    )


def _alike(trial: Trial, other: Outcome) -> bool:
    """Whether two plans are one, if layers of one spec may change places."""
    assert isinstance(trial.outcome, Plan)
    if not isinstance(other, Plan):
        return False
    if other.partition == trial.outcome.partition:
        return True
    specs = trial.scenario.specs()
    return _by_spec(trial.outcome, specs) == _by_spec(other, specs)


def _by_spec(plan: Plan, specs: Mapping[str, LayerSpec]) -> Counter[frozenset[Any]]:
    """The groups, each as how many layers of which spec it holds, with their counts."""
    return Counter(
        frozenset(Counter(specs.get(name) for name in group.layers).items())
        for group in plan.groups or ()
    )


class OrderFreeViolation(Violation):
    """Another order of the same layers is partitioned otherwise."""

    invariant = "order-free"


def _orders(trial: Trial) -> Iterator[list[int]]:
    """Orders to try: reversed, and mixed up by the mix itself so that replays agree.

    The search tries one of them a mix, all while it shrinks or replays.
    """
    count = len(trial.pages)
    number = zlib.crc32(repr(tuple(trial.pages.values())).encode())
    if trial.thorough or number % 2:
        yield [*reversed(range(count))]
    if trial.thorough or not number % 2:
        # A step that shares no factor with the count comes by each layer once.
        step = next(s for s in range(2 + number % 61, count + 64) if gcd(s, count) == 1)
        yield [(number + place * step) % count for place in range(count)]


@invariant(
    OrderFreeViolation,
    claim="A permuted dict gives the same partition, but for layers of one spec changing places.",
    source="Layer order is an accident of how a model's modules are registered.",
    applies_to="mixes that were answered, with two layers or more",
    surfaces=("pack", "groups"),
    severity="silent wrong plan",
    applies=lambda trial: answered(trial) and len(trial.pages) > 1,
    calls_again=True,
)
def order_free(trial: Trial) -> None:
    """Judge plans of the same layers in other orders."""
    assert isinstance(trial.outcome, Plan)
    for order in _orders(trial):
        permuted = trial.scenario.taking(order)
        other = trial.again(permuted)
        if type(other) is Crash:
            continue  # a crash breaks plan-or-refusal, and is found there
        if not _alike(trial, other):
            raise OrderFreeViolation(
                symptom="partition differs",
                got=(
                    f"{describe(trial.outcome)}; ordered {', '.join(permuted.specs())}: "
                    f"{describe(other)}"
                ),
                expected="the same partition",
                layers=tuple(trial.pages),
                groups=trial.outcome.groups or (),
            )


class SplitAgreesViolation(Violation):
    """A layer's geometry depends on how layers are split over ranks."""

    invariant = "split-agrees"


def _split(trial: Trial) -> bool:
    return len(set(trial.scenario.ranks)) > 1 and type(trial.outcome) is Plan


@invariant(
    SplitAgreesViolation,
    claim="Splitting layers over pipeline ranks changes no layer's planned spec or page.",
    source="One scheduler plans for all ranks; a layer's cache is the same wherever it runs.",
    applies_to="plans for two ranks or more",
    surfaces=("config",),
    severity="silent wrong plan",
    applies=_split,
    calls_again=True,
)
def split_agrees(trial: Trial) -> None:
    """Judge each layer by the plan for one rank."""
    config = trial.scenario.config.in_plenty()
    whole = trial.again(msgspec.structs.replace(trial.scenario, ranks=(), config=config))
    assert isinstance(trial.outcome, Plan)
    if not isinstance(whole, Plan):
        return  # pages that differ need no common pool while no rank has both
    here, there = _geometries(trial.outcome), _geometries(whole)
    for name, geometry in here.items():
        if there.get(name) != geometry:
            raise SplitAgreesViolation(
                symptom="otherwise on ranks",
                got=f"{name} planned as {geometry}",
                expected=f"as for one rank: {there.get(name)}",
                layers=tuple(trial.pages),
                groups=trial.outcome.groups or (),
            )


def _geometries(plan: Plan) -> dict[str, Any]:
    """Layer -> its planned spec and page."""
    return {
        name: (spec, page)
        for group in plan.groups or ()
        if group.terms is not None
        for name, spec, page in zip(group.layers, group.terms.planned, group.pages, strict=True)
    }


class OptimizedAgreesViolation(Violation):
    """Without assertions a plan is another, or none."""

    invariant = "optimized-agrees"


@invariant(
    OptimizedAgreesViolation,
    claim="A mix that is planned is planned the same under python -O, which drops assertions.",
    source="An assertion finds a mistake; a decision that rests on one is gone under -O.",
    applies_to="plans of vLLM's own functions",
    surfaces=("groups", "config"),
    severity="silent wrong plan",
    applies=planned,
    calls_again=True,
)
def optimized_agrees(trial: Trial) -> None:
    """Judge the plan that the same functions make without their assertions."""
    assert isinstance(trial.outcome, Plan)
    other = trial.optimized(trial.scenario)
    if other is None or other == trial.outcome:
        return
    if any(trial.again(trial.scenario) != trial.outcome for _ in range(2)):
        return  # by turns, maybe: `deterministic` finds that
    geometries = _geometries(other) if isinstance(other, Plan) else {}
    changed = [n for n, g in _geometries(trial.outcome).items() if geometries.get(n) != g]
    raise OptimizedAgreesViolation(
        symptom="planned otherwise" if isinstance(other, Plan) else "not planned",
        got=f"{describe(trial.outcome)}; under -O {describe(other)}",
        expected="the same plan",
        layers=tuple(changed),
        groups=trial.outcome.groups or (),
    )
