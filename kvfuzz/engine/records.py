"""What is kept of campaigns: what they were told, and how far they have come."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvfuzz.engine.places import Coverage, Place
from kvfuzz.engine.session import Tally
from kvfuzz.findings import Finding
from kvfuzz.outcomes import Crash


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign was told to do.

    Attributes:
        kind: `run` or `verify`.
        targets: URIs.
        surfaces: Surfaces of each.
        seconds: Wall-clock seconds in all, or None.
        mixes: Mixes a surface, or None.
        seed: Names the stream of mixes.
        use_ledger: Whether the ledger says what is known.
        layers: The most layers of a pattern, of a verification.
        profile: Of a run.
    """

    kind: str
    targets: tuple[str, ...]
    surfaces: tuple[str, ...]
    seconds: float | None
    mixes: int | None
    seed: int
    use_ledger: bool
    layers: int | None = None
    profile: str = "dev"

    def going_on(self, seconds: float) -> Plan:
        """The same, by time."""
        return msgspec.structs.replace(self, seconds=seconds, mixes=None)


class Unshrunk(msgspec.Struct, frozen=True, kw_only=True):
    """A violation that was still to be shrunk; `fingerprint` None means that of `crash`."""

    place: Place
    fingerprint: str | None
    crash: Crash


class Snapshot(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How far one search has come.

    Every count is of the mixes in `coverage` and `skip`, and of no others.
    """

    version: str
    seconds: float = 0.0
    tally: Tally = msgspec.field(default_factory=Tally)
    coverage: Coverage = msgspec.field(default_factory=Coverage)
    skip: set[Place] = msgspec.field(default_factory=set)
    unshrunk: list[Unshrunk] = msgspec.field(default_factory=list)


class Stored(NamedTuple):
    """What the file holds of one search."""

    snapshot: Snapshot
    findings: list[Finding]


class Totals(NamedTuple):
    """Sums over the searches of a campaign; a finding on several targets is one."""

    searched: float
    mixes: int
    new: int
    known: int


class Past(NamedTuple):
    """A campaign as the file tells of it.

    Attributes:
        number: Its number.
        plan: What it was told to do.
        seconds: Wall-clock seconds that it has taken.
        finished: Whether it has done all of it.
    """

    number: int
    plan: Plan
    seconds: float
    finished: bool


#: Target's URI and surface.
Pair = tuple[str, str]
