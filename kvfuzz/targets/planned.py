"""vLLM's planner for an engine: groups and configs, called and made neutral, whatever its age.

There have been two ages of its answers. Until 0.28 a tensor is a buffer that
the layers in `shared_by` share, or a part of one packed buffer; from 0.29 on
it is a run of layers in one buffer, with a stride a layer and a stride a
block. Both become a place for each layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from kvfuzz.outcomes import Group, Place, Plan, Rank, Row, Terms
from kvfuzz.planner_config import PlannerConfig
from kvfuzz.specs import OpenSpec, Scenario
from kvfuzz.targets.base import sayable
from kvfuzz.targets.rows import rows_of, tells_rows

#: Bytes that no mix needs.
_PLENTY: Final = 1 << 60
# Specs kept that planners made: bounds memory.
_KEPT_SPECS: Final = 20_000


class Configs(Protocol):
    """Where the engine's configs come from.

    Attributes:
        kind: "real" if an engine makes them, or "stand-in".
    """

    @property
    def kind(self) -> str: ...  # noqa: D102 - see above

    def warm_up(self) -> None:
        """Do what takes long now, outside of any call.

        Raises:
            TargetError: No config can be made.
        """
        ...

    def make(self, config: PlannerConfig) -> Any:
        """A new config object of the engine's.

        Raises:
            Unreachable: No engine has these settings.
        """
        ...


class Planned(NamedTuple):
    """What a planner returned: groups or a config a rank, the engine's config, memory a rank."""

    groups: Any
    config: Any
    ranks: Any = None
    memory: Sequence[int] = ()


