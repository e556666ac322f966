"""A planner's answer in the form in which those of two targets are compared.

Nothing is in it that may differ without a difference: layers that have one
spec, draft and rank alike, may change places, so they are counted and not
named, and groups stand in an order of their own. Where pages are placed in
memory is left out; how much there is of it is not. Two targets that plan alike
give the same bytes.
"""

from __future__ import annotations

from collections import Counter
from itertools import repeat

import msgspec

from kvfuzz.catalogue import Catalogue
from kvfuzz.findings import mask
from kvfuzz.outcomes import Crash, Group, NotExpressible, Outcome, Rank, Refusal, outcome_name
from kvfuzz.specs import OpenSpec, Scenario, Value

# Planned specs whose fields are kept compared to defaults: bounds memory.
_KEPT_SPECS = 20_000

Fields = tuple[tuple[str, Value], ...]


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The alike layers of a group.

    Attributes:
        layer: The first layer of the mix that is like them, by its place; -1 if there is none.
        given: The kind that they were given with.
        count: How many there are.
        page: Bytes of a page of each, in the plan.
        kind: The kind of their spec in the plan; "" if the surface does not tell.
        fields: What that spec holds but for defaults, of the fields that both targets have.
    """

    layer: int
    given: str
    count: int
    page: int
    kind: str = ""
    fields: Fields = ()


class Gathered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Groups that are alike: how many, their parts, whether they are marked as a draft model's."""

    times: int
    parts: tuple[Part, ...]
    drafts: bool = False


class Memory(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one pipeline rank allocates.

    Attributes:
        blocks: Blocks that it has.
        needed: Blocks that one longest request takes of all groups.
        block: Bytes of a block.
    """

    blocks: int
    needed: int
    block: int


class Reply(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a target answered.

    Attributes:
        outcome: The name of the outcome.
        layers: How many layers there were.
        symptom: Of a crash, how it ended.
        why: Of a refusal or crash, what tells it from others: the exception,
            where it was raised, the masked message.
        message: Its message in full.
        groups: The groups.
        ranks: What each rank allocates, if the surface plans that.
        max_model_len: Tokens of the longest request planned for, if it says.
        facts: What the plan says of itself, of what both can say.
    """

    outcome: str
    layers: int
    symptom: str = ""
    why: str = ""
    message: str = ""
    groups: tuple[Gathered, ...] = ()
    ranks: tuple[Memory, ...] = ()
    max_model_len: int = 0
    facts: tuple[str, ...] = ()

    @property
    def planned(self) -> bool:
        """Whether the target neither refused nor crashed."""
        return not self.why

    @property
    def passing(self) -> bool:
        """Whether its process died, hung or grew, so that it is not to be asked just so."""
        return self.symptom not in ("", "exception")


class Replier:
    """Makes replies of outcomes.

    Args:
        catalogue: What both targets have of open specs.
        own: What this one has.
        facts: What plans of both say of themselves.
    """

    def __init__(self, catalogue: Catalogue, own: Catalogue, facts: tuple[str, ...] = ()) -> None:
        self._facts = facts
        self._catalogue = catalogue
        self._own = own
        self._kept: dict[OpenSpec, Fields] = {}

    def reply(self, scenario: Scenario, outcome: Outcome) -> Reply | None:
        """The reply that an outcome is; None if the target was not asked."""
        match outcome:
            case NotExpressible():
                return None
            case Refusal(exception, message):
                why = f"{exception}: {_masked(message, scenario)}"
                message = f"{exception}: {message}"
                return Reply("refusal", len(scenario), why=why, message=message)
            case Crash():
                return crash_reply(outcome, scenario)
        return Reply(
            outcome_name(outcome),
            len(scenario),
            groups=self._gathered(scenario, outcome.groups or ()),
            ranks=tuple(map(_memory, outcome.ranks)),
            max_model_len=outcome.max_model_len,
            facts=tuple(fact for fact in self._facts if fact in outcome.facts),
        )

    def _gathered(self, scenario: Scenario, groups: tuple[Group, ...]) -> tuple[Gathered, ...]:
        alike = _alike(scenario)
        counts = Counter(
            (self._parts(scenario, alike, group), group.terms is not None and group.terms.drafts)
            for group in groups
        )
        made = [Gathered(times, parts, drafts) for (parts, drafts), times in counts.items()]
        return tuple(sorted(made, key=msgspec.json.encode))

    def _parts(self, scenario: Scenario, alike: dict[str, int], group: Group) -> tuple[Part, ...]:
        planned = group.terms.planned if group.terms is not None else repeat(None)
        layers = (alike.get(name, -1) for name in group.layers)
        parts = []
        for (layer, page, spec), count in Counter(
            zip(layers, group.pages, planned, strict=False)
        ).items():
            given = "" if layer < 0 else scenario.mix[layer][1].kind
            if spec is None:
                parts.append(Part(layer, given, count, page))
            else:
                parts.append(Part(layer, given, count, page, spec.kind, self._fields(spec)))
        return tuple(sorted(parts, key=msgspec.json.encode))

    def _fields(self, spec: OpenSpec) -> Fields:
        """The fields of a planned spec that both have, but for those at the common default."""
        kept = self._kept.get(spec)
        if kept is None:
            common, own = self._catalogue.get(spec.kind), self._own.get(spec.kind)
            held = dict(spec.fields)
            if common is not None and own is not None:
                held = {
                    name: value
                    for name, form in common.fields.items()
                    if not form.mark
                    and form.type != "unknown"
                    # What a target does not tell is at its own default.
                    and (value := held.get(name, own.fields[name].default)) != form.default
                }
            if len(self._kept) >= _KEPT_SPECS:
                self._kept.clear()
            kept = self._kept[spec] = tuple(sorted(held.items()))
        return kept


def crash_reply(crash: Crash, scenario: Scenario) -> Reply:
    """The reply that a crash is."""
    where = f" in {crash.function}" if crash.function else ""
    what = crash.exception + where if crash.symptom == "exception" else crash.symptom
    if crash.symptom == "died" and crash.exception:
        what += f" by {crash.exception}"
    masked = _masked(crash.message, scenario)
    return Reply(
        "crash",
        len(scenario),
        symptom=crash.symptom,
        why=f"{what}: {masked}" if masked else what,
        message=f"{what}: {crash.message}" if crash.message else what,
    )


def _masked(message: str, scenario: Scenario) -> str:
    return mask(message, tuple(name for name, _ in scenario))


def _alike(scenario: Scenario) -> dict[str, int]:
    """Layer -> the place of the first that is like it: in spec and rank, and a draft or none."""
    first_draft = len(scenario) - scenario.drafts
    ranks = scenario.ranks or repeat(0)
    places: dict[tuple[object, ...], int] = {}
    return {
        name: places.setdefault((spec, rank, place >= first_draft), place)
        for place, ((name, spec), rank) in enumerate(zip(scenario, ranks, strict=False))
    }


def _memory(rank: Rank) -> Memory:
    return Memory(rank.blocks, sum(rank.needed), sum(rank.buffers) // max(rank.blocks, 1))
