"""Rules over how a planner ends: with a plan or with a reason."""

from __future__ import annotations

import re
from math import lcm

from kvfuzz.invariants.registry import Trial, Violation, invariant
from kvfuzz.outcomes import Crash, NotExpressible, Refusal
from kvfuzz.specs import spec_fields

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
SETTING = re.compile(r"--[a-z]+|\b[a-z]+(?:_[a-z]+)+\b|\b[A-Z]+(?:_[A-Z]+)+\b")


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
    if SETTING.search(message) or any(name in message for name in trial.pages):
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


#: Kinds whose rows a kernel walks one after the other: a page of theirs holds
#: whole rows, so that a larger one is one of more tokens.
_ROWS = ("mla", "circular_buffer")
#: A kind that has a pool page to itself, cut to whatever size that is.
_APART = "hidden_state_cache"
#: Kinds that differ in how much context they keep, and the fields that say how much.
_CONTEXT_KINDS = ("full_attention", "sliding_window", "chunked_local_attention")
_CONTEXT = ("sliding_window", "attention_chunk_size", "block_size")
#: A page that is larger than this many of the largest is none that a planner should have found.
_MOST = 4


def _common_page(trial: Trial) -> int | None:
    """A page that all layers can have, in bytes: by more tokens or by padding; None if none can."""
    kinds = {name: spec.kind for name, spec in trial.scenario.mix if spec.kind != _APART}
    largest = max((trial.pages[name] for name in kinds), default=0)
    step = lcm(
        *(trial.pages[name] for name, kind in kinds.items() if any(word in kind for word in _ROWS))
    )
    page = step * -(-largest // step)
    return page if 0 < page <= _MOST * largest else None


def _differ_in_context_alone(trial: Trial) -> bool:
    """Whether layers differ in nothing but how much context they keep, and tokens a block.

    Then all can be allocated as those that keep everything are.
    """
    rest = {
        tuple(field for field in spec_fields(spec).items() if field[0] not in _CONTEXT)
        for _, spec in trial.scenario.mix
        if spec.kind in _CONTEXT_KINDS
    }
    kinds = {spec.kind for _, spec in trial.scenario.mix}
    return len(rest) == 1 and kinds <= set(_CONTEXT_KINDS) and _CONTEXT_KINDS[0] in kinds


def _has_a_plan(trial: Trial) -> bool:
    if trial.scenario.config.hybrid_manager:
        return _common_page(trial) is not None
    return _differ_in_context_alone(trial)


@invariant(
    NecessaryRefusalViolation,
    claim=(
        "A mix is refused only if its layers differ in more than the context that they keep and "
        "no page that is a whole number of each MLA layer's page holds every other layer's."
    ),
    source="Kernels read a padded page through its stride, all but those that walk rows of MLA.",
    applies_to="refusals of mixes that have a plan by these two",
    surfaces=("groups",),
    severity="needless refusal",
    applies=lambda trial: type(trial.outcome) is Refusal and _has_a_plan(trial),
)
def necessary_refusal(trial: Trial) -> None:
    """Any refusal that is judged is one too many."""
    assert isinstance(trial.outcome, Refusal)
    raise NecessaryRefusalViolation(
        symptom="refused",
        got=f"{trial.outcome.exception}: {trial.outcome.message}",
        expected=(
            f"a plan with every page of {_common_page(trial)} bytes"
            if trial.scenario.config.hybrid_manager
            else "a plan in which every layer keeps its whole context"
        ),
        layers=tuple(trial.pages),
        place=(trial.outcome.exception, "", trial.outcome.message),
    )
