"""Planners that plan for an engine and group layers wrongly in one way each.

Each is the right one of `engine_planner` with one decision taken wrongly.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from types import ModuleType
from typing import Any

from tests.sabotage import engine
from tests.sabotage.engine import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheSpecKind,
    MambaSpec,
    MixedSpecs,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from tests.sabotage.engine_planner import Caught, Groups, Parts, Planned, Planner, Specs

# What a plan says of its layers.


class ForgetsCausality(Planner):
    """Builds the spec of a group of MLA layers anew, without a field that came later."""

    def planned(self, specs: list[KVCacheSpec], page: int) -> KVCacheSpec:
        made = super().planned(specs, page)
        return replace(made, causal=True) if isinstance(made, MLAAttentionSpec) else made


class JoinsWindows(Planner):
    """Puts windows of two lengths into one group."""

    def groups(self, config: Any, specs: Specs) -> Groups:
        groups = super().groups(config, specs)
        first: dict[KVCacheSpec, KVCacheGroupSpec] = {}
        for group in groups:
            if not isinstance(spec := group.kv_cache_spec, SlidingWindowSpec):
                continue
            other = first.setdefault(replace(spec, sliding_window=1), group)
            if other.kv_cache_spec != spec:
                other.layer_names += group.layer_names
                return [kept for kept in groups if kept is not group]
        return groups


class KnowsLayersOnly(Planner):
    """Cannot say what a group is whose layers keep each its own spec."""

    def interface(self) -> ModuleType:
        module = super().interface()
        kind = engine.get_kv_cache_spec_kind
        module.get_kv_cache_spec_kind = lambda spec: (  # type: ignore[attr-defined]
            KVCacheSpecKind.UNKNOWN if isinstance(spec, MixedSpecs) else kind(spec)
        )
        return module


class ShortensBlocksOfWindows(Planner):
    """Takes a token off each block of windows."""

    def planned(self, specs: list[KVCacheSpec], page: int) -> KVCacheSpec:
        made = super().planned(specs, page)
        if not isinstance(made, SlidingWindowSpec) or made.block_size < 3:
            return made
        return replace(made, block_size=made.block_size - 1, page_size_padded=page)


class CountsTokensTwice(Planner):
    """Says that a page of MLA layers holds twice the tokens that it has room for."""

    def planned(self, specs: list[KVCacheSpec], page: int) -> KVCacheSpec:
        made = super().planned(specs, page)
        if isinstance(made, MLAAttentionSpec):
            object.__setattr__(made, "page_size_padded", page)
            object.__setattr__(made, "block_size", 2 * made.block_size)
        return made


class PadsNoStates(Planner):
    """Leaves the pages of states as they are."""

    def planned(self, specs: list[KVCacheSpec], page: int) -> KVCacheSpec:
        return specs[0] if isinstance(specs[0], MambaSpec) else super().planned(specs, page)


class WideWindows(Planner):
    """Counts what a window takes without regard to how long a request is."""

    def interface(self) -> ModuleType:
        module = super().interface()
        blocks = {"__doc__": None, "blocks": SlidingWindowSpec.kept}
        module.SlidingWindowSpec = type(  # type: ignore[attr-defined]
            "SlidingWindowSpec", (SlidingWindowSpec,), blocks
        )
        return module


class WindowsWithoutTheirStep(Planner):
    """Counts what a window takes without the tokens that are written in a step."""

    def interface(self) -> ModuleType:
        module = super().interface()
        blocks = {
            "__doc__": None,
            "blocks": lambda spec, config: min(
                -(-spec.sliding_window // spec.block_size), spec.whole(config)
            ),
        }
        module.SlidingWindowSpec = type(  # type: ignore[attr-defined]
            "SlidingWindowSpec", (SlidingWindowSpec,), blocks
        )
        return module


# Which layers go together.


class SetsTheFirstApart(Planner):
    """Makes a group of the first layer alone if the next one has another spec."""

    def groups(self, config: Any, specs: Specs) -> Groups:
        groups = super().groups(config, specs)
        first, *others = specs
        if not others or specs[first] == specs[others[0]]:
            return groups
        (home,) = (group for group in groups if first in group.layer_names)
        if len(home.layer_names) > 1:
            home.layer_names.remove(first)
            groups.append(self.group(specs, [first], home.kv_cache_spec))
        return groups


class LosesALayer(Planner):
    """Leaves out the last layer of the last of three groups or more."""

    def groups(self, config: Any, specs: Specs) -> Groups:
        groups = super().groups(config, specs)
        if len(groups) > 2:
            groups[-1].layer_names.pop()
        return [group for group in groups if group.layer_names]


class MakesAnEmptyGroup(Planner):
    """Keeps a group of states for layers that there are not."""

    def groups(self, config: Any, specs: Specs) -> Groups:
        groups = super().groups(config, specs)
        states = [g for g in groups if isinstance(g.kv_cache_spec, MambaSpec)]
        if len(groups) < 8 and states and config.cache_config.mamba_cache_mode != "all":
            groups.append(KVCacheGroupSpec([], states[0].kv_cache_spec))
        return groups


class ScattersDrafts(Planner):
    """Makes a group of the last draft layer alone."""

    def groups(self, config: Any, specs: Specs) -> Groups:
        groups = super().groups(config, specs)
        for group in groups:
            drafts = [name for name in group.layer_names if specs[name].is_draft]
            if len(drafts) > 1:
                group.layer_names.remove(drafts[-1])
                return [*groups, self.group(specs, [drafts[-1]], group.kv_cache_spec)]
        return groups


class MarksNothing(Planner):
    """Does not mark groups of draft layers."""

    def group(self, specs: Specs, names: list[str], spec: KVCacheSpec) -> KVCacheGroupSpec:
        return KVCacheGroupSpec(names, spec)


class MarksAll(Planner):
    """Marks every group if there is a draft layer at all."""

    def group(self, specs: Specs, names: list[str], spec: KVCacheSpec) -> KVCacheGroupSpec:
        return KVCacheGroupSpec(names, spec, any(spec.is_draft for spec in specs.values()))


class GroupsEachAlone(Planner):
    """Makes a group of each of many layers that are alike."""

    def groups(self, config: Any, specs: Specs) -> Groups:
        groups = super().groups(config, specs)
        if len(specs) < 9 or len(groups) > 1 or len(set(specs.values())) > 1:
            return groups
        return [self.group(specs, [name], groups[0].kv_cache_spec) for name in specs]


class GroupsTwiceAsWide(Planner):
    """Makes groups of twice as many layers as take the fewest pages."""

    def group_size(
        self, config: Any, specs: Specs, parts: Parts, planned: Planned
    ) -> tuple[int, bool]:
        return 2 * super().group_size(config, specs, parts, planned)[0], True


class PadsWhatCouldGrow(Planner):
    """Pads pages where blocks could have more tokens, whatever that costs."""

    dear = inf

    def planned(self, specs: list[KVCacheSpec], page: int) -> KVCacheSpec:
        largest = max(specs, key=lambda spec: spec.page_size_bytes)
        return replace(largest, page_size_padded=page, is_draft=False)


# How a call ends, and what it leaves behind.


class ReordersItsInput(Planner):
    """Moves the first layer to the end of the caller's dict."""

    def groups(self, config: Any, specs: Specs) -> Groups:
        specs[first] = specs.pop(first := next(iter(specs)))
        return super().groups(config, specs)

    def configs(self, config: Any, ranks: list[Specs], memory: list[int]) -> list[KVCacheConfig]:
        if ranks[0]:
            ranks[0][first] = ranks[0].pop(first := next(iter(ranks[0])))
        return super().configs(config, ranks, memory)


