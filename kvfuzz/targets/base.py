"""The interface behind which every planner is put, and the one for neutral planners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from kvfuzz.outcomes import Group, Plan
from kvfuzz.pages import FULL_DIALECT, Dialect, page_size_bytes
from kvfuzz.specs import LayerSpec, Scenario

#: Anyone's planner in neutral terms: mix -> groups of layer names, or None.
NeutralPlanner = Callable[[dict[str, LayerSpec]], Sequence[Iterable[str]] | None]


class Unreachable(Exception):
    """No engine of the target's has such settings; says why."""


class Target(Protocol):
    """One planner, loaded in this process.

    Attributes:
        uri: What the user called it, such as "vllm==0.28.0".
        version: Its version, for people.
        dialect: What it can be told.
        surfaces: Names of the surfaces that it has.
    """

    uri: str
    version: str
    dialect: Dialect
    surfaces: tuple[str, ...]

    def translate(self, spec: LayerSpec) -> Any:
        """The target's own spec object for a spec that its dialect does not lack."""
        ...

    def page_size(self, spec: LayerSpec, native: Any) -> int:
        """Bytes of a page of `spec`, of which `native` is the target's own object."""
        ...

    def another(self, native: Any) -> Any:
        """An equal native spec, for another layer."""
        ...

    def state(self, native: Any) -> Any:
        """All of a native spec's state, comparable by ==, to see whether a call changed it."""
        ...

    def call(self, surface: str, specs: dict[str, Any], scenario: Scenario) -> Any:
        """Call the planner itself: what it returns or raises is passed on untouched.

        Args:
            surface: One of the target's surfaces.
            specs: The target's own specs, by layer name.
            scenario: What they were translated from; planners that plan for
                an engine are told its config, draft layers and ranks.

        Raises:
            Unreachable: There is no such engine, so that nothing was asked.
        """
        ...

    def normalise(
        self, surface: str, answer: Any, specs: Mapping[str, Any], pages: Mapping[int, int]
    ) -> Plan:
        """The planner's answer as a plan.

        Args:
            surface: The surface that was called.
            answer: What it returned.
            specs: What it was given, by layer name.
            pages: `id` of a native spec that the call left as it was -> bytes
                of its page, so that these need not be computed again.

        Raises:
            TypeError: The answer is not of the form that the surface returns.
        """
        ...


def config_of(target: Target, surface: str) -> str:
    """Where the engine's config comes from that a surface is planned by.

    Returns:
        "real" if an engine made it, "stand-in", or "" if the surface reads none.
    """
    asked = getattr(target, "config_of", None)  # only vLLM's planners have it
    return str(asked(surface)) if asked is not None else ""


def twin(made: Any) -> Any:
    """A copy of an object that has passed its class's own checks, made without them."""
    copied = object.__new__(type(made))
    vars(copied).update(vars(made))
    return copied


def sayable(name: str) -> str:
    """A layer name that a planner made up, with what no file can hold escaped."""
    return name.encode(errors="backslashreplace").decode()


class NeutralTarget:
    """A planner written against kvfuzz's own specs: the reference, or anyone's.

    It speaks the full dialect; page sizes are those of `kvfuzz.pages`.
    """

    surfaces: tuple[str, ...] = ("pack",)
    dialect = FULL_DIALECT

    def __init__(self, uri: str, planner: NeutralPlanner, version: str) -> None:
        self.uri = uri
        self.version = version
        self._planner = planner

    def translate(self, spec: LayerSpec) -> LayerSpec:
        """See `Target`, as for the methods below."""
        # A copy, so that a planner that writes into it is seen to do so.
        return msgspec.structs.replace(spec)

    def page_size(self, spec: LayerSpec, native: Any) -> int:
        """By `kvfuzz.pages`."""
        return page_size_bytes(spec, self.dialect.rules)

    def another(self, native: LayerSpec) -> LayerSpec:
        """A copy."""
        return msgspec.structs.replace(native)

    def state(self, native: LayerSpec) -> Any:
        """All fields in order."""
        return msgspec.structs.astuple(native)

    def call(self, surface: str, specs: dict[str, Any], scenario: Scenario) -> Any:
        """Call the planner."""
        return self._planner(specs)

    def normalise(
        self, surface: str, answer: Any, specs: Mapping[str, Any], pages: Mapping[int, int]
    ) -> Plan:
        """Groups with the page sizes of the specs that were given, in bytes."""
        if answer is None:
            return Plan(groups=None)
        groups = []
        sizes = dict(pages)  # by identity: most layers share a spec with another
        for group in answer:
            layers = tuple(group)
            if isinstance(group, str) or not all(type(name) is str for name in layers):
                raise TypeError(f"a group must hold layer names, got {group!r:.80}")
            members = [specs.get(name) for name in layers]
            for spec in members:
                if id(spec) not in sizes:
                    # A foreign layer is `partition`'s business.
                    rules = self.dialect.rules
                    sizes[id(spec)] = 0 if spec is None else page_size_bytes(spec, rules)
            if None in members:
                layers = tuple(map(sayable, layers))
            groups.append(Group(layers, tuple([sizes[id(spec)] for spec in members])))
        return Plan(tuple(groups))
