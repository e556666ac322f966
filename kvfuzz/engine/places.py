"""Places in a stream of mixes, and which of them are done."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

#: Mixes that one seeding of the fast source builds.
CHUNK = 256


class Place(NamedTuple):
    """Where in the stream of a seed a mix is: chunk, and number in the chunk."""

    chunk: int
    number: int


class Coverage(msgspec.Struct):
    """Which chunks of an enumeration are done, and how far those are that are not.

    Attributes:
        below: All chunks before this one are done.
        beyond: Further chunks that are done.
        begun: Chunk -> how many of its mixes are done, from its first.
    """

    below: int = 0
    beyond: set[int] = msgspec.field(default_factory=set)
    begun: dict[int, int] = msgspec.field(default_factory=dict)

    def of(self, chunk: int) -> int:
        """How many mixes of a chunk are done."""
        return CHUNK if chunk < self.below or chunk in self.beyond else self.begun.get(chunk, 0)

    def finish(self, chunk: int) -> None:
        """A chunk is done."""
        self.begun.pop(chunk, None)
        if chunk >= self.below:
            self.beyond.add(chunk)
        while self.below in self.beyond:
            self.beyond.remove(self.below)
            self.below += 1

    def advance(self, start: Place, last: Place, stride: int) -> None:
        """Every `stride`-th chunk from `start` is done, up to the mix `last` and with it."""
        for chunk in range(start.chunk, last.chunk, stride):
            self.finish(chunk)
        if self.of(last.chunk) <= last.number:
            self.begun[last.chunk] = last.number + 1
