"""Factories of targets that differ from `plain` in one aspect each."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kvfuzz.catalogue import FieldForm, KindForm
from kvfuzz.errors import HarnessFault
from kvfuzz.outcomes import Group, Plan, Rank, Terms
from kvfuzz.pages import Dialect, PageRules
from kvfuzz.reference import group_and_unify_kv_cache_specs as reference
from kvfuzz.specs import MLAAttentionSpec, OpenSpec, Scenario, open_spec
from kvfuzz.targets.base import NeutralPlanner

_FIELDS = {
    "block_size": FieldForm(type="int", required=True),
    "num_kv_heads": FieldForm(type="int", required=True),
    "head_size": FieldForm(type="int", required=True),
    "dtype": FieldForm(type="dtype", required=True),
    "page_size_padded": FieldForm(type="int"),
}
_WINDOW = {"sliding_window": FieldForm(type="int", required=True)}
_KINDS = {
    "full_attention": KindForm("FullAttentionSpec", _FIELDS),
    "sliding_window": KindForm("SlidingWindowSpec", _FIELDS | _WINDOW),
}
_MOST = 1 << 20

Turn = Callable[[Plan, Scenario], Plan]


class Small:
    """Plans a group for each spec, in neutral terms; `turn` makes another plan of it."""

    version = "1"
    surfaces: tuple[str, ...] = ("groups", "config")

    def __init__(self, turn: Turn | None = None, more: Mapping[str, KindForm] | None = None):
        self.uri = "small"
        self._turn = turn
        self.dialect = Dialect(
            rules=PageRules(),
            fields={},
            quant_modes=frozenset(),
            catalogue={**_KINDS, **(more or {})},
        )

    def translate(self, spec: OpenSpec) -> OpenSpec:
        return msgspec.structs.replace(spec)

    def page_size(self, spec: OpenSpec, native: OpenSpec) -> int:
        return int(native.page_size_padded or native.block_size * native.head_size)

    def another(self, native: OpenSpec) -> OpenSpec:
        return msgspec.structs.replace(native)

    def state(self, native: OpenSpec) -> Any:
        return native.fields

    def call(self, surface: str, specs: dict[str, OpenSpec], scenario: Scenario) -> Plan:
        groups: dict[OpenSpec, list[str]] = {}
        for name, spec in specs.items():
            groups.setdefault(spec, []).append(name)
        made = []
        for spec, names in groups.items():
            alike = (spec,) * len(names)
            pages = (self.page_size(spec, spec),) * len(names)
            terms = Terms(given=alike, planned=alike, shared=spec)
            made.append(Group(tuple(names), pages, terms))
        ranks: tuple[Rank, ...] = ()
        if surface == "config":
            block = max(page for group in made for page in group.pages)
            names = tuple(group.layers for group in made)
            ranks = (Rank(names, 100, (100 * block,), (), _MOST, (4,), 5),)
        plan = Plan(tuple(made), ranks, scenario.config.max_model_len if ranks else 0)
        return plan if self._turn is None else self._turn(plan, scenario)

    def normalise(self, surface: str, answer: Plan, specs: Any, pages: Any) -> Plan:
        return answer


def _with_windows_planned(plan: Plan, spec: Callable[[OpenSpec], OpenSpec]) -> Plan:
    """The plan with another spec planned for each layer that has a window."""
    groups = []
    for group in plan.groups or ():
        terms = group.terms
        if terms is not None and terms.given[0].kind == "sliding_window":
            planned = tuple(map(spec, terms.planned))
            terms = msgspec.structs.replace(terms, planned=planned, shared=planned[0])
        groups.append(msgspec.structs.replace(group, terms=terms))
    return msgspec.structs.replace(plan, groups=tuple(groups))


def plain() -> Small:
    return Small()


def plain_again() -> Small:
    """The same, in another order: of groups, and of alike layers in them."""

    def turn(plan: Plan, _: Scenario) -> Plan:
        groups = [
            msgspec.structs.replace(group, layers=group.layers[::-1]) for group in plan.groups or ()
        ]
        return msgspec.structs.replace(plan, groups=tuple(groups[::-1]))

    return Small(turn)


def installed() -> Small:
    """Plans by the config of an engine."""
    target = Small()
    target.config_of = lambda _: "real"  # type: ignore[attr-defined]
    return target


def alone() -> Small:
    """Plans by another config."""
    target = Small()
    target.config_of = lambda _: "stand-in"  # type: ignore[attr-defined]
    return target


def refuses() -> Small:
    """Takes no three specs."""

    def turn(plan: Plan, scenario: Scenario) -> Plan:
        if len(plan.groups or ()) > 2:
            raise NotImplementedError(f"There are {len(plan.groups or ())} specs at 'once'.")
        return plan

    return Small(turn)


def crashes() -> Small:
    """Fails on windows."""

    def look_up(plan: Plan, scenario: Scenario) -> Plan:
        if any(spec.kind == "sliding_window" for _, spec in scenario):
            raise KeyError("windows")
        return plan

    return Small(look_up)


def joins_groups() -> Small:
    """Puts windows of one page size, and all else alike, into one group."""

    def turn(plan: Plan, _: Scenario) -> Plan:
        groups = list(plan.groups or ())
        windows = [g for g in groups if g.terms and g.terms.given[0].kind == "sliding_window"]
        if len(windows) < 2:
            return plan
        joined = Group(
            sum((g.layers for g in windows), ()),
            sum((g.pages for g in windows), ()),
            Terms(
                given=sum((g.terms.given for g in windows if g.terms), ()),
                planned=sum((g.terms.planned for g in windows if g.terms), ()),
            ),
        )
        rest = [group for group in groups if group not in windows]
        return msgspec.structs.replace(plan, groups=(*rest, joined))

    return Small(turn)


def converts() -> Small:
    """Plans windows as full layers."""
    return Small(
        lambda plan, _: _with_windows_planned(
            plan,
            lambda spec: open_spec(
                "full_attention", {n: v for n, v in spec.fields if n != "sliding_window"}
            ),
        )
    )


def pads() -> Small:
    """Pads windows in words, and leaves the page as it is."""
    return Small(
        lambda plan, _: _with_windows_planned(
            plan,
            lambda spec: open_spec(
                spec.kind, dict(spec.fields) | {"page_size_padded": 7 + (spec.head_size or 0)}
            ),
        )
    )


def has_larger_pages() -> Small:
    def turn(plan: Plan, _: Scenario) -> Plan:
        groups = [
            msgspec.structs.replace(group, pages=tuple(page + 1 for page in group.pages))
            if group.terms and group.terms.given[0].kind == "full_attention"
            else group
            for group in plan.groups or ()
        ]
        return msgspec.structs.replace(plan, groups=tuple(groups))

    return Small(turn)


def marks_drafts() -> Small:
    """Marks the last group where there is a draft model."""

    def turn(plan: Plan, scenario: Scenario) -> Plan:
        *groups, last = plan.groups or ()
        if not scenario.drafts or last.terms is None:
            return plan
        marked = msgspec.structs.replace(
            last, terms=msgspec.structs.replace(last.terms, drafts=True)
        )
        return msgspec.structs.replace(plan, groups=(*groups, marked))

    return Small(turn)


def _ranks(plan: Plan, **changes: Any) -> Plan:
    ranks = tuple(msgspec.structs.replace(rank, **changes) for rank in plan.ranks)
    return msgspec.structs.replace(plan, ranks=ranks)


def needs_more() -> Small:
    return Small(lambda plan, _: _ranks(plan, needed=(2, 3)))


def has_fewer_blocks() -> Small:
    def turn(plan: Plan, _: Scenario) -> Plan:
        ranks = [
            msgspec.structs.replace(rank, blocks=50, buffers=(rank.buffers[0] // 2,))
            for rank in plan.ranks
        ]
        return msgspec.structs.replace(plan, ranks=tuple(ranks))

    return Small(turn)


def plans_shorter() -> Small:
    def turn(plan: Plan, _: Scenario) -> Plan:
        return msgspec.structs.replace(plan, max_model_len=min(plan.max_model_len, 100))

    return Small(turn)


def has_more() -> Small:
    """Has a kind and a field more, and lacks a kind."""
    fields = _FIELDS | {"sinks": FieldForm(type="int")}
    target = Small(
        more={"full_attention": KindForm("Full", fields), "brand_new": KindForm("New", _FIELDS)}
    )
    del target.dialect.catalogue["sliding_window"]
    target.surfaces = ("groups", "merge")
    return target


def dies_on_windows() -> Small:
    """Ends its process on mixes of two layers or more that begin with a window."""

    def turn(plan: Plan, scenario: Scenario) -> Plan:
        if len(scenario) > 1 and scenario.mix[0][1].kind == "sliding_window" and _is_odd(scenario):
            os.kill(os.getpid(), signal.SIGSEGV)
        return plan

    return Small(turn)


def hangs_on_windows() -> Small:
    def turn(plan: Plan, scenario: Scenario) -> Plan:
        while scenario.mix[0][1].kind == "sliding_window" and _is_odd(scenario):
            pass
        return plan

    return Small(turn)


def _is_odd(scenario: Scenario) -> bool:
    """Few mixes are: each ends a worker."""
    return scenario.mix[0][1].sliding_window == 8 and scenario.mix[0][1].head_size == 80


def is_fickle() -> Small:
    """Refuses each mix of three specs the first time."""
    asked: set[Scenario] = set()

    def turn(plan: Plan, scenario: Scenario) -> Plan:
        if len(plan.groups or ()) > 2 and scenario not in asked:
            asked.add(scenario)
            raise ValueError("these are too many at first")
        return plan

    return Small(turn)


def needs_what_is_not_there() -> Small:
    """Refuses mixes of three specs, and cannot be driven on those of four."""

    def turn(plan: Plan, scenario: Scenario) -> Plan:
        if len(plan.groups or ()) > 3:
            raise HarnessFault("a stand-in is lacking")
        if len(plan.groups or ()) > 2:
            raise ValueError("three specs are too many")
        return plan

    return Small(turn)


def dawdles() -> Small:
    """Slow, and otherwise as `crashes`."""

    def turn(plan: Plan, scenario: Scenario) -> Plan:
        time.sleep(0.01)
        if any(spec.kind == "sliding_window" for _, spec in scenario):
            raise KeyError("windows")
        return plan

    return Small(turn)


def packs_without_guard() -> NeutralPlanner:
    """The reference, but a mix of one page size is packed if there are two kinds."""

    def planner(specs: dict[str, Any]) -> Any:
        kinds: dict[bool, list[str]] = {}
        for name, spec in specs.items():
            kinds.setdefault(isinstance(spec, MLAAttentionSpec), []).append(name)
        answer = reference(specs)
        return answer if answer is not None or len(kinds) < 2 else list(kinds.values())

    return planner
