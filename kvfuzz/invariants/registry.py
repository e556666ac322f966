"""What an invariant is, what it is given, and where all of them are registered.

An invariant judges one trial: a scenario, the outcome it had, and the means
to call the planner again. It knows no target and no release.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias

from kvfuzz.errors import UsageError
from kvfuzz.outcomes import Group, Outcome, Plan, Rank
from kvfuzz.specs import Scenario


class Trial(Protocol):
    """One call of a planner, as an invariant sees it.

    Attributes:
        surface: The surface that was asked.
        scenario: What was asked.
        outcome: What came of it.
        pages: Layer name -> page size in bytes, by the target's page rules.
        changed: What the call changed in its inputs, in words, or None.
        thorough: Whether to spend further calls freely: true while a failure
            is shrunk or replayed, false in the search.
    """

    surface: str
    scenario: Scenario
    outcome: Outcome
    pages: Mapping[str, int]
    changed: str | None
    thorough: bool

    def again(self, scenario: Scenario) -> Outcome:
        """The outcome of a further call, on `scenario`."""
        ...

    def optimized(self, scenario: Scenario) -> Outcome | None:
        """The same as `python -O` has it; None if the target cannot be called so."""
        ...


class Violation(AssertionError):
    """One trial broke one invariant.

    Each invariant has a subclass of its own: Hypothesis tells failures apart
    by exception type and line.

    Attributes:
        invariant: Id of the invariant.
        symptom: Which way it was broken, in a few fixed words; with `place`
            this is what tells one bug from another.
        got: What the planner did.
        expected: What it should have done.
        layers: Names of the layers concerned.
        groups: The groups that the planner made, if it made any.
        place: For a crash: exception, function and message.
    """

    invariant: ClassVar[str] = ""

    def __init__(
        self,
        *,
        symptom: str,
        got: str,
        expected: str,
        layers: tuple[str, ...] = (),
        groups: tuple[Group, ...] = (),
        place: tuple[str, str, str] | None = None,
    ) -> None:
        self.symptom = symptom
        self.got = got
        self.expected = expected
        self.layers = layers
        self.groups = groups
        self.place = place
        super().__init__(got)

    def __str__(self) -> str:
        """Claim, got, expected, layers and groups, a line each."""
        lines = [
            f"{self.invariant}: {get_invariant(self.invariant).claim}",
            f"  got:      {self.got}",
            f"  expected: {self.expected}",
        ]
        if self.layers:
            lines.append(f"  layers:   {', '.join(self.layers)}")
        for number, group in enumerate(self.groups, 1):
            members = ", ".join(
                f"{name} ({page} B)" for name, page in zip(group.layers, group.pages, strict=True)
            )
            lines.append(f"  group {number}:  {members}")
        return "\n".join(lines)


Check = Callable[[Trial], None]

#: What a broken rule costs who runs the planner, worst first.
Severity: TypeAlias = Literal["silent wrong plan", "crash", "needless refusal", "waste"]


@dataclass(frozen=True)
class Invariant:
    """A registered rule.

    Attributes:
        id: Its name, as in reports and file names.
        claim: What holds of every correct planner, in one sentence.
        source: Where the rule comes from.
        applies_to: What it judges, in words.
        surfaces: Surfaces that it judges.
        severity: What a violation costs.
        applies: Whether it judges a trial; only those count as checked.
        check: Raises `violation` if the trial breaks the rule.
        violation: Its exception class.
        calls_again: Whether `check` makes further calls of the planner, so
            that the search runs it on a fixed share of the mixes only.
    """

    id: str
    claim: str
    source: str
    applies_to: str
    surfaces: tuple[str, ...]
    severity: Severity
    applies: Callable[[Trial], bool]
    check: Check
    violation: type[Violation]
    calls_again: bool


_REGISTRY: dict[str, Invariant] = {}


def invariant(
    violation: type[Violation],
    *,
    claim: str,
    source: str,
    applies_to: str,
    surfaces: tuple[str, ...],
    severity: Severity,
    applies: Callable[[Trial], bool],
    calls_again: bool = False,
) -> Callable[[Check], Check]:
    """Register the decorated check under its exception class's `invariant` id.

    Raises:
        ValueError: The id is empty or taken, or the claim is not one sentence.
    """

    def register(check: Check) -> Check:
        name = violation.invariant
        if not name or name in _REGISTRY:
            raise ValueError(f"invariant id {name!r} is empty or taken")
        if not claim.endswith(".") or ". " in claim:
            raise ValueError(f"the claim of {name} must be one sentence")
        _REGISTRY[name] = Invariant(
            id=name,
            claim=claim,
            source=source,
            applies_to=applies_to,
            surfaces=surfaces,
            severity=severity,
            applies=applies,
            check=check,
            violation=violation,
            calls_again=calls_again,
        )
        return check

    return register


def all_invariants() -> tuple[Invariant, ...]:
    """Every registered invariant, in order of registration."""
    return tuple(_REGISTRY.values())


def invariants_of(surface: str) -> tuple[Invariant, ...]:
    """The invariants that judge `surface`."""
    return tuple(rule for rule in _REGISTRY.values() if surface in rule.surfaces)


def get_invariant(name: str) -> Invariant:
    """The invariant of that id.

    Raises:
        UsageError: There is none; the message names the nearest.
    """
    try:
        return _REGISTRY[name]
    except KeyError:
        near = difflib.get_close_matches(name, _REGISTRY, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(
            f"No invariant is called {name!r}.{hint} `kvfuzz list invariants` shows them all."
        ) from None


def planned(trial: Trial) -> bool:
    """Whether the planner made groups."""
    return type(trial.outcome) is Plan and trial.outcome.groups is not None


def answered(trial: Trial) -> bool:
    """Whether the planner returned at all: groups, or None."""
    return type(trial.outcome) is Plan


def groups_of(trial: Trial) -> tuple[Group, ...]:
    """The groups of a trial that was `planned`."""
    assert isinstance(trial.outcome, Plan)
    assert trial.outcome.groups is not None
    return trial.outcome.groups


def ranks_of(trial: Trial) -> tuple[Rank, ...]:
    """What each rank allocates, of a trial that was answered; empty if the surface plans none."""
    assert isinstance(trial.outcome, Plan)
    return trial.outcome.ranks
