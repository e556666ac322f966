"""vLLM's planner behind the target interface, whatever its age.

Nothing here compares versions: what a planner can be told, and by which rules
it computes a page, is found out from its classes and from small specs.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import ModuleType
from typing import Any, Final

import msgspec
import torch

from kvfuzz.catalogue import KindForm
from kvfuzz.errors import TargetError
from kvfuzz.outcomes import Group, Plan, Terms
from kvfuzz.pages import Dialect, PageRules, page_size_bytes
from kvfuzz.planner_config import PlannerConfig
from kvfuzz.specs import (
    DTYPE_BYTES,
    QUANT_MODES,
    LayerSpec,
    MLAAttentionSpec,
    OpenSpec,
    Scenario,
    SlidingWindowMLASpec,
)
from kvfuzz.targets.base import sayable, twin
from kvfuzz.targets.discover import open_classes
from kvfuzz.targets.engine_config import StandInConfigs, layouts_of
from kvfuzz.targets.optimized import WithoutAssertions, modules_of
from kvfuzz.targets.own_pages import OwnPages
from kvfuzz.targets.planned import Configs, EnginePlanner
from kvfuzz.targets.standalone import REAL_MODULES

#: Kind -> name of its spec class in vllm/v1/kv_cache_interface.py.
_CLASS_NAMES: Final = {
    "mla_attention": "MLAAttentionSpec",
    "sliding_window_mla": "SlidingWindowMLASpec",
}
#: The surface of the packer, and its functions' names: until 0.28 of the specs
#: alone, from 0.29 on of the engine's config and the specs.
_PACK: Final = "pack"
_PACK_SPECS: Final = "group_and_unify_kv_cache_specs"
_PACK_FOR_ENGINE: Final = "_get_packed_kv_cache_groups"

#: The surfaces of the spec classes themselves.
_MERGE: Final = "merge"
_PAGE: Final = "page"

_NO_MODE: Final = "none"

# Specs for probing: sizes that no two rules turn into one page size.
_PLAIN: Final = {"block_size": 256, "num_kv_heads": 3, "head_size": 52, "dtype": "uint8"}
_MLA: Final = MLAAttentionSpec(**_PLAIN)  # type: ignore[arg-type]
_WINDOW: Final = SlidingWindowMLASpec(**_PLAIN, sliding_window=128)  # type: ignore[arg-type]
_VARIATIONS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"dtype": "float32"},
    {"head_size_v": 8},
    {"num_head_slots": 5},
    {"state_content_bytes": 24},
    {"alignment": 1000},
    {"alignment": 1000, "compress_ratio": 4},
    {"page_size_padded": 1 << 20},
    {"cache_dtype_str": "fp8_ds_mla"},
    {"cache_dtype_str": "fp8_ds_mla", "model_version": "deepseek_v4", "compress_ratio": 4},
    {"model_version": "deepseek_v4", "compress_ratio": 4},
    *({"kv_quant_mode": mode} for mode in QUANT_MODES),
)


def _own_page_size(spec: Any) -> int:
    """Bytes of a page by a native spec's own account."""
    size = spec.page_size_bytes
    if type(size) is not int:
        raise TypeError(f"a page size must be an int, got {type(size).__name__}")
    return size


def _values(native: Any) -> list[Any]:
    """All that an object holds, in the order in which it was set."""
    return [*native.__dict__.values()]


def _holds_fields_only(cls: type) -> bool:
    """Whether the dict of an object of `cls` changes only if its fields do."""
    # A cached property writes into the object's dict when it is first read.
    return cls.__dictoffset__ != 0 and not any(
        isinstance(value, functools.cached_property)
        for base in cls.__mro__
        for value in vars(base).values()
    )


def _packer(
    modules: Sequence[ModuleType], configs: Configs, layouts: tuple[str, ...]
) -> Callable[[dict[str, Any]], Any] | None:
    """The planner's function that packs, of the specs alone; None if it has none."""
    for module in modules:
        if callable(pack := getattr(module, _PACK_SPECS, None)):
            return pack  # type: ignore[no-any-return]
    packing = next((layout for layout in layouts if layout.startswith("B")), None)
    for module in modules:
        pack = getattr(module, _PACK_FOR_ENGINE, None)
        if callable(pack) and packing is not None:
            return functools.partial(pack, configs.make(PlannerConfig(layout=packing)))
    return None


