"""Rules over several calls of a planner: what must not change between them."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

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
    """A call changed its inputs, or the next call answers otherwise."""

    invariant = "pure"


@invariant(
    PureViolation,
    claim="A call leaves its dict and the specs bit-equal, and a second call gives an equal plan.",
    source="Workers and scheduler plan from the same objects, and specs are frozen dataclasses.",
    applies_to="mixes that were answered or refused",
    surfaces=("pack",),
    applies=_ended_in_order,
    calls_again=True,
)
def pure(trial: Trial) -> None:
    """Judge the inputs after the call, then a second call."""
    if trial.changed is not None:
        raise PureViolation(
            symptom="changed input",
            got=f"after the call {trial.changed}",
            expected="inputs as they were before it",
            layers=tuple(trial.pages),
        )
    second = trial.again(trial.scenario.specs())
    if second != trial.outcome:
        raise PureViolation(
            symptom="second call differs",
            got=f"first {describe(trial.outcome)}, then {describe(second)}",
            expected="the same answer twice",
            layers=tuple(trial.pages),
        )


class OrderFreeViolation(Violation):
    """Another order of the same layers is partitioned otherwise."""

    invariant = "order-free"


def _orders(trial: Trial) -> Iterator[tuple[str, ...]]:
    """Orders to try: reversed, and shuffled by the mix itself so that replays agree.

    The search tries one of them a mix, all while it shrinks or replays.
    """
    names = list(trial.pages)
    seed = zlib.crc32(",".join(f"{n}{p}" for n, p in trial.pages.items()).encode())
    shuffled = names.copy()
    random.Random(seed).shuffle(shuffled)
    if trial.thorough or seed % 2:
        yield tuple(reversed(names))
    if trial.thorough or not seed % 2:
        yield tuple(shuffled)


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
