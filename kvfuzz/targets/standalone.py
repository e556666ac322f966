"""Loading a release's planner alone, from its sources, without the rest of vLLM.

A planner lives in a handful of modules of plain Python. Those on the
allow-list below are loaded as they are; every other module of vLLM is a
stand-in. A stand-in's names may be imported, subclassed, decorated with and
used in annotations; as soon as a planner *uses* one, it raises, so that a
stand-in can never change a result silently. Packages of other people are
never faked.

One process holds one release: the modules go by their real names.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from kvfuzz.errors import HarnessFault, TargetError

#: Modules that are loaded as they are: the planner's own, and what they compute with.
REAL_MODULES = frozenset(
    {
        "vllm.envs",
        "vllm.v1.kv_cache_interface",
        "vllm.v1.kv_cache_layout",
        "vllm.v1.kv_cache_spec_registry",
        "vllm.v1.core.kv_cache_utils",
        "vllm.v1.core.kv_cache_planning",
        "vllm.v1.core.kv_cache_config_builder",
        "vllm.v1.core.single_type_kv_cache_manager",
        "vllm.v1.hisparse.layout",
    }
)
#: Packages all of whose modules are loaded as they are.
REAL_PACKAGES = ("vllm.utils",)
#: Packages whose own `__init__` is not run: they only hold the modules above.
HOLLOW_PACKAGES = frozenset({"vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.hisparse"})


class StandInUsed(HarnessFault):
    """The planner used a part of vLLM that was not loaded; the message names it."""


class _StandInMeta(type):
    """Makes a stand-in's name usable as a base class and in annotations, and no more."""

    def _used(cls, *_: Any, **__: Any) -> NoReturn:
        raise StandInUsed(
            f"the planner used {cls.__module__}.{cls.__qualname__}, which is only a stand-in here"
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls._stand_in():
            # A decorator is given one class or function, and hands it back.
            if len(args) == 1 and not kwargs and callable(args[0]):
                return args[0]
            cls._used()
        return super().__call__(*args, **kwargs)

    def _stand_in(cls) -> bool:
        return bool(cls.__dict__.get("_kvfuzz_stand_in"))

    def __getattr__(cls, name: str) -> Any:
        # Only names that a stand-in may have are asked for in annotations and
        # class bodies (`Enum.MEMBER` as a default); they are stand-ins too.
        if name.startswith("__") or not cls._stand_in():
            raise AttributeError(name)
        value = _stand_in(cls.__module__, f"{cls.__qualname__}.{name}")
        setattr(cls, name, value)  # the same each time: enum members are compared
        return value

    def __instancecheck__(cls, instance: Any) -> bool:
        if cls._stand_in():
            cls._used()
        return super().__instancecheck__(instance)

    def __or__(cls, other: Any) -> Any:
        return Any

    def __ror__(cls, other: Any) -> Any:
        return Any

    def __getitem__(cls, _: Any) -> Any:
        return cls

    __bool__ = __iter__ = __len__ = __contains__ = _used
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __mul__ = __sub__ = _used


def _stand_in(module: str, name: str) -> type:
    return _StandInMeta(name, (), {"__module__": module, "_kvfuzz_stand_in": True})


class _StandInModule(ModuleType):
    """A module of vLLM that is not loaded: any name can be imported from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _stand_in(self.__name__, name)
        setattr(self, name, value)
        return value


class _Silent:
    """A logger that says nothing, whatever it is told."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class _Platform:
    """A plain CPU: no special capabilities, nothing to register."""

    dispatch_key = "CPU"
    simple_compile_backend = "eager"

    def register_custom_kv_cache_specs(self, *_: Any) -> None:
        """Platforms may add spec classes of their own; this one has none."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("is_", "has_", "use_", "support")):
            return lambda *_, **__: False
        raise StandInUsed(f"the planner used current_platform.{name}, of which kvfuzz knows nothing")


#: What stands in where a value is needed while modules are loaded or planners plan.
_GIVEN: dict[str, dict[str, Any]] = {
    "vllm.logger": {"init_logger": lambda name: _Silent(), "logger": _Silent()},
    "vllm.config": {"get_current_vllm_config_or_none": lambda: None},
    "vllm.platforms": {"current_platform": _Platform()},
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every `vllm` module: real from `root`, hollow, or a stand-in."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] != "vllm":
            return None
        base = self._root.joinpath(*name.split("."))
        real = name in REAL_MODULES or any(
            name == package or name.startswith(f"{package}.") for package in REAL_PACKAGES
        )
        if real:
            package = base / "__init__.py"
            if package.is_file():
                return importlib.util.spec_from_file_location(
                    name, package, submodule_search_locations=[str(base)]
                )
            if (file := base.with_suffix(".py")).is_file():
                return importlib.util.spec_from_file_location(name, file)
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        hollow = spec.name in HOLLOW_PACKAGES
        module = ModuleType(spec.name) if hollow else _StandInModule(spec.name)
        module.__dict__.update(_GIVEN.get(spec.name, {}))
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: its contents are given or made up when asked for."""


def load_alone(root: Path, name: str) -> SimpleNamespace:
    """Load the planner of the vLLM sources below `root`, in this process.

    Args:
        root: The folder that holds `vllm/`.
        name: What to call it in messages.

    Returns:
        The real modules: `interface` (spec classes) and `planner` (functions).

    Raises:
        TargetError: The sources lack a module, do not compile, or need a
            package that is not installed; or a vLLM is imported already.
    """
    if "vllm" in sys.modules:
        raise TargetError(
            f"{name} cannot be loaded into a process that has imported vllm: run it apart."
        )
    if not (root / "vllm" / "v1" / "kv_cache_interface.py").is_file():
        raise TargetError(f"{name}: {root} holds no vllm/v1/kv_cache_interface.py.")
    finder = _Finder(root)
    sys.meta_path.insert(0, finder)
    try:
        interface = importlib.import_module("vllm.v1.kv_cache_interface")
        planner = importlib.import_module("vllm.v1.core.kv_cache_utils")
        # Releases with a registry of spec classes fill it from here.
        importlib.import_module("vllm.v1.core.single_type_kv_cache_manager")
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing != "vllm":
            raise TargetError(f"{name} needs the package {missing}: pip install {missing}.") from None
        raise TargetError(f"{name} lacks the module {error.name}.") from None
    except HarnessFault as error:
        raise TargetError(f"{name} cannot be loaded alone: {error}.") from None
    except Exception as error:
        raise TargetError(f"{name} cannot be loaded: {type(error).__name__}: {error}.") from None
    return SimpleNamespace(interface=interface, planner=planner)
