"""Which mixes a surface is searched with: one space for each.

The search engine reads a space through its fast source and, to shrink, through
Hypothesis; both read the same builder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec
from hypothesis import strategies as st

from kvfuzz.catalogue import unknown_fields
from kvfuzz.pages import Dialect
from kvfuzz.specs import Scenario
from kvfuzz.strategies import spec_mixes
from kvfuzz.strategies.builders import build_mix, stream
from kvfuzz.strategies.choices import Choose, SeededChoices, drawn, from_draw
from kvfuzz.strategies.layers import MOST_LAYERS
from kvfuzz.strategies.open_mixes import build_copies
from kvfuzz.strategies.page_mixes import build_page
from kvfuzz.strategies.planner_mixes import build_planner_mix


class Space(Protocol):
    """The scenarios that one surface of one target is searched with.

    Attributes:
        never_set: Fields ("kind.field") that they never set, since what they
            hold is not known.
    """

    @property
    def never_set(self) -> tuple[str, ...]: ...  # noqa: D102 - see above

    def build(self, choose: Choose, max_layers: int = MOST_LAYERS) -> Scenario:
        """One scenario, of at most so many layers if the space has such."""
        ...

    def stream(
        self, choices: SeededChoices, *, layouts: int = 1, record: bool = False
    ) -> Iterator[tuple[list[int], Scenario]]:
        """Scenarios without end, each with the choices that `build` makes it from.

        Args:
            choices: The fast source.
            layouts: Scenarios that may be made of one drawing of spec classes.
            record: Whether to note choices.
        """
        ...

    def strategy(self, max_layers: int = MOST_LAYERS) -> st.SearchStrategy[Scenario]:
        """The same as a strategy."""
        ...


class PackedMixes(msgspec.Struct, frozen=True):
    """Mixes of MLA and sliding-window MLA specs."""

    dialect: Dialect
    never_set: tuple[str, ...] = ()

    def build(self, choose: Choose, max_layers: int = MOST_LAYERS) -> Scenario:
        """See `Space`, as for the methods below."""
        return build_mix(choose, dialect=self.dialect, max_layers=max_layers)

    def stream(
        self, choices: SeededChoices, *, layouts: int = 1, record: bool = False
    ) -> Iterator[tuple[list[int], Scenario]]:
        """Several layouts of each drawing."""
        return stream(choices, dialect=self.dialect, layouts=layouts, record=record)

    def strategy(self, max_layers: int = MOST_LAYERS) -> st.SearchStrategy[Scenario]:
        """The strategy that is everyone's."""
        return spec_mixes(dialect=self.dialect, max_layers=max_layers)


@st.composite
def _built(draw: st.DrawFn, space: _OpenMixes, max_layers: int) -> Scenario:
    return space.build(from_draw(draw), max_layers)


class _OpenMixes(msgspec.Struct, frozen=True):
    """Mixes of open specs: what the spaces of any class and field have in common."""

    dialect: Dialect

    @property
    def never_set(self) -> tuple[str, ...]:
        """See `Space`, as for the methods below."""
        return unknown_fields(self.dialect.catalogue)

    def build(self, choose: Choose, max_layers: int = MOST_LAYERS) -> Scenario:
        """What each space has of its own."""
        raise NotImplementedError

    def stream(
        self, choices: SeededChoices, *, layouts: int = 1, record: bool = False
    ) -> Iterator[tuple[list[int], Scenario]]:
        """Each drawn for itself."""
        return drawn(choices, self.build, record=record)

    def strategy(self, max_layers: int = MOST_LAYERS) -> st.SearchStrategy[Scenario]:
        """The builder through Hypothesis."""
        return _built(self, max_layers)


class SpecCopies(_OpenMixes, frozen=True):
    """A few layers of one spec, of any class and with any fields that a target has."""

    def build(self, choose: Choose, max_layers: int = MOST_LAYERS) -> Scenario:
        """One spec; its layers are few as it is."""
        return build_copies(choose, catalogue=self.dialect.catalogue)


class LoneSpecs(_OpenMixes, frozen=True):
    """One layer of any class, with what makes its page varied."""

    def build(self, choose: Choose, max_layers: int = MOST_LAYERS) -> Scenario:
        """One layer."""
        return build_page(choose, catalogue=self.dialect.catalogue)


class EngineMixes(_OpenMixes, frozen=True):
    """Mixes of every kind that a target has, and the engine that they are planned for.

    Attributes:
        dialect: What the target can be told.
        memory: Whether memory, blocks and pipeline ranks matter.
    """

    memory: bool

    def build(self, choose: Choose, max_layers: int = MOST_LAYERS) -> Scenario:
        """Layers of one to five specs."""
        dialect = self.dialect
        return build_planner_mix(
            choose,
            catalogue=dialect.catalogue,
            layouts=dialect.layouts,
            memory=self.memory,
            max_layers=max_layers,
        )


def space_of(surface: str, dialect: Dialect) -> Space:
    """The space that a surface of a target of that dialect is searched with."""
    match surface:
        case "merge":
            return SpecCopies(dialect)
        case "page":
            return LoneSpecs(dialect)
        case "groups" | "config":
            return EngineMixes(dialect, memory=surface == "config")
        case _:
            return PackedMixes(dialect)