class AnswersOtherwiseNextTime(Planner):
    """Turns the order of its groups around on every second call."""

    calls = 0

    def groups(self, config: Any, specs: Specs) -> Groups:
        self.calls += 1
        return super().groups(config, specs)[:: 1 if self.calls % 2 else -1]


class AssertsTwoKinds(Planner):
    """Does not expect layers of three kinds."""

    def groups(self, config: Any, specs: Specs) -> Groups:
        assert len({type(spec) for spec in specs.values()}) < 3
        return super().groups(config, specs)


class SaysNothing(Planner):
    """Refuses without a word of what to change."""

    def refuse_rows(self, name: str) -> None:
        raise ValueError("these layers have no plan")

    def refuse_memory(self, override: int | None) -> None:
        raise ValueError("this engine has too little memory")


class RefusesThreePages(Planner):
    """Does not try to plan for pages of three sizes."""

    def page(self, specs: Specs) -> int:
        if len({spec.page_size_bytes for spec in specs.values()}) > 2:
            raise ValueError("pages of three sizes: change block_size")
        return super().page(specs)


# Assertions that decide.


class PadsByAssertion(Planner):
    """Pages are as large as they must be because an assertion fails."""

    def page(self, specs: Specs) -> int:
        page = super().page(specs)
        try:
            assert not specs
        except AssertionError:
            return page
        return 2 * page


