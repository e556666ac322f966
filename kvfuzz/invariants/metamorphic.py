"""Rules over several calls of a planner: what must not change between them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from math import gcd

from kvfuzz.invariants.registry import Trial, Violation, answered, invariant
from kvfuzz.outcomes import Crash, NotExpressible, Outcome, Plan, Refusal


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
    surfaces=("pack", "merge"),
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
    surfaces=("pack", "merge"),
    applies=_ended_in_order,
    calls_again=True,
)
def deterministic(trial: Trial) -> None:
    """Judge a second call."""
    second = trial.again(trial.scenario.specs())
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


class OrderFreeViolation(Violation):
    """Another order of the same layers is partitioned otherwise."""

    invariant = "order-free"


def _orders(trial: Trial) -> Iterator[tuple[str, ...]]:
    """Orders to try: reversed, and mixed up by the mix itself so that replays agree.

    The search tries one of them a mix, all while it shrinks or replays.
    """
    names = tuple(trial.pages)
    number = zlib.crc32(repr(tuple(trial.pages.values())).encode())
    if trial.thorough or number % 2:
        yield names[::-1]
    if trial.thorough or not number % 2:
        # A step that shares no factor with the count comes by each layer once.
        count = len(names)
        step = next(s for s in range(2 + number % 61, count + 64) if gcd(s, count) == 1)
        yield tuple(names[(number + place * step) % count] for place in range(count))


@invariant(
    OrderFreeViolation,
    claim="A permuted dict gives the same partition.",
    source="Layer order is an accident of how a model's modules are registered.",
    applies_to="mixes that were answered, with two layers or more",
    surfaces=("pack",),
    applies=lambda trial: answered(trial) and len(trial.pages) > 1,
    calls_again=True,
)
def order_free(trial: Trial) -> None:
    """Judge plans of the same layers in other orders."""
    assert isinstance(trial.outcome, Plan)
    specs = trial.scenario.specs()
    for order in _orders(trial):
        other = trial.again({name: specs[name] for name in order})
        if type(other) is Crash:
            continue  # a crash breaks plan-or-refusal, and is found there
        if not isinstance(other, Plan) or other.partition != trial.outcome.partition:
            raise OrderFreeViolation(
                symptom="partition differs",
                got=f"{describe(trial.outcome)}; ordered {', '.join(order)}: {describe(other)}",
                expected="the same partition",
                layers=tuple(trial.pages),
                groups=trial.outcome.groups or (),
            )
