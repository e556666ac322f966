"""A stand-in for the engine's config, for a planner that is loaded alone.

It has what planners were seen to read, with the values that an engine of
`PlannerConfig` has. Reading anything else ends the run with a sentence that
names it, so that a setting of tomorrow's release can not be planned by at a
value that nobody chose.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any, Final

from kvfuzz.planner_config import PlannerConfig
from kvfuzz.settings import LAYOUT, Returns, settings_of
from kvfuzz.targets.base import Unreachable, twin
from kvfuzz.targets.standalone import StandInUsed

# Configs kept: bounds memory.
_KEPT: Final = 4096
#: The parts that planners write into: each call has its own.
_WRITTEN: Final = ("model_config", "cache_config")


class Part:
    """A part of a config: the attributes that it was given, and no others."""

    def __init__(self, part: str, values: dict[str, Any]) -> None:
        self.__dict__.update(values, _part=part)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise StandInUsed(
            f"The planner read {self._part}.{name}, of which kvfuzz's stand-in for an engine's "
            "config knows nothing."
        )


def layouts_of(interface: ModuleType) -> tuple[str, ...]:
    """Names of the physical layouts that a planner has, the plain one first.

    Only those that keep a page in one piece: others an engine takes for
    models of one page size alone, where they change nothing of the plan.
    """
    layouts = getattr(interface, "KVCacheLayout", None) or ()
    return tuple(layout.name for layout in layouts if set(layout.name[:2]) == {"L", "B"})


def _keeps_all(interface: ModuleType) -> bool:
    """Whether an engine can keep every state of a sequence: then what that takes is computed."""
    spec = getattr(interface, "MambaSpec", None)
    size = getattr(spec, "max_memory_usage_bytes", None)
    return "all" in getattr(getattr(size, "__code__", None), "co_consts", ())


class StandInConfigs:
    """Makes configs for a planner of this interface. See `kvfuzz.targets.planned.Configs`."""

    kind: Final = "stand-in"

    def __init__(self, interface: ModuleType) -> None:
        layouts = getattr(interface, "KVCacheLayout", None) or ()
        self._layouts = {layout.name: layout for layout in layouts}
        self._keeps_all = _keeps_all(interface)
        self._kept: dict[PlannerConfig, Part] = {}

    def warm_up(self) -> None:
        """Nothing takes long."""

    def make(self, config: PlannerConfig) -> Any:
        """A new config object; planners write into it."""
        kept = self._kept.get(config)
        if kept is None:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            kept = self._kept[config] = self._made(config)
        made = twin(kept)
        for part in _WRITTEN:
            vars(made)[part] = twin(getattr(kept, part))
        return made

    def _made(self, config: PlannerConfig) -> Part:
        if config.mamba_cache_mode == "all" and not self._keeps_all:
            raise Unreachable("its engine has no mamba_cache_mode 'all'")
        layout = self._layouts.get(config.layout or next(iter(self._layouts), ""))
        settings = settings_of(config)
        part, name = LAYOUT
        settings[part][name] = Returns(layout)
        return _made("vllm_config", settings)


def _made(name: str, settings: dict[str, Any]) -> Part:
    """The part that has these settings: parts, methods and plain values."""
    values = settings.copy()
    for key, value in settings.items():
        if type(value) is dict:
            values[key] = _made(key, value)
        elif type(value) is Returns:
            values[key] = partial(getattr, value, "value")
    return Part(name, values)
