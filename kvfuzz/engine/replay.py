"""Replaying witnesses: what one target does with given scenarios, for certain.

A replay is deterministic and takes milliseconds, so it may say what a search
never can: that a release does not have a bug.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from kvfuzz.cases import Case, read_case
from kvfuzz.engine.messages import Fault, Loaded, Replayed, ReplayJob
from kvfuzz.engine.supervisor import Worker, run_to_end
from kvfuzz.errors import TargetError
from kvfuzz.findings import Finding
from kvfuzz.ledger import KnownFinding, Observation, find_known, ledger, speaks_of
from kvfuzz.outcomes import Crash, NotExpressible, Outcome, Refusal
from kvfuzz.specs import Scenario
from kvfuzz.targets.load import Prepared


class Item(msgspec.Struct, frozen=True):
    """Something to replay: a case, its scenario, and the ledger's entry for it if it has one.

    `also` holds the entry's further witnesses.
    """

    name: str
    case: Case
    scenario: Scenario
    known: KnownFinding | None
    also: tuple[Scenario, ...] = ()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one target did with one item.

    Attributes:
        item: What was replayed.
        target: URI of the target.
        version: Its version.
        config: The engine's config that it planned by: see `targets.base.config_of`.
        known: The ledger's entry for the item, if the ledger speaks of the target.
        outcome: The outcome of the call.
        observation: In the ledger's words; about the item's own finding if it
            names one, else about every invariant of the surface.
        findings: Every violation of the scenario.
    """

    item: Item
    target: str
    version: str
    config: str = ""
    known: KnownFinding | None
    outcome: Outcome
    observation: Observation
    findings: tuple[Finding, ...]

    @property
    def expected(self) -> Observation | None:
        """What the ledger has recorded of this version; None if nothing."""
        if self.known is None:
            return None
        return self.known.observed(self.version, real_config=self.config == "real")

    @property
    def drifted(self) -> bool:
        """Whether the ledger says otherwise."""
        return self.expected not in (None, self.observation)


def known_item(known: KnownFinding) -> Item:
    """The ledger entry's witness as an item."""
    return Item(known.entry.id, known.entry, known.witness, known, known.also)


def case_item(path: Path) -> Item:
    """The case in a file as an item.

    Raises:
        UsageError: As `read_case`.
    """
    case, scenario = read_case(path, Case)
    return Item(case.id or path.name, case, scenario, find_known(case.fingerprint))


def ledger_items(surface: str) -> list[Item]:
    """Every witness of a surface that the ledger holds."""
    return [known_item(known) for known in ledger() if known.entry.surface == surface]


def _observation(case: Case, outcome: Outcome, findings: Sequence[Finding]) -> Observation:
    if isinstance(outcome, NotExpressible):
        return "not-expressible"
    if case.fingerprint:
        shown = any(finding.fingerprint == case.fingerprint for finding in findings)
    elif case.invariant is not None:
        shown = any(finding.invariant == case.invariant for finding in findings)
    else:
        shown = bool(findings)
    if shown:
        return "violates"
    match outcome:
        case Crash():
            return "error"
        case Refusal():
            return "refuses"
        case _:
            return "holds"


def _decisive(verdicts: Sequence[Verdict]) -> Verdict:
    """Of the verdicts of several witnesses the first that violates, or else that was asked."""
    violating = (verdict for verdict in verdicts if verdict.observation == "violates")
    asked = (verdict for verdict in verdicts if verdict.observation != "not-expressible")
    return next(violating, None) or next(asked, verdicts[0])


def replay(prepared: Prepared, surface: str, items: Sequence[Item]) -> Iterator[Verdict]:
    """Replay items of one surface on one target, in order.

    Raises:
        TargetError: The target cannot be loaded, or its worker failed.
    """

    def verdict(item: Item, outcome: Outcome, findings: tuple[Finding, ...]) -> Verdict:
        return Verdict(
            item=item,
            target=prepared.uri,
            version=version,
            config=config,
            known=item.known if speaks_of(prepared.uri) else None,
            outcome=outcome,
            observation=_observation(item.case, outcome, findings),
            findings=findings,
        )

    scenarios = [scenario for item in items for scenario in (item.scenario, *item.also)]
    worker = Worker(ReplayJob(target=prepared, surface=surface, scenarios=scenarios))
    version = config = ""
    left = iter(items)
    item: Item | None = None
    told: list[Verdict] = []  # of the item at hand
    for message in run_to_end(worker):
        match message:
            case Loaded(version, surfaces, _, config):
                if surface not in surfaces:
                    lacking = NotExpressible(f"{prepared.uri} has no surface {surface}")
                    yield from (verdict(item, lacking, ()) for item in left)
            case Replayed(outcome, findings):
                item = item or next(left)
                told.append(verdict(item, outcome, findings))
                if len(told) > len(item.also):
                    yield _decisive(told)
                    item, told = None, []
            case Fault(text):
                raise TargetError(text)
    if item is not None or next(left, None) is not None:
        raise TargetError(f"The worker of {prepared.uri} ended before all cases were replayed.")
