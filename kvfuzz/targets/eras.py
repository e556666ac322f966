"""vLLM's planner behind the target interface, whatever its release looks like.

Releases differ in classes, fields, functions and page rules. All of that is
found out by looking at the loaded modules and by asking them; a version is
never compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from kvfuzz.errors import TargetError
from kvfuzz.outcomes import Group, Plan
from kvfuzz.pages import DEFAULTS, Dialect, PageRules
from kvfuzz.specs import LayerSpec

#: Kind -> name of the spec class, in every release that has the kind.
CLASS_NAMES = {
    "mla_attention": "MLAAttentionSpec",
    "sliding_window_mla": "SlidingWindowMLASpec",
}
#: Surface -> name of the function.
FUNCTION_NAMES = {"pack": "group_and_unify_kv_cache_specs"}


class VllmTarget:
    """The planner of one vLLM: its spec classes and its functions.

    Args:
        interface: The module with the spec classes, `kv_cache_interface`.
        planner: The module with the functions, `kv_cache_utils`.
        uri: What the user called it.
        version: Its version.

    Raises:
        TargetError: The modules have no MLA spec class at all.
    """

    def __init__(
        self, interface: ModuleType, planner: ModuleType, *, uri: str, version: str
    ) -> None:
        import torch

        self.uri = uri
        self.version = version
        self._torch = torch
        self._modes = {mode.name.lower(): mode for mode in getattr(interface, "KVQuantMode", ())}
        self._classes = {
            kind: getattr(interface, name)
            for kind, name in CLASS_NAMES.items()
            if hasattr(interface, name)
        }
        if not self._classes:
            raise TargetError(f"{uri} has no spec class of MLA layers.")
        self._functions = {
            surface: getattr(planner, name)
            for surface, name in FUNCTION_NAMES.items()
            if hasattr(planner, name)
        }
        self.surfaces = tuple(self._functions)
        self.dialect = Dialect(
            rules=self._probe_rules(),
            fields={
                kind: frozenset(field.name for field in dataclasses.fields(cls))
                for kind, cls in self._classes.items()
            },
            quant_modes=frozenset(self._modes) | {"none"},
        )

    def translate(self, spec: LayerSpec) -> Any:
        """The release's own spec; fields at their default are left to the release."""
        values = {
            name: getattr(spec, name)
            for name, default in DEFAULTS[spec.kind].items()
            if getattr(spec, name) != default
        }
        return self._build(spec.kind, values)

    def _build(self, kind: str, values: dict[str, Any]) -> Any:
        values = values | {"dtype": getattr(self._torch, values["dtype"])}
        if "kv_quant_mode" in values:
            values["kv_quant_mode"] = self._modes[values["kv_quant_mode"]]
        return self._classes[kind](**values)

    def state(self, native: Any) -> Any:
        """All attributes in order, as one comparable value."""
        return tuple(vars(native).items())

    def call(self, surface: str, specs: dict[str, Any]) -> Any:
        """Call the release's function."""
        return self._functions[surface](specs)

    def normalise(self, surface: str, answer: Any, specs: Mapping[str, Any]) -> Plan:
        """Groups of names with the page sizes that the plan's own specs have, in bytes."""
        if answer is None:
            return Plan(groups=None)
        sizes: dict[int, int] = {}
        groups = []
        for group in answer:
            members = group.kv_cache_specs
            pages = []
            for spec in members.values():
                size = sizes.get(id(spec))
                if size is None:
                    size = sizes[id(spec)] = spec.page_size_bytes
                pages.append(size)
            groups.append(Group(layers=tuple(members), pages=tuple(pages)))
        return Plan(groups=tuple(groups))

    # Probing: each rule is one small spec whose page tells.

    def _page(self, kind: str, **fields: Any) -> int | None:
        """Page size in bytes of a block of one token and head of two bytes; None if refused."""
        values: dict[str, Any] = {
            "block_size": 1,
            "num_kv_heads": 1,
            "head_size": 2,
            "dtype": "uint8",
        }
        if kind == "sliding_window_mla":
            values["sliding_window"] = 1
        try:
            return int(self._build(kind, values | fields).page_size_bytes)
        except (TypeError, KeyError, AssertionError, ValueError):
            return None  # no such class, field, mode or value here

    def _probe_rules(self) -> PageRules:
        full, window = CLASS_NAMES
        v4 = {"model_version": "deepseek_v4"}
        int4 = self._page(full, kv_quant_mode="int4_per_token_head")
        scales = self._page(full, kv_quant_mode="int8_per_token_head")
        with_scales = scales is not None and scales > 2
        return PageRules(
            value_head=self._page(full, head_size_v=1) == 3,
            ds_mla_records=(self._page(full, cache_dtype_str="fp8_ds_mla") or 0) > 2,
            v4_windows_are_records=(self._page(window, **v4) or 0) > 2,
            per_token_head_scales=with_scales,
            int4_packs_mla=int4 is not None and int4 - (8 if with_scales else 0) == 1,
        )
