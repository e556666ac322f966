"""What a campaign is to do."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvfuzz.engine.calls import DEFAULT_LIMITS, Limits
from kvfuzz.specs import Scenario
from kvfuzz.targets.load import Prepared


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        targets: The targets, fetched and checked.
        surfaces: Surfaces of each.
        seconds: Wall-clock seconds in all, or None.
        mixes: Mixes a surface, or None.
        seed: Names the stream of mixes.
        lanes: Workers that may search a surface at a time.
        use_ledger: Whether the ledger says what is known.
        cases: Folder for the case files of new findings.
        max_findings: New findings after which to stop, or None.
        corpus: Surface -> scenarios that each target is asked about first.
        limits: Of calls, of shrinking and of workers.
    """

    targets: tuple[Prepared, ...]
    surfaces: tuple[str, ...]
    seconds: float | None
    mixes: int | None
    seed: int
    lanes: int
    use_ledger: bool
    cases: Path
    max_findings: int | None = None
    corpus: dict[str, tuple[Scenario, ...]] = msgspec.field(default_factory=dict)
    limits: Limits = DEFAULT_LIMITS
