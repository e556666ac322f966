"""What a user calls a target, and what is meant by it."""

from __future__ import annotations

import importlib.util
from typing import TypeAlias

import msgspec
from packaging.version import InvalidVersion, Version

from kvfuzz.errors import UsageError


class Reference(msgspec.Struct, frozen=True):
    """`reference`: kvfuzz's own planner."""


class Installed(msgspec.Struct, frozen=True):
    """`vllm`: the vLLM that is installed here."""


class Release(msgspec.Struct, frozen=True):
    """`vllm==X`: a release's source, fetched from the package index.

    Attributes:
        version: X in its normal form (PEP 440).
    """

    version: str


class Latest(msgspec.Struct, frozen=True):
    """`vllm==latest`: the newest final release on the package index, whatever it is by then."""


class Checkout(msgspec.Struct, frozen=True):
    """`vllm@PATH`: a source tree of vLLM, not built.

    Attributes:
        path: As the user wrote it; whether it exists is not looked at.
    """

    path: str


class Factory(msgspec.Struct, frozen=True):
    """`module:factory`: anyone's planner.

    Attributes:
        module: Dotted name of the module.
        name: Dotted name of the factory in it.
    """

    module: str
    name: str


TargetUri: TypeAlias = Reference | Installed | Release | Latest | Checkout | Factory

_FORMS = "reference, vllm, vllm==X, vllm@PATH or module:factory"


def _dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def parse(uri: str) -> TargetUri:
    """What `uri` means.

    Raises:
        UsageError: It has none of the forms.
    """
    if uri == "reference":
        return Reference()
    if uri == "vllm":
        return Installed()
    if uri == "vllm==latest":
        return Latest()
    if uri.startswith("vllm=="):
        version = uri.removeprefix("vllm==")
        try:
            return Release(str(Version(version)))
        except InvalidVersion:
            raise UsageError(
                f"{version!r} in the target {uri!r} is no version; write, say, vllm==0.28.0."
            ) from None
    if uri.startswith("vllm@"):
        path = uri.removeprefix("vllm@")
        if not path or "\0" in path:
            raise UsageError(f"The target {uri!r} names no folder; write vllm@PATH.")
        return Checkout(path)
    module, colon, name = uri.partition(":")
    if colon and _dotted(module) and _dotted(name):
        return Factory(module, name)
    raise UsageError(f"{uri!r} is no target: a target is {_FORMS}.")


def vllm_is_installed() -> bool:
    """Whether `import vllm` would find a package. Does not import it."""
    try:
        spec = importlib.util.find_spec("vllm")
    except ValueError:  # something in sys.modules that has no spec
        return False
    # A mere folder of that name (no __init__.py) has no origin.
    return spec is not None and spec.origin is not None


def default_target() -> str:
    """`vllm` if it is installed, else `reference`."""
    return "vllm" if vllm_is_installed() else "reference"