class RefusesByAssertion(Planner):
    """Plans because an assertion fails."""

    def page(self, specs: Specs) -> int:
        try:
            assert not specs
        except AssertionError:
            return super().page(specs)
        raise ValueError("block_size is too small")


#: Planner -> the one rule that must catch it, on each surface.
SABOTAGED: dict[type[Planner], tuple[Caught, ...]] = {
    ForgetsCausality: (Caught("groups", "nothing-lost", "mla_attention changes causal", 300),),
    PadsByAssertion: (
        Caught("groups", "optimized-agrees", "planned otherwise"),
        Caught("config", "optimized-agrees", "planned otherwise"),
    ),
    RefusesByAssertion: (Caught("groups", "optimized-agrees", "not planned"),),
    JoinsWindows: (
        Caught("groups", "group-attributes-true", "sliding_window says sliding_window", 700),
    ),
    KnowsLayersOnly: (Caught("groups", "group-attributes-true", "of no kind", 400),),
    CountsTokensTwice: (Caught("groups", "pages-compatible", "mla_attention page too small"),),
    PadsNoStates: (Caught("groups", "pages-compatible", "groups of several page sizes"),),
    ShortensBlocksOfWindows: (Caught("groups", "blocks-divide", "finer blocks"),),
    WideWindows: (Caught("groups", "bounded-never-dearer", "sliding_window"),),
    WindowsWithoutTheirStep: (
        Caught("groups", "kept-context-fits", "sliding_window"),
        Caught("config", "kept-context-fits", "sliding_window"),
    ),
    SetsTheFirstApart: (Caught("groups", "order-free", "partition differs", 300),),
    LosesALayer: (Caught("groups", "partition", "lost"),),
    MakesAnEmptyGroup: (Caught("config", "partition", "empty group", 150),),
    ScattersDrafts: (Caught("groups", "drafts-together", "scattered", 150),),
    MarksNothing: (Caught("config", "drafts-marked", "not marked"),),
    MarksAll: (Caught("config", "drafts-marked", "marks others"),),
    GroupsEachAlone: (Caught("config", "bounded-overhead", "many groups", 400),),
    GroupsTwiceAsWide: (Caught("config", "bounded-overhead", "another width", 150),),
    PadsWhatCouldGrow: (Caught("config", "bounded-overhead", "beyond the layers' own needs", 300),),
    ReordersItsInput: (
        Caught("groups", "pure", "changed input"),
        Caught("config", "pure", "changed input"),
    ),
    AnswersOtherwiseNextTime: (
        Caught("groups", "deterministic", "second call differs", 150),
        Caught("config", "deterministic", "second call differs", 200),
    ),
    AssertsTwoKinds: (
        Caught("groups", "plan-or-refusal", "exception"),
        Caught("config", "plan-or-refusal", "exception"),
    ),
    SaysNothing: (
        Caught("groups", "refusal-says-why", "names nothing", 200),
        Caught("config", "refusal-says-why", "names nothing"),
    ),
    RefusesThreePages: (Caught("groups", "necessary-refusal", "refused"),),
}
