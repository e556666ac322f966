"""Asking one surface of one loaded target about scenarios, and judging what comes.

Runs in the target's own process. It owns the calls; where scenarios come from
and where violations go is the business of its callers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from kvfuzz.engine.calls import (
    DEFAULT_LIMITS,
    CallStopped,
    Limits,
    Watch,
    classify,
    unusable_answer,
)
from kvfuzz.engine.isolate import isolated
from kvfuzz.engine.shapes import SHAPES_SHARE, Shapes
from kvfuzz.errors import HarnessFault
from kvfuzz.invariants import Violation, invariants_of
from kvfuzz.outcomes import Crash, NotExpressible, Outcome, outcome_name
from kvfuzz.pages import page_size_bytes
from kvfuzz.specs import LayerSpec, Scenario
from kvfuzz.targets.base import Target

#: One mix in so many is judged by the rules that call the planner again.
CALLS_AGAIN_SHARE = 8

# Distinct specs kept translated: bounds memory in runs of millions of mixes.
_KEPT_SPECS = 20_000

T = TypeVar("T")


class _Native(NamedTuple):
    """A spec translated for the target, with its state before any call."""

    spec: LayerSpec
    native: Any
    state: Any
    page: int


class Answer(msgspec.Struct, frozen=True):
    """What one call came to, and what it changed in its inputs (in words, or None)."""

    outcome: Outcome
    changed: str | None = None


class Tally(msgspec.Struct):
    """Counts of a search.

    Attributes:
        mixes: Mixes judged.
        outcomes: Outcome name -> mixes.
        checked: Invariant id -> trials that it judged.
        violated: Invariant id -> trials that broke it.
        shapes: What one mix in SHAPES_SHARE was like.
    """

    mixes: int = 0
    outcomes: Counter[str] = msgspec.field(default_factory=Counter)
    checked: Counter[str] = msgspec.field(default_factory=Counter)
    violated: Counter[str] = msgspec.field(default_factory=Counter)
    shapes: Shapes = msgspec.field(default_factory=Shapes)

    def add(self, other: Tally) -> None:
        """Add the counts of `other` to these."""
        self.mixes += other.mixes
        self.outcomes.update(other.outcomes)
        self.checked.update(other.checked)
        self.violated.update(other.violated)
        self.shapes.add(other.shapes)


class _Trial:
    """See `kvfuzz.invariants.Trial`."""

    __slots__ = ("_session", "changed", "outcome", "pages", "scenario", "thorough")

    def __init__(
        self,
        session: Session,
        scenario: Scenario,
        answer: Answer,
        pages: Mapping[str, int],
        *,
        thorough: bool,
    ) -> None:
        self._session = session
        self.scenario = scenario
        self.outcome = answer.outcome
        self.changed = answer.changed
        self.thorough = thorough
        self.pages = pages

    def again(self, specs: Mapping[str, LayerSpec]) -> Outcome:
        return self._session.ask(specs.items())[0].outcome


class Session:
    """One surface of one target, ready to be asked.

    Args:
        target: The planner, loaded in this process.
        surface: One of its surfaces.
        watch: Stops calls that take too long; None asks without a limit.
        isolate: Make each call in a fork, so that no call can end this process.
        limits: Of a call that is watched or isolated.
    """

    def __init__(
        self,
        target: Target,
        surface: str,
        *,
        watch: Watch | None = None,
        isolate: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.target = target
        self.surface = surface
        self.invariants = invariants_of(surface)
        #: Seconds that a call may take, if it is watched or isolated.
        self.call_seconds = limits.call_seconds
        self.limits = limits
        self._watch = watch
        self._isolate = isolate
        self._natives: dict[LayerSpec, _Native] = {}
        self._rules = target.dialect.rules
        again = [rule for rule in self.invariants if rule.calls_again]
        #: Rules with the mixes on which each is due: all, or one in CALLS_AGAIN_SHARE.
        self._due = tuple(
            (rule, CALLS_AGAIN_SHARE * again.index(rule) // len(again) if rule in again else None)
            for rule in self.invariants
        )

    def _native(self, spec: LayerSpec) -> _Native | NotExpressible:
        known = self._natives.get(spec)
        if known is not None:
            return known
        lacks = self.target.dialect.lacks(spec)
        if lacks is not None:
            return NotExpressible(reason=lacks)
        try:
            page = page_size_bytes(spec, self._rules)
            native = self.target.translate(spec)
        except Exception as error:  # a spec that the target's own class refuses
            return NotExpressible(reason=f"{type(error).__name__}: {error}")
        entry = _Native(spec, native, self.target.state(native), page)
        if len(self._natives) >= _KEPT_SPECS:
            self._natives.clear()
        self._natives[spec] = entry
        return entry

    def pages(self, scenario: Scenario) -> dict[str, int]:
        """Layer name -> page size in bytes, by the target's rules; 0 if not expressible."""
        found = {spec: self._native(spec) for _, spec in scenario}
        sizes = {s: 0 if isinstance(n, NotExpressible) else n.page for s, n in found.items()}
        return {name: sizes[spec] for name, spec in scenario}

    def ask(self, specs: Iterable[tuple[str, LayerSpec]]) -> tuple[Answer, dict[str, int]]:
        """Call the planner on named specs, in their order.

        Returns:
            The answer, and layer name -> page size in bytes; of a mix that
            is not expressible, the layers before the first that is not.
        """
        used: dict[int, _Native] = {}
        mix: dict[str, Any] = {}
        pages: dict[str, int] = {}
        for name, spec in specs:
            # By identity first: most layers share a spec with one before them.
            entry = used.get(id(spec))
            if entry is None:
                found = self._native(spec)
                if isinstance(found, NotExpressible):
                    return Answer(found), pages
                entry = used[id(spec)] = found
            mix[name] = entry.native
            pages[name] = entry.page
        return self._answer(mix, used), pages

    def _answer(self, mix: dict[str, Any], used: dict[int, _Native]) -> Answer:
        if not self._isolate:
            return self._call(mix, used)
        data = isolated(
            lambda: msgspec.json.encode(self._call(mix, used)),
            seconds=self.call_seconds,
            size=self.limits.call_bytes,
        )
        if isinstance(data, Crash):
            return Answer(data)
        return msgspec.json.decode(data, type=Answer)

    def _call(self, mix: dict[str, Any], used: dict[int, _Native]) -> Answer:
        before = list(mix.items())
        answer = None
        outcome: Outcome | None = None
        try:
            answer = self._watched(lambda: self.target.call(self.surface, mix))
        except CallStopped as stopped:
            outcome = stopped.outcome
        except HarnessFault:
            raise
        except BaseException as error:  # whatever else a planner raises is an outcome
            outcome = classify(error)
        changed = self._changes(before, mix, used)
        if outcome is None:
            try:
                # It may be a generator, and so the planner's own code still.
                outcome = self._watched(lambda: self.target.normalise(self.surface, answer, mix))
            except CallStopped as stopped:
                outcome = stopped.outcome
            except HarnessFault:
                raise
            except BaseException as error:  # so is whatever it returns
                outcome = unusable_answer(answer, error)
        return Answer(outcome, changed)

    def _watched(self, work: Callable[[], T]) -> T:
        """What `work` returns; from here on nothing raises CallStopped any more."""
        watch = self._watch
        if watch is None:
            return work()
        try:
            watch.deadline = time.monotonic() + self.call_seconds
            return work()
        finally:
            watch.deadline = 0.0

    def _changes(
        self, before: list[tuple[str, Any]], mix: dict[str, Any], used: dict[int, _Native]
    ) -> str | None:
        changed = None
        for entry in used.values():
            if self.target.state(entry.native) != entry.state:
                # Never hand the spoilt object to another mix.
                self._natives.pop(entry.spec, None)
                changed = f"a spec of kind {entry.spec.kind} had other field values"
        if list(mix.items()) != before:
            changed = "the dict had other entries"
        return changed

    def judge(
        self,
        scenario: Scenario,
        tally: Tally | None = None,
        number: int = 0,
        *,
        only: str | None = None,
        again: bool = False,
    ) -> list[Violation]:
        """Ask about `scenario` and return every violation.

        Args:
            scenario: What to ask.
            tally: Counts the trial, as one of many in a search: rules that
                call again then judge one in CALLS_AGAIN_SHARE. Without it
                all do, and thoroughly.
            number: Which of the many; decides which rules are due.
            only: Id of the one rule to judge by; the others may take calls.
            again: Whether all rules judge, and thoroughly, though it is counted.
        """
        answer, pages = self.ask(scenario.mix)
        thorough = again or tally is None or answer.changed is not None
        turn = number % CALLS_AGAIN_SHARE
        if tally is not None:
            tally.mixes += 1
            tally.outcomes[outcome_name(answer.outcome)] += 1
            if number % SHAPES_SHARE == 0:
                tally.shapes.count(scenario, pages, answer.outcome)
        trial = _Trial(self, scenario, answer, pages, thorough=thorough)
        violations = []
        for rule, due in self._due:
            if only is not None and rule.id != only:
                continue
            if (thorough or due is None or due == turn) and rule.applies(trial):
                if tally is not None:
                    tally.checked[rule.id] += 1
                try:
                    rule.check(trial)
                except rule.violation as violation:
                    if tally is not None:
                        tally.violated[rule.id] += 1
                    violations.append(violation)
        return violations
