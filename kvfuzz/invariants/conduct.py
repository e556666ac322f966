"""Rules over how a planner ends: with a plan or with a reason."""

from __future__ import annotations

from kvfuzz.invariants.registry import Trial, Violation, invariant
from kvfuzz.outcomes import Crash, NotExpressible

_ENDINGS = {
    "exception": "",
    "time-out": "no answer within the time limit",
    "died": "the death of the process",
    "memory": "memory beyond the limit",
}


class PlanOrRefusalViolation(Violation):
    """The planner neither planned nor said what is wrong."""

    invariant = "plan-or-refusal"


@invariant(
    PlanOrRefusalViolation,
    claim=(
        "For any valid mix the planner answers, or raises a ValueError or NotImplementedError "
        "that says what is wrong."
    ),
    source="A bare assertion or a hang in engine start-up tells a user nothing to act on.",
    applies_to="every mix that the target can be asked about",
    surfaces=("pack", "merge"),
    applies=lambda trial: type(trial.outcome) is not NotExpressible,
)
def plan_or_refusal(trial: Trial) -> None:
    """Judge the way the call ended."""
    outcome = trial.outcome
    if type(outcome) is Crash:
        raise crash_violation(outcome, tuple(trial.pages))


def crash_violation(crash: Crash, layers: tuple[str, ...]) -> PlanOrRefusalViolation:
    """The violation that a crash on a mix of these layers is."""
    raised = f"{crash.exception} in {crash.function or 'the planner'}: {crash.message}"
    ending = _ENDINGS[crash.symptom]
    return PlanOrRefusalViolation(
        symptom=crash.symptom,
        got=raised if crash.symptom == "exception" else f"{ending} {crash.exception}".rstrip(),
        expected="a plan, None, or an error that says what is wrong",
        layers=layers,
        place=(crash.exception, crash.function, crash.message),
    )
