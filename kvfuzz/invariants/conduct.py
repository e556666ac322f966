"""Rules over how a planner ends: with a plan or with a reason."""

from __future__ import annotations

import re

from kvfuzz.invariants.registry import Trial, Violation, invariant
from kvfuzz.outcomes import Crash, NotExpressible, Refusal

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
    surfaces=("pack", "groups", "config", "merge", "page"),
    severity="crash",
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


class RefusalSaysWhyViolation(Violation):
    """A refusal names nothing that a user could look at or change."""

    invariant = "refusal-says-why"


#: A name of a setting or field: words joined by underscores or dashes, or in capitals.
_SETTING = re.compile(r"--?[a-z]+|\b[a-z]+(?:_[a-z]+)+\b|\b[A-Z]+(?:_[A-Z]+)+\b")


@invariant(
    RefusalSaysWhyViolation,
    claim="A refusal names a layer, a setting or a field.",
    source="People who asked in threads what to change had been told neither.",
    applies_to="refusals",
    surfaces=("groups", "config"),
    severity="needless refusal",
    applies=lambda trial: type(trial.outcome) is Refusal,
)
def refusal_says_why(trial: Trial) -> None:
    """Judge the message."""
    assert isinstance(trial.outcome, Refusal)
    message = trial.outcome.message
    if _SETTING.search(message) or any(name in message for name in trial.pages):
        return
    raise RefusalSaysWhyViolation(
        symptom="names nothing",
        got=f"{trial.outcome.exception}: {message}",
        expected="the layer, the setting or the field that is in the way",
        layers=tuple(trial.pages),
        place=(trial.outcome.exception, "", message),
    )


class NecessaryRefusalViolation(Violation):
    """A mix was refused that has a plan."""

    invariant = "necessary-refusal"


#: Kinds whose rows a kernel walks one after the other, so that padding a page
#: to any size would break its stride.
_ROWS = ("mla", "circular_buffer")
#: A kind that has a pool page to itself, cut to whatever size that is.
_APART = "hidden_state_cache"


def _padding_is_legal(trial: Trial) -> bool:
    """Whether every page can be made as large as the largest, by more tokens or by padding."""
    kinds = {name: spec.kind for name, spec in trial.scenario.mix if spec.kind != _APART}
    largest = max((trial.pages[name] for name in kinds), default=0)
    return all(
        not any(word in kind for word in _ROWS) or largest % trial.pages[name] == 0
        for name, kind in kinds.items()
    )


@invariant(
    NecessaryRefusalViolation,
    claim="A mix is refused only if padding every page to the largest makes no legal plan either.",
    source="Kernels read a padded page through its stride, all but those that walk rows of MLA.",
    applies_to="refusals of a planner that keeps kinds apart",
    surfaces=("groups",),
    severity="needless refusal",
    applies=lambda trial: (
        type(trial.outcome) is Refusal
        and trial.scenario.config.hybrid_manager
        and _padding_is_legal(trial)
    ),
)
def necessary_refusal(trial: Trial) -> None:
    """Any refusal that is judged is one too many."""
    assert isinstance(trial.outcome, Refusal)
    raise NecessaryRefusalViolation(
        symptom="refused",
        got=f"{trial.outcome.exception}: {trial.outcome.message}",
        expected=f"a plan with every page of {max(trial.pages.values())} bytes",
        layers=tuple(trial.pages),
        place=(trial.outcome.exception, "", trial.outcome.message),
    )
