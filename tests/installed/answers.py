"""Print what one target answers to seeded scenarios, a JSON line each: `answers.py URI COUNT`.

A process of its own for each target, since one process holds one planner.
"""

from __future__ import annotations

import os
import sys
from itertools import islice
from typing import BinaryIO

import msgspec

from kvfuzz.engine.session import Session
from kvfuzz.outcomes import Outcome
from kvfuzz.specs import Scenario, scenario_to_json
from kvfuzz.strategies.choices import SeededChoices
from kvfuzz.strategies.spaces import space_of
from kvfuzz.targets.base import Target, config_of
from kvfuzz.targets.load import load, prepare

#: Surfaces of which targets are compared.
SURFACES = ("pack", "groups", "config", "merge")
SEED = 20


class Line(msgspec.Struct, frozen=True):
    """What came of one scenario.

    Attributes:
        surface: The surface that was asked.
        config: Where the engine's config was from.
        scenario: What was asked, as JSON text.
        outcome: What came of it.
    """

    surface: str
    config: str
    scenario: str
    outcome: Outcome


def _text(scenario: Scenario) -> str:
    return msgspec.json.encode(scenario_to_json(scenario)).decode()


def _answer(target: Target, count: int, out: BinaryIO) -> None:
    for surface in SURFACES:
        if surface not in target.surfaces:
            continue
        config = config_of(target, surface)
        session = Session(target, surface)
        space = space_of(surface, target.dialect)
        # Chunks of ten, so that not all is of one chunk's making.
        for chunk in range(count // 10):
            stream = space.stream(SeededChoices(SEED, chunk))
            for _, scenario in islice(stream, 10):
                outcome = session.ask(scenario)[0].outcome
                line = Line(surface, config, _text(scenario), outcome)
                out.write(msgspec.json.encode(line) + b"\n")
    out.flush()


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a planner prints is no line
    _answer(load(prepare(sys.argv[1]), "config"), int(sys.argv[2]), lines)
