"""From a scenario that shows something to the simplest one that other starts lead to."""

from __future__ import annotations

import time

from kvfuzz.engine.shrink import shrink
from kvfuzz.engine.simplify import Broken, complexity, is_plain, simplified
from kvfuzz.invariants import Violation
from kvfuzz.pages import Dialect
from kvfuzz.specs import Scenario
from kvfuzz.strategies.choices import SeededChoices
from kvfuzz.strategies.spaces import Space

_RESTART_MIXES = 500
_RESTARTS = 3


def from_choices(
    space: Space, recorded: list[int], broken: Broken, most_layers: int, deadline: float
) -> Scenario | None:
    """What Hypothesis makes of the choices of a scenario; None if it does not fail again."""
    mixes = space.strategy(most_layers)
    found = shrink(recorded, mixes, broken, seconds=deadline - time.monotonic())
    return found and found[0]


def plainest(
    space: Space, dialect: Dialect, shrunk: Scenario, still_broken: Broken, deadline: float
) -> Scenario:
    """The simplest mix with the same violation that further starts lead to.

    Shrinking goes downhill from where it starts: from a mix shaped like a
    certain model it may end in an odd corner. Small random mixes are other
    starts, until none is simpler.
    """

    def broken(scenario: Scenario) -> Violation | None:
        return still_broken(scenario) if time.monotonic() < deadline else None

    shrunk = simplified(shrunk, broken, dialect)
    for _ in range(_RESTARTS):
        most_layers = len(shrunk) - is_plain(shrunk, dialect)
        recorded = _small_start(space, broken, most_layers) if most_layers else None
        if recorded is None:
            break
        other = from_choices(space, recorded, broken, most_layers, deadline)
        other = other and simplified(other, broken, dialect)
        if other is None or complexity(other) >= complexity(shrunk):
            break
        shrunk = other
    return shrunk


def _small_start(space: Space, broken: Broken, most_layers: int) -> list[int] | None:
    """The choices of a mix of at most so many layers with the violation, if one turns up."""
    for number in range(_RESTART_MIXES):
        choices = SeededChoices(number)
        choices.record()
        mix = space.build(choices.choose, most_layers)
        if broken(mix) is not None:
            return choices.recorded
    return None
