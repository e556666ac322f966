"""The stream of scenarios of a seed: chunk by chunk, the same whoever builds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kvfuzz.specs import Scenario
from kvfuzz.strategies.choices import SeededChoices
from kvfuzz.strategies.spaces import Space

#: Chunks at the beginning of a stream whose mixes have nothing in common, so
#: that a bug that shows often shows at once; from there on some mixes are made
#: of one drawing of spec classes, which is a third faster.
FRESH: Final = 8
_LAYOUTS: Final = 4


def built(
    space: Space, seed: int, chunk: int, *, record: bool = False
) -> Iterator[tuple[list[int], Scenario]]:
    """The choices, if they are to be noted, and scenarios of a chunk."""
    layouts = 1 if chunk < FRESH else _LAYOUTS
    return space.stream(SeededChoices(seed, chunk), layouts=layouts, record=record)
