"""What a comparison of two targets came to."""

from __future__ import annotations

import msgspec

from kvfuzz.engine.differences import Difference, Names
from kvfuzz.engine.replies import Reply
from kvfuzz.specs import Scenario


class Found(msgspec.Struct, kw_only=True):
    """Scenarios with one difference.

    Attributes:
        difference: What it is.
        scenarios: How many were met.
        scenario: The simplest.
        pages: Bytes of each of its layers' pages before planning, by either target.
        replies: What either answers.
        shrunk: Whether it is the simplest, as far as shrinking got.
    """

    difference: Difference
    scenarios: int = 0
    scenario: Scenario
    pages: tuple[tuple[int, ...], tuple[int, ...]]
    replies: tuple[Reply, Reply]
    shrunk: bool = False


class SurfaceComparison(msgspec.Struct):
    """One surface of both targets.

    Attributes:
        surface: Which.
        scenarios: Those that both were asked about.
        differing: Those that were answered otherwise.
        left_out: Those that the first or the second cannot express.
        fickle: Those whose difference did not come back when both were asked again.
        seconds: Time that it took.
        stopped: Why it ended early, or "".
        found: The differences, in the order in which they were met.
    """

    surface: str
    scenarios: int = 0
    differing: int = 0
    left_out: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    fickle: int = 0
    seconds: float = 0.0
    stopped: str = ""
    found: list[Found] = msgspec.field(default_factory=list)


class Comparison(msgspec.Struct, kw_only=True):
    """All that a comparison came to, as far as it is.

    Attributes:
        seed: Names the stream of scenarios.
        targets: URIs of both.
        versions: Their versions.
        configs: Where the config of each is from: see `targets.base.config_of`.
        surfaces_of_one: Surfaces that only the first or only the second has.
        only: Kinds, fields ("kind.field") and layouts, likewise.
        surfaces: The surfaces compared.
        interrupted: Whether it was stopped.
    """

    seed: int
    targets: Names
    versions: Names = ("", "")
    configs: Names = ("", "")
    surfaces_of_one: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    only: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    surfaces: list[SurfaceComparison] = msgspec.field(default_factory=list)
    interrupted: bool = False

    @property
    def found(self) -> list[Found]:
        """The differences on all surfaces."""
        return [found for surface in self.surfaces for found in surface.found]
