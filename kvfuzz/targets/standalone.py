"""Loading a release's planner alone: its own modules are real, the rest of vLLM stands in.

The planner lives in a handful of modules of plain Python; the package around
them needs compiled code and gigabytes. What is real is an allow-list: the
planner's modules and the utilities they compute with. Every other module of
vLLM is a stand-in: its names may be imported, subclassed and annotated with,
and raise `StandInUsed` as soon as they could influence a result. Only `is`
cannot be caught.

Third-party packages are never faked. One process holds one planner.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, NoReturn

from kvfuzz.errors import HarnessFault, TargetError
from kvfuzz.targets.sentences import said

#: The modules that a planner is, and what they compute with.
REAL_MODULES: Final = frozenset(
    {
        "vllm.envs",
        "vllm.v1.attention.backends.registry",
        "vllm.v1.kv_cache_interface",
        "vllm.v1.kv_cache_layout",
        "vllm.v1.kv_cache_spec_registry",
        "vllm.v1.core.kv_cache_config_builder",
        "vllm.v1.core.kv_cache_planning",
        "vllm.v1.core.kv_cache_utils",
        "vllm.v1.core.single_type_kv_cache_manager",
        "vllm.v1.hisparse.layout",
    }
)
#: The package that is real as a whole.
REAL_PACKAGE: Final = "vllm.utils"
#: Packages that hold real modules; their own `__init__` is not run.
BARE_PACKAGES: Final = frozenset({"vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.hisparse"})

INTERFACE: Final = "vllm.v1.kv_cache_interface"
UTILS: Final = "vllm.v1.core.kv_cache_utils"
PLANNING: Final = "vllm.v1.core.kv_cache_planning"


class StandInUsed(HarnessFault):
    """A planner used a part of vLLM that is not loaded.

    Not an Exception (see HarnessFault): no handler of the planner's can turn
    it into a result.
    """


class StandIn:
    """A name of a module that is not loaded."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_kvfuzz_name", name)

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self._kvfuzz_name}.{name}")

    def __repr__(self) -> str:
        return f"<stand-in for {self._kvfuzz_name}>"

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """A class to derive from in its place; its objects cannot be made."""
        stand_in = self

        def new(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
            _used(stand_in)

        return (type("StandInBase", (), {"__new__": new}),)

    # What annotations do.
    def __or__(self, other: Any) -> StandIn:
        return self

    __ror__ = __or__

    def __getitem__(self, item: Any) -> StandIn:
        return self

    # typing hashes and compares what is subscripted; for anyone else that is a use.
    def __hash__(self) -> int:
        if sys._getframe(1).f_globals.get("__name__") != "typing":
            _used(self)
        return id(self)

    def __eq__(self, other: object) -> bool:
        if self is not other and sys._getframe(1).f_globals.get("__name__") != "typing":
            _used(self)
        return self is other


def _used(stand_in: StandIn, *_: Any, **__: Any) -> NoReturn:
    raise StandInUsed(
        f"The planner used {stand_in._kvfuzz_name}, a part of vLLM that kvfuzz does not load."
    )


for _use in (  # noqa: SIM905 - sixty lines otherwise
    "call bool str format len iter next contains reversed index int float complex round "
    "lt le gt ge ne add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod "
    "pow rpow lshift rshift and rand xor rxor neg pos abs invert matmul "
    "enter exit await aiter aenter aexit setattr delattr setitem delitem "
    "instancecheck subclasscheck fspath bytes buffer"
).split():
    setattr(StandIn, f"__{_use}__", _used)


class _Logger(logging.Logger):
    """A silent logger with the methods that vLLM adds."""

    def _once(self, *args: Any, **kwargs: Any) -> None:
        """Log nothing."""

    debug_once = info_once = warning_once = error_once = _once


def _init_logger(name: str) -> logging.Logger:
    logger = _Logger(name, level=logging.CRITICAL + 1)
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def _no(*_: Any, **__: Any) -> bool:
    return False


def _default_builder(*_: Any) -> str:
    return f"{PLANNING}.DefaultKVCacheConfigBuilder"


class MultipleOf(NamedTuple):
    """Block sizes that are multiples of a number of tokens, as attention backends state them."""

    base: int


class _Platform(StandIn):
    """A platform of no devices: every is_...() and has_...() is answered no."""

    dispatch_key = "CPU"
    simple_compile_backend = "eager"

    @staticmethod
    def register_custom_kv_cache_specs(*_: Any, **__: Any) -> None:
        """Register nothing."""

    get_kv_cache_config_builder_cls = staticmethod(_default_builder)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("is_", "has_")):
            return _no
        return super().__getattr__(name)


