"""Asking one surface of one loaded target about scenarios, and judging what comes.

Runs in the target's own process. It owns the calls; where scenarios come from
and where violations go is the business of its callers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

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
from kvfuzz.outcomes import Crash, NotExpressible, Outcome, Plan, outcome_name
from kvfuzz.specs import LayerSpec, Scenario
from kvfuzz.targets.base import Target, Unreachable

#: One mix in so many is judged by the rules that call the planner again.
CALLS_AGAIN_SHARE = 8

# Distinct specs kept translated: bounds memory in runs of millions of mixes.
_KEPT_SPECS = 20_000


# What a fork says first that has no answer; no JSON begins with it.
_FAULT = b"!"

# Surfaces that plan memory: a layer that takes none has no cache, and none is asked for.
_POOLED = ("groups", "config")
# The surface that asks for the page itself, so that what goes wrong there is an answer.
_PAGE = "page"
#: What a spec class raises of values that it does not take.
_REFUSES = (ValueError, TypeError, AssertionError, NotImplementedError)


class _Native(msgspec.Struct, frozen=True, gc=False):
    """A spec translated for the target, with its state before any call."""

    spec: LayerSpec
    native: Any
    state: Any
    page: int


#: An object that a call is given, and the spec that it is, or is a copy of.
_Object: TypeAlias = tuple[Any, _Native]


class Answer(msgspec.Struct, frozen=True, gc=False):
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


class _Trial(msgspec.Struct, gc=False):
    """See `kvfuzz.invariants.Trial`."""

    session: Session
    surface: str
    scenario: Scenario
    outcome: Outcome
    pages: Mapping[str, int]
    changed: str | None
    thorough: bool

    def again(self, scenario: Scenario) -> Outcome:
        return self.session.ask(scenario)[0].outcome

    def optimized(self, scenario: Scenario) -> Outcome | None:
        # Only vLLM's own functions have it.
        without_assertions = getattr(self.session.target, "optimized", None)
        if without_assertions is None:
            return None
        with without_assertions():
            return self.session.ask(scenario)[0].outcome


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
        #: Whether each layer has a spec of its own, as in an engine, where a
        #: planner that writes into one does not write into all.
        self._apart = surface in _POOLED
        self._watch = watch
        self._isolate = isolate
        self._natives: dict[LayerSpec, _Native] = {}
        again = [rule for rule in self.invariants if rule.calls_again]
        turn_of = {r.id: CALLS_AGAIN_SHARE * i // len(again) for i, r in enumerate(again)}
        #: Rules that are due on a mix, by its number modulo CALLS_AGAIN_SHARE.
        self._due = [
            [rule for rule in self.invariants if turn_of.get(rule.id, turn) == turn]
            for turn in range(CALLS_AGAIN_SHARE)
        ]

    def _native(self, spec: LayerSpec) -> _Native | Outcome:
        kept = self._natives.get(spec)
        if kept is not None:
            return kept
        made = self._translated(spec)
        if isinstance(made, _Native):
            if len(self._natives) >= _KEPT_SPECS:
                self._natives.clear()
            self._natives[spec] = made
        return made

    def _translated(self, spec: LayerSpec) -> _Native | Outcome:
        lacks = self.target.dialect.lacks(spec)
        if lacks is not None:
            return NotExpressible(reason=lacks)
        try:
            native = self.target.translate(spec)
        except _REFUSES as error:
            return NotExpressible(reason=f"{type(error).__name__}: {error}")
        except Exception as error:
            return classify(error)
        try:
            page = self.target.page_size(spec, native)
        except Exception as error:
            if self.surface != _PAGE:
                return NotExpressible(reason=f"{type(error).__name__}: {error}")
            page = 0
        if not page and self._apart:
            return NotExpressible(reason="a page of no bytes")
        return _Native(spec, native, self.target.state(native), page)

    def pages(self, scenario: Scenario) -> dict[str, int]:
        """Layer name -> page size in bytes, by the target's rules; 0 if not expressible."""
        found = {spec: self._native(spec) for _, spec in scenario}
        sizes = {s: n.page if isinstance(n, _Native) else 0 for s, n in found.items()}
        return {name: sizes[spec] for name, spec in scenario}

    def prepare(self, scenario: Scenario) -> None:
        """Translate the specs of a scenario that is asked about soon."""
        kept = self._natives
        for spec in {id(spec): spec for _, spec in scenario.mix}.values():
            if spec not in kept:
                self._native(spec)

    def ask(self, scenario: Scenario) -> tuple[Answer, dict[str, int]]:
        """Call the planner on a scenario.

        Returns:
            The answer, and layer name -> page size in bytes; of a mix that
            is not expressible, the layers before the first that is not.
        """
        layout = scenario.config.layout
        if layout is not None and layout not in self.target.dialect.layouts:
            return Answer(NotExpressible(f"no layout {layout}")), {}
        used: dict[int, _Native] = {}
        objects: list[_Object] = []
        kept = self._natives.get
        another = self.target.another
        apart = self._apart
        mix: dict[str, Any] = {}
        pages: dict[str, int] = {}
        for name, spec in scenario.mix:
            # By identity first: most layers share a spec with one before them.
            entry = used.get(id(spec))
            if entry is None:
                entry = kept(spec)
                if entry is None:
                    made = self._native(spec)
                    if not isinstance(made, _Native):
                        return Answer(made), pages
                    entry = made
                taken = apart and any(entry is other for other in used.values())
                used[id(spec)] = entry
            else:
                taken = apart
                if not apart:
                    mix[name] = entry.native
                    pages[name] = entry.page
                    continue
            native = another(entry.native) if taken else entry.native
            objects.append((native, entry))
            mix[name] = native
            pages[name] = entry.page
        if self._isolate:
            return self._isolated(scenario, mix, objects), pages
        return self._call(scenario, mix, objects), pages

    def _isolated(self, scenario: Scenario, mix: dict[str, Any], objects: list[_Object]) -> Answer:
        def work() -> bytes:
            try:
                return msgspec.json.encode(self._call(scenario, mix, objects))
            except HarnessFault as fault:
                return _FAULT + str(fault).encode()

        data = isolated(work, seconds=self.call_seconds, size=self.limits.call_bytes)
        if isinstance(data, Crash):
            return Answer(data)
        if data.startswith(_FAULT):
            raise HarnessFault(data.removeprefix(_FAULT).decode())
        return msgspec.json.decode(data, type=Answer)

    def _call(self, scenario: Scenario, mix: dict[str, Any], objects: list[_Object]) -> Answer:
        """Once this returns, nothing raises CallStopped any more."""
        watch = self._watch
        before = mix.copy()
        changed = None
        blame: Callable[[BaseException], Outcome] = classify
        outcome: Outcome
        try:
            try:
                if watch is not None:
                    watch.deadline = time.monotonic() + self.call_seconds
                answer = self.target.call(self.surface, mix, scenario)
                # It may be a generator, and so the planner's own code still.
                blame = partial(unusable_answer, answer)
                changed = self._changes(before, mix, objects)
                pages = {} if changed else {id(native): entry.page for native, entry in objects}
                outcome = self.target.normalise(self.surface, answer, before, pages)
            finally:
                if watch is not None:
                    watch.deadline = 0.0
        except CallStopped as stopped:
            outcome = stopped.outcome
        except Unreachable as error:
            outcome = NotExpressible(str(error))
        except HarnessFault:
            raise
        except BaseException as error:  # whatever else a planner raises is an outcome
            outcome = blame(error)
        if type(outcome) is not Plan:
            changed = self._changes(before, mix, objects)
        return Answer(outcome, changed)

    def _changes(
        self, before: dict[str, Any], mix: dict[str, Any], objects: list[_Object]
    ) -> str | None:
        changed = None
        state = self.target.state
        for native, entry in objects:
            if state(native) != entry.state:
                # Never hand the spoilt object to another mix.
                self._natives.pop(entry.spec, None)
                changed = f"a spec of kind {entry.spec.kind} had other field values"
        if mix != before or [*mix] != [*before]:
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
        answer, pages = self.ask(scenario)
        outcome = answer.outcome
        thorough = again or tally is None or answer.changed is not None
        rules = self.invariants if thorough else self._due[number % CALLS_AGAIN_SHARE]
        if only is not None:
            rules = [rule for rule in rules if rule.id == only]
        if tally is not None and number % SHAPES_SHARE == 0:
            tally.shapes.count(scenario, pages, outcome)
        tally = tally or Tally()
        tally.mixes += 1
        tally.outcomes[outcome_name(outcome)] += 1
        trial = _Trial(self, self.surface, scenario, outcome, pages, answer.changed, thorough)
        checked = tally.checked
        violations = []
        for rule in rules:
            if rule.applies(trial):
                checked[rule.id] += 1
                try:
                    rule.check(trial)
                except rule.violation as violation:
                    tally.violated[rule.id] += 1
                    # Its frames hold this list: with them it would be a cycle.
                    violations.append(violation.with_traceback(None))
        return violations