class EnginePlanner:
    """The functions of one planner that plan for an engine.

    Args:
        interface: The module of its spec classes.
        modules: Where its functions are, the first that has one counts.
        configs: Makes the engine's configs.
        look: What a native spec holds.
        page: Bytes of a native spec's page.
    """

    def __init__(
        self,
        interface: ModuleType,
        modules: Sequence[ModuleType],
        configs: Configs,
        look: Callable[[Any], OpenSpec],
        page: Callable[[Any], int],
    ) -> None:
        #: Function -> name of the module that it is in, of those that there are.
        self.functions: dict[str, str] = {}

        def function(name: str) -> Any:
            for module in modules:
                if callable(found := getattr(module, name, None)):
                    self.functions[name] = module.__name__
                    return found
            return None

        self._get_groups = function("get_kv_cache_groups")
        self._get_configs = function("get_kv_cache_configs")
        self._get_global_groups = function("get_global_kv_cache_groups")
        self._get_kind = getattr(interface, "get_kv_cache_spec_kind", None)
        self._tells_rows = tells_rows(interface)
        #: Makes the configs.
        self.configs = configs
        self._look = look
        self._page = page
        self._kept: dict[Any, _Seen] = {}
        #: What a config says of itself by yes or no: properties of its class.
        self.facts = _facts(getattr(interface, "KVCacheConfig", None))
        found = {"groups": self._get_groups, "config": self._get_configs}
        #: Which surfaces it has.
        self.surfaces = tuple(surface for surface, f in found.items() if f is not None)

    def call(self, surface: str, specs: dict[str, Any], scenario: Scenario) -> Planned:
        """Call it; what it raises is passed on untouched."""
        if scenario.drafts:
            specs = self._marked(specs, scenario)
        config = self.configs.make(scenario.config)
        if surface == "groups":
            return Planned(self._get_groups(config, specs), config)
        return self._configured(specs, scenario, config)

    def _marked(self, specs: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
        """The specs, those of draft layers marked, where there is such a mark."""
        marked = specs
        for name in scenario.draft_names():
            if hasattr(spec := specs[name], "is_draft"):
                marked = marked if marked is not specs else dict(specs)
                marked[name] = dataclasses.replace(spec, is_draft=True)
        return marked

    def _configured(self, specs: dict[str, Any], scenario: Scenario, config: Any) -> Planned:
        ranks = _by_rank(specs, scenario)
        wanted = scenario.config
        memory = [_PLENTY] * len(ranks)
        if wanted.spare_blocks is not None:
            memory = self._memory(ranks, wanted)
        return self._plan(ranks, memory, config)

    def _plan(self, ranks: list[dict[str, Any]], memory: list[int], config: Any) -> Planned:
        if self._get_global_groups is None:
            made = self._get_configs(config, ranks, memory)
        else:
            groups = self._get_global_groups(config, ranks)
            made = self._get_configs(config, ranks, memory, groups)
        return Planned(None, config, made, memory)

    def _memory(self, ranks: list[dict[str, Any]], wanted: PlannerConfig) -> list[int]:
        """Bytes of each rank that hold the wanted number of blocks.

        What a block takes is seen from what the planner itself does with memory in plenty.
        """
        plain = msgspec.structs.replace(wanted.in_plenty(), auto_fit=False)
        copies = [dict(specs) for specs in ranks]
        answer = self._plan(copies, [_PLENTY] * len(ranks), self.configs.make(plain))
        memory = []
        for made in answer.ranks:
            block = sum(_buffers(made.kv_cache_tensors)[0]) // made.num_blocks
            memory.append(wanted.memory(sum(_needed(made, answer.config)), block))
        return memory

    def normalise(self, answer: Planned, specs: Mapping[str, Any]) -> Plan:
        """The plan that an answer is.

        Raises:
            TypeError: It is not of the form that the function returns.
        """
        if answer.ranks is None:
            return Plan(self._groups(_listed(answer.groups, "groups"), answer, specs))
        made = _listed(answer.ranks, "configs")
        groups = self._whole_groups(made, answer, specs)
        model = answer.config.model_config
        length = model.max_model_len
        needed = [_needed(config, answer.config) for config in made]
        told = self._tells_rows
        rows = [rows_of(config, specs, answer.config) if told else () for config in made]
        model.max_model_len += 1
        longer = [sum(_needed(config, answer.config)) for config in made]
        ranks = tuple(map(_rank, made, answer.memory, needed, longer, rows))
        facts = tuple(fact for fact in self.facts if any(getattr(one, fact) for one in made))
        return Plan(groups, ranks, length, facts)

    def _whole_groups(
        self, made: Sequence[Any], answer: Planned, specs: Mapping[str, Any]
    ) -> tuple[Group, ...]:
        """The groups of all ranks, each put together from its layers on each."""
        by_rank = [self._groups(config.kv_cache_groups, answer, specs) for config in made]
        if len(by_rank) == 1:
            return by_rank[0]
        if len({len(groups) for groups in by_rank}) > 1:
            raise TypeError("all ranks must have the same number of groups")
        return tuple(map(_joined, *by_rank))

    def _groups(
        self, groups: Sequence[Any], answer: Planned, specs: Mapping[str, Any]
    ) -> tuple[Group, ...]:
        reading = _Reading(self, answer.config)
        made = []
        for group in groups:
            names = tuple(group.layer_names)
            if not all(type(name) is str for name in names):
                raise TypeError("a group must name its layers by strings")
            spec = group.kv_cache_spec
            by_layer = getattr(spec, "kv_cache_specs", None)
            befores = [reading.given(specs.get(name)) for name in names]
            if by_layer is None:
                seen = reading.seen(spec) if names else _NOTHING
                planned = (seen.look,) * len(names)
                pages = (seen.page,) * len(names)
            else:
                members = [reading.seen(by_layer[name]) for name in names]
                planned = tuple([member.look for member in members])
                pages = tuple([member.page for member in members])
            terms = Terms(
                given=tuple([before[0] for before in befores]),
                planned=planned,
                shared=planned[0] if by_layer is None and names else None,
                kind=self._kind(spec, [specs[name] for name in names if name in specs]),
                drafts=bool(getattr(group, "is_eagle_group", False)),
                own_blocks=tuple([before[1] for before in befores]),
            )
            if not specs.keys() >= set(names):
                names = tuple(map(sayable, names))
            made.append(Group(names, pages, terms))
        return tuple(made)

    def _kind(self, spec: Any, members: Sequence[Any]) -> str:
        """What it calls a group's kind; "" if it has no word for any of the layers either."""
        if self._get_kind is None or not members:
            return ""
        kind = self._get_kind(spec)
        if kind.name == "UNKNOWN" and all(self._get_kind(own) is kind for own in members):
            return ""
        return str(kind.name.lower())

    def see(self, native: Any) -> _Seen:
        """What a spec holds and the bytes of its page; alike ones share it."""
        try:
            key = (type(native), *vars(native).values())
            kept = self._kept.get(key)
        except TypeError:  # it holds a list
            return _Seen(self._look(native), self._page(native))
        if kept is None:
            if len(self._kept) >= _KEPT_SPECS:
                self._kept.clear()
            kept = self._kept[key] = _Seen(self._look(native), self._page(native))
        return kept


class _Seen(NamedTuple):
    """What a spec holds, and the bytes of its page."""

    look: OpenSpec
    page: int


#: What stands for the spec of a layer that nobody asked about.
_NOTHING: Final = _Seen(OpenSpec("", ()), 0)


class _Reading:
    """The specs of one answer, and what they take of its engine."""

    def __init__(self, planner: EnginePlanner, config: Any) -> None:
        self._planner = planner
        self._config = config
        self._last: Any = None
        self._last_seen = _NOTHING
        self._given: dict[int, tuple[OpenSpec, int]] = {id(_NOTHING.look): (_NOTHING.look, 0)}

    def seen(self, native: Any) -> _Seen:
        """A spec as it is in the plan."""
        # Layers have a spec each, which most often is like that of the layer before.
        last = self._last
        if type(native) is not type(last) or vars(native) != vars(last):
            self._last, self._last_seen = native, self._planner.see(native)
        return self._last_seen

    def given(self, native: Any) -> tuple[OpenSpec, int]:
        """A spec as it was given: what it held, and the blocks of one longest request."""
        look, page = self.seen(native) if native is not None else _NOTHING
        given = self._given.get(id(look))
        if given is None:
            given = self._given[id(look)] = look, _of_one(native, page, self._config)
        return given


def _facts(cls: type | None) -> tuple[str, ...]:
    """Names of a class's properties that are yes or no."""
    getters = {
        name: getattr(value, "fget", None) or getattr(value, "func", None)
        for name, value in (vars(cls) if cls is not None else {}).items()
        if isinstance(value, property | cached_property)
    }
    yes_or_no = (bool, "bool")
    return tuple(n for n, f in getters.items() if f.__annotations__.get("return") in yes_or_no)


def _by_rank(specs: dict[str, Any], scenario: Scenario) -> list[dict[str, Any]]:
    if not scenario.ranks:
        return [specs]
    ranks: list[dict[str, Any]] = [{} for _ in range(max(scenario.ranks) + 1)]
    for (name, spec), rank in zip(specs.items(), scenario.ranks, strict=True):
        ranks[rank][name] = spec
    return ranks


def _listed(answer: Any, what: str) -> Sequence[Any]:
    if not isinstance(answer, list | tuple):
        raise TypeError(f"the {what} must be a list, got {type(answer).__name__}")
    return answer


def _blocks(spec: Any, config: Any) -> int:
    """Blocks that one longest request takes, by a spec's own account."""
    members = getattr(spec, "kv_cache_specs", None)
    parts = [spec] if members is None else {id(s): s for s in members.values()}.values()
    most = 0
    for part in parts:
        most = max(most, _of_one(part, part.page_size_bytes, config))
    return most


def _of_one(spec: Any, page: int, config: Any) -> int:
    """The same of a spec for one layer, with pages of so many bytes."""
    return -(-spec.max_memory_usage_bytes(config) // page) if page else 0


def _needed(made: Any, config: Any) -> tuple[int, ...]:
    """Blocks that one longest request takes of each group of a rank."""
    return tuple(_blocks(group.kv_cache_spec, config) for group in made.kv_cache_groups)


def _buffers(tensors: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Bytes of each buffer, and which of them each tensor is in."""
    sizes: list[int] = []
    where = []
    packed = None  # the one buffer that packed tensors share
    for tensor in tensors:
        if not getattr(tensor, "block_stride", 0):
            where.append(len(sizes))
            sizes.append(tensor.size)
        else:
            if packed is None:
                packed = len(sizes)
                sizes.append(tensor.size)
            where.append(packed)
    return sizes, where


def _rank(
    made: Any, memory: int, needed: tuple[int, ...], longer: int, rows: tuple[Row, ...]
) -> Rank:
    sizes, where = _buffers(made.kv_cache_tensors)
    places = []
    for tensor, buffer in zip(made.kv_cache_tensors, where, strict=True):
        if hasattr(tensor, "layers"):
            for number, layer in enumerate(tensor.layers):
                offset = tensor.offset + number * tensor.layer_stride
                places.append(Place(layer, buffer, offset, tensor.block_stride))
        else:
            stride = getattr(tensor, "block_stride", 0) or tensor.size // max(made.num_blocks, 1)
            offset = getattr(tensor, "offset", 0)
            places += [Place(layer, buffer, offset, stride) for layer in tensor.shared_by]
    groups = tuple(tuple(group.layer_names) for group in made.kv_cache_groups)
    return Rank(groups, made.num_blocks, tuple(sizes), tuple(places), memory, needed, longer, rows)


def _joined(*parts: Group) -> Group:
    """One group of its parts on each rank."""
    told = [part.terms for part in parts if part.terms is not None]
    layered = [terms for part, terms in zip(parts, told, strict=True) if part.layers]
    terms = Terms(
        given=tuple(spec for terms in told for spec in terms.given),
        planned=tuple(spec for terms in told for spec in terms.planned),
        shared=layered[0].shared if layered else None,
        kind=layered[0].kind if layered else "",
        drafts=any(terms.drafts for terms in told),
        own_blocks=tuple(n for terms in told for n in terms.own_blocks),
    )
    layers = tuple(layer for part in parts for layer in part.layers)
    return Group(layers, tuple(page for part in parts for page in part.pages), terms)
