"""The interface behind which every planner is put, and the one for neutral planners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from kvfuzz.outcomes import Group, Plan
from kvfuzz.pages import FULL_DIALECT, Dialect, page_size_bytes
from kvfuzz.specs import LayerSpec

#: Anyone's planner in neutral terms: mix -> groups of layer names, or None.
NeutralPlanner = Callable[[dict[str, LayerSpec]], Sequence[Iterable[str]] | None]


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

    def state(self, native: Any) -> Any:
        """All of a native spec's state, comparable by ==, to see whether a call changed it."""
        ...

    def call(self, surface: str, specs: dict[str, Any]) -> Any:
        """Call the planner itself: what it returns or raises is passed on untouched."""
        ...

    def normalise(self, surface: str, answer: Any, specs: Mapping[str, Any]) -> Plan:
        """The planner's answer as a plan.

        Raises:
            TypeError: The answer is not of the form that the surface returns.
        """
        ...


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

    def state(self, native: LayerSpec) -> Any:
        """All fields in order."""
        return msgspec.structs.astuple(native)

    def call(self, surface: str, specs: dict[str, Any]) -> Any:
        """Call the planner."""
        return self._planner(specs)

    def normalise(self, surface: str, answer: Any, specs: Mapping[str, Any]) -> Plan:
        """Groups with the page sizes of the specs that were given, in bytes."""
        if answer is None:
            return Plan(groups=None)
        rules = self.dialect.rules
        groups = []
        sizes: dict[int, int] = {}  # by identity: most layers share a spec with another
        for group in answer:
            layers = tuple(group)
            if isinstance(group, str) or not all(isinstance(name, str) for name in layers):
                raise TypeError(f"a group must hold layer names, got {group!r:.80}")
            pages = []
            for name in layers:
                if name not in specs:  # `partition`'s business
                    pages.append(0)
                    continue
                spec = specs[name]
                if id(spec) not in sizes:
                    sizes[id(spec)] = page_size_bytes(spec, rules)
                pages.append(sizes[id(spec)])
            groups.append(Group(layers=tuple(map(sayable, layers)), pages=tuple(pages)))
        return Plan(groups=tuple(groups))