class _SpecClass:
    """One of the planner's spec classes: how to make and look at its objects."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.fields = frozenset(field.name for field in dataclasses.fields(cls) if field.init)


class VllmTarget:
    """A planner of vLLM's, from its two modules. See `kvfuzz.targets.base.Target`.

    Raises:
        TargetError: Its page sizes follow a rule that kvfuzz does not know.
    """

    def __init__(
        self,
        interface: ModuleType,
        utils: ModuleType,
        planning: ModuleType | None = None,
        *,
        configs: Configs | None = None,
        uri: str,
        version: str,
    ) -> None:
        self.uri = uri
        self.version = version
        self._classes = {
            kind: _SpecClass(getattr(interface, name))
            for kind, name in _CLASS_NAMES.items()
            if dataclasses.is_dataclass(getattr(interface, name, None))
        }
        self._open = open_classes(interface)
        self._looks = {entry.cls: entry.look for entry in self._open.values()}
        classes = {*self._looks, *(entry.cls for entry in self._classes.values())}
        fields = {
            cls: operator.attrgetter(*(field.name for field in dataclasses.fields(cls)))
            for cls in classes
        }
        #: See `Target`. One function, and not a choice a spec: each call asks it of each spec.
        self.state: Callable[[Any], Any] = (
            _values
            if all(map(_holds_fields_only, classes))
            else lambda native: fields[type(native)](native)
        )
        modes: type[Enum] | None = getattr(interface, "KVQuantMode", None)
        named = {mode.name.lower(): mode for mode in modes} if modes is not None else {}
        self._modes = {name: named[name] for name in QUANT_MODES if name in named}
        self._dtypes = {name: getattr(torch, name) for name in DTYPE_BYTES}
        modules = [module for module in (planning, utils) if module is not None]
        layouts = layouts_of(interface)
        self._planner = EnginePlanner(
            interface,
            modules,
            configs or StandInConfigs(interface),
            self._look,
            _own_page_size,
        )
        packs = len(self._classes) == len(_CLASS_NAMES)
        #: A function of the specs, if there is one that packs.
        self._pack = _packer(modules, self._planner.configs, layouts) if packs else None
        #: Within it, calls are as under `python -O`.
        self.optimized = WithoutAssertions(modules_of(interface, *modules, named=REAL_MODULES))
        self._own_pages = OwnPages(self._look, _own_page_size)
        planner_surfaces = self._planner.surfaces if self._open else ()
        self.surfaces = (
            *([_PACK] if self._pack else []),
            *planner_surfaces,
            *([_MERGE, _PAGE] if self._open else []),
        )
        self.dialect = Dialect(
            rules=self._probe_rules(),
            fields={kind: entry.fields for kind, entry in self._classes.items()},
            quant_modes=frozenset(self._modes) | {_NO_MODE},
            catalogue={
                kind: KindForm(entry.cls.__name__, entry.forms)
                for kind, entry in self._open.items()
            },
            layouts=layouts,
            functions=self._planner.functions,
            facts=self._planner.facts,
        )
        if self._pack:
            self._check_rules()

    def config_of(self, surface: str) -> str:
        """Where the engine's config comes from that a surface plans by; "" if it reads none."""
        return self._planner.configs.kind if surface in self._planner.surfaces else ""

    def translate(self, spec: LayerSpec) -> Any:
        """A spec of the planner's own class; what the class itself raises is passed on.

        Only fields that are not at their default are handed over, so that the
        planner's own defaults hold.
        """
        if isinstance(spec, OpenSpec):
            return self._open[spec.kind].make(spec)
        # A struct of ours leaves out what is at its default.
        values: dict[str, Any] = msgspec.to_builtins(spec)
        cls = self._classes[values.pop("kind")].cls
        values["dtype"] = self._dtypes[spec.dtype]
        if spec.kv_quant_mode != _NO_MODE:
            values["kv_quant_mode"] = self._modes[spec.kv_quant_mode]
        return cls(**values)

    def page_size(self, spec: LayerSpec, native: Any) -> int:
        """By `kvfuzz.pages`, or of an open spec by its own account."""
        if isinstance(spec, OpenSpec):
            return _own_page_size(native)
        return page_size_bytes(spec, self.dialect.rules)

    def another(self, native: Any) -> Any:
        """A copy."""
        return twin(native)

    def call(self, surface: str, specs: dict[str, Any], scenario: Scenario) -> Any:
        """Call the planner's own function, or ask its spec classes themselves."""
        if surface == _PAGE:
            return self._own_pages.call(specs)
        if surface == _MERGE:
            natives = list(specs.values())
            return type(natives[0]).merge(natives)
        if surface in self._planner.surfaces:
            return self._planner.call(surface, specs, scenario)
        assert self._pack is not None
        return self._pack(specs)

    def normalise(
        self, surface: str, answer: Any, specs: Mapping[str, Any], pages: Mapping[int, int]
    ) -> Plan:
        """The plan that a list of the planner's groups is; None is the plan of no groups.

        Raises:
            TypeError: It is no list of groups with a spec for each layer name.
        """
        if surface == _MERGE:
            return self._merged(answer, specs)
        if surface == _PAGE:
            return self._own_pages.normalise(answer, specs)
        if surface in self._planner.surfaces:
            return self._planner.normalise(answer, specs)
        if answer is None:
            return Plan(groups=None)
        if not isinstance(answer, list | tuple):
            raise TypeError(f"a plan must be a list or None, got {type(answer).__name__}")
        sizes = dict(pages)  # the answer keeps its specs alive, so that ids are unique
        groups = []
        for group in answer:
            # From 0.29 on the specs are in the one that the group has.
            layers = getattr(getattr(group, "kv_cache_spec", group), "kv_cache_specs", None)
            if not isinstance(layers, dict):
                raise TypeError(f"a group must hold a dict of specs, got {type(group).__name__}")
            names = tuple(layers)
            members = layers.values()
            if not layers.keys() <= specs.keys():
                if not all(type(name) is str for name in names):
                    raise TypeError("a group must hold its specs by layer name")
                names = tuple(map(sayable, names))
            for spec in members:
                if id(spec) not in sizes:
                    sizes[id(spec)] = _own_page_size(spec)
            groups.append(Group(names, tuple([sizes[id(spec)] for spec in members])))
        return Plan(tuple(groups))

    def _look(self, native: Any) -> OpenSpec:
        """What a spec that the planner made holds.

        Raises:
            TypeError: It is of no class that a layer can have.
        """
        look = self._looks.get(type(native))
        if look is None:
            raise TypeError(f"a layer cannot have a {type(native).__name__}")
        return look(native)

    def _merged(self, answer: Any, specs: Mapping[str, Any]) -> Plan:
        """The plan of one group that a merged spec is."""
        if type(answer) not in self._looks:
            raise TypeError(f"a merge must give a spec of a layer, got {type(answer).__name__}")
        distinct = {id(spec): spec for spec in specs.values()}.values()
        looks = {id(spec): self._looks[type(spec)](spec) for spec in distinct}
        made = self._looks[type(answer)](answer)
        terms = Terms(
            given=tuple(looks[id(spec)] for spec in specs.values()),
            planned=(made,) * len(specs),
            shared=made,
        )
        return Plan((Group(tuple(specs), (_own_page_size(answer),) * len(specs), terms),))

    def _probed(self, spec: LayerSpec, **fields: Any) -> int | None:
        """The page size of `spec` with other fields; None if it cannot be expressed."""
        entry = self._classes.get(spec.kind)
        known = entry is not None and set(fields) <= entry.fields
        if not known or fields.get("kv_quant_mode", _NO_MODE) not in {*self._modes, _NO_MODE}:
            return None
        try:
            size = self.translate(msgspec.structs.replace(spec, **fields)).page_size_bytes
        except Exception:  # the class refuses the combination
            return None
        return size if isinstance(size, int) else None

    def _differ(self, spec: LayerSpec, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whether two variations of a spec can both be expressed, with other page sizes."""
        sizes = self._probed(spec, **one), self._probed(spec, **other)
        return None not in sizes and sizes[0] != sizes[1]

    def _probe_rules(self) -> PageRules:
        """Which page rules hold, each by two specs that only it tells apart."""
        int8 = {"kv_quant_mode": "int8_per_token_head"}
        int4 = {"kv_quant_mode": "int4_per_token_head"}
        return PageRules(
            value_head=any(self._differ(s, {}, {"head_size_v": 8}) for s in (_MLA, _WINDOW)),
            ds_mla_records=self._differ(_MLA, {}, {"cache_dtype_str": "fp8_ds_mla"}),
            v4_windows_are_records=self._differ(_WINDOW, {}, {"model_version": "deepseek_v4"}),
            per_token_head_scales=self._differ(_WINDOW, {}, int8),
            int4_packs_mla=self._differ(_MLA, int8, int4),
        )

    def _check_rules(self) -> None:
        """Compare `kvfuzz.pages` with the real classes, so that no mix is judged by wrong pages."""
        for base in (_MLA, _WINDOW):
            for fields in _VARIATIONS:
                spec = msgspec.structs.replace(base, **fields)
                real = self._probed(base, **fields)
                if real is None or self.dialect.lacks(spec) is not None:
                    continue
                ours = page_size_bytes(spec, self.dialect.rules)
                if real != ours:
                    raise TargetError(
                        f"{self.uri} computes page sizes by a rule that kvfuzz does not know: "
                        f"{real} bytes, not {ours}, for {spec!r}."
                    )


def adapt(
    interface: ModuleType,
    utils: ModuleType,
    uri: str,
    version: str,
    *,
    planning: ModuleType | None = None,
    configs: Configs | None = None,
) -> VllmTarget:
    """A target over a vLLM that is loaded in this process, for anyone's `module:factory`.

    A plugin that patches vLLM's planner patches first, then adapts.

    Args:
        interface: The module `vllm.v1.kv_cache_interface`.
        utils: The module `vllm.v1.core.kv_cache_utils`.
        uri: What to call it.
        version: Its version, for people.
        planning: The module `vllm.v1.core.kv_cache_planning`, if there is one.
        configs: Makes the engine's configs; None for stand-ins.

    Raises:
        TargetError: Its page sizes follow a rule that kvfuzz does not know.
    """
    return VllmTarget(interface, utils, planning, configs=configs, uri=uri, version=version)