def _no_config() -> None:
    """There is no engine whose config could be current."""


#: Module -> name -> value, of what planners use of modules that are not loaded.
_VALUES: Final[dict[str, dict[str, Any]]] = {
    "vllm.logger": {"init_logger": _init_logger},
    "vllm.config": {"get_current_vllm_config_or_none": _no_config},
    "vllm.config.vllm": {"get_current_vllm_config_or_none": _no_config},
    "vllm.v1.attention.backend": {"MultipleOf": MultipleOf},
    "vllm.platforms": {"current_platform": _Platform("vllm.platforms.current_platform")},
}


class _StandInModule(ModuleType):
    """A module any name of which can be imported from it."""

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__") or _source(self.__path__, name) is not None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return StandIn(f"{self.__name__}.{name}")


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_VALUES.get(module.__name__, {}))


def _source(path: Sequence[str], name: str) -> Path | None:
    """The file or folder of a module below a package's path; None if there is none."""
    for folder in path:
        for found in (Path(folder, f"{name}.py"), Path(folder, name)):
            if found.exists():
                return found
    return None


class _Finder(MetaPathFinder):
    """Finds `vllm` and all below it in one folder, real or as a stand-in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, _ = fullname.partition(".")
        if top != "vllm":
            return None
        source = _source(path or [str(self._folder)], fullname.rpartition(".")[2])
        if source is None:
            # Not what sys.path may have of that name: another vLLM.
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        real = fullname in REAL_MODULES or f"{fullname}.".startswith(f"{REAL_PACKAGE}.")
        if real and source.is_file():
            return importlib.util.spec_from_file_location(fullname, source)
        if real and (source / "__init__.py").is_file():
            return importlib.util.spec_from_file_location(
                fullname, source / "__init__.py", submodule_search_locations=[str(source)]
            )
        spec = ModuleSpec(fullname, _StandInLoader(), is_package=True)
        assert spec.submodule_search_locations is not None
        if source.is_dir():
            spec.submodule_search_locations.append(str(source))
        return spec


class PlannerModules(NamedTuple):
    """The modules that a planner is reached through; the last is there in newer releases."""

    interface: ModuleType
    utils: ModuleType
    planning: ModuleType | None


def _vllm_modules() -> list[str]:
    return [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]


@contextmanager
def _explained(folder: Path, what: str) -> Iterator[None]:
    """Turn whatever loading raises into a sentence."""
    try:
        yield
    except SyntaxError as error:
        where = f"{error.filename}, line {error.lineno}"
        raise TargetError(f"{what} cannot be loaded: {where}: {error.msg}.") from None
    except ModuleNotFoundError as error:
        name = error.name or "?"
        if name.partition(".")[0] == "vllm":
            raise TargetError(
                f"{what} cannot be loaded: {folder} has no module {name}; is it vLLM's source?"
            ) from None
        package = name.partition(".")[0]
        raise TargetError(
            f"{what} needs the Python package {package}, which is not installed: "
            f"pip install {package}."
        ) from None
    except StandInUsed as error:
        raise TargetError(f"{what} cannot be loaded alone. {error}") from None
    except Exception as error:
        raise TargetError(f"{what} cannot be loaded: {said(error)}") from None


def load_planner(folder: Path, what: str) -> PlannerModules:
    """Load the planner below `folder` into this process.

    Args:
        folder: Where `vllm/` is.
        what: What to call it in messages.

    Raises:
        TargetError: It cannot be loaded, or this process has a vLLM already.
    """
    if _vllm_modules():
        raise TargetError(
            f"{what} cannot be loaded: this process has imported another vLLM already, and one "
            "process holds one planner."
        )
    finder = _Finder(folder)
    sys.meta_path.insert(0, finder)
    try:
        with _explained(folder, what):
            interface = importlib.import_module(INTERFACE)
            utils = importlib.import_module(UTILS)
            _load_rest()
    except BaseException:
        sys.meta_path.remove(finder)
        for name in _vllm_modules():
            del sys.modules[name]
        raise
    return PlannerModules(interface, utils, sys.modules.get(PLANNING))


def _load_rest() -> None:
    """Load now what the planner would import at its first call, so that problems show here."""
    for name in sorted(REAL_MODULES):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name and not name.startswith(f"{error.name}."):
                raise
