"""From a target's name to a planner: prepared in the parent, loaded in its own process."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import operator
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvfuzz import __version__
from kvfuzz.errors import KvfuzzError, TargetError
from kvfuzz.targets.base import NeutralTarget, Target
from kvfuzz.targets.uri import Checkout, Factory, Installed, Reference, Release, parse

if TYPE_CHECKING:
    from kvfuzz.targets.index import Progress


class Prepared(msgspec.Struct, frozen=True):
    """A target that is ready to be loaded, as data that a worker is sent.

    Attributes:
        uri: What the user called it.
        folder: The folder that holds `vllm/`, for sources; else "".
    """

    uri: str
    folder: str = ""


def prepare(uri: str, progress: Progress | None = None) -> Prepared:
    """Find out that a target exists, fetching a release if it is not cached.

    Args:
        uri: A target in one of the forms of `targets.uri`.
        progress: Called while a release is fetched, with bytes done and in all.

    Raises:
        UsageError: The name has none of the forms.
        TargetError: It is not there, or cannot be fetched.
    """
    match parse(uri):
        case Release(version):
            from kvfuzz.targets.releases import ensure_release

            return Prepared(uri, str(ensure_release(version, progress=progress)))
        case Checkout(path):
            folder = Path(path).expanduser().absolute()
            if not (folder / "vllm").is_dir():
                raise TargetError(f"{uri}: {folder} is no vLLM checkout: it has no folder vllm/.")
            return Prepared(uri, str(folder))
        case Installed() if importlib.util.find_spec("vllm") is None:
            raise TargetError("vllm is not installed here: write vllm==X to test a release.")
        case _:
            return Prepared(uri)


def load(prepared: Prepared) -> Target:
    """Load a prepared target into this process, which can hold one vLLM only.

    Raises:
        TargetError: It cannot be loaded.
    """
    match parse(prepared.uri):
        case Reference():
            from kvfuzz.reference import group_and_unify_kv_cache_specs

            return NeutralTarget(prepared.uri, group_and_unify_kv_cache_specs, __version__)
        case Factory(module, name):
            return _from_factory(prepared.uri, module, name)
        case Installed():
            return _installed(prepared.uri)
        case Release(version):
            return _alone(prepared, version)
        case Checkout():
            return _alone(prepared, _checkout_version(Path(prepared.folder)))


def _alone(prepared: Prepared, version: str) -> Target:
    from kvfuzz.targets.eras import VllmTarget
    from kvfuzz.targets.standalone import load_alone

    modules = load_alone(Path(prepared.folder), prepared.uri)
    return VllmTarget(modules.interface, modules.planner, uri=prepared.uri, version=version)


def _installed(uri: str) -> Target:
    from kvfuzz.targets.eras import VllmTarget

    try:
        interface = importlib.import_module("vllm.v1.kv_cache_interface")
        planner = importlib.import_module("vllm.v1.core.kv_cache_utils")
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    except Exception as error:
        raise TargetError(
            f"The installed vllm cannot be imported: {type(error).__name__}: {error}."
        ) from None
    return VllmTarget(interface, planner, uri=uri, version=version)


def _checkout_version(folder: Path) -> str:
    """The version that a checkout's `_version.py` states, read and not run."""
    try:
        text = (folder / "vllm" / "_version.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return "unknown"
    found = re.search(r"^__version__ = version = ['\"]([\w.+]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else "unknown"


def _from_factory(uri: str, module: str, name: str) -> Target:
    """Call `module:factory`; it returns a Target, or a planner in neutral terms."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        made = operator.attrgetter(name)(importlib.import_module(module))()
    except KvfuzzError:
        raise
    except Exception as error:
        raise TargetError(
            f"{uri} made no planner: {type(error).__name__}: {error}."
        ) from None
    if all(hasattr(made, name) for name in ("translate", "call", "normalise", "dialect")):
        target: Target = made
        return target
    if callable(made):
        return NeutralTarget(uri, made, "unknown")
    raise TargetError(
        f"{uri} made a {type(made).__name__}: a factory returns a planner, which takes "
        "a dict of specs and returns lists of layer names or None, or a kvfuzz Target."
    )
