"""What a run tells those who show it, and the report that it ends with."""

from __future__ import annotations

import msgspec

from kvfuzz.engine.session import Tally
from kvfuzz.findings import Finding


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """How far a verification has come.

    Attributes:
        layers: The most layers of a pattern.
        patterns: Patterns in all.
        mixes: Mixes in all: a few stand for each pattern.
        resumed: How many of them an earlier run had done.
        finished: Whether all are done.
    """

    layers: int
    patterns: int
    mixes: int
    resumed: int = 0
    finished: bool = False


class SurfaceReport(msgspec.Struct, kw_only=True):
    """What a run did with one surface of one target.

    Attributes:
        surface: The surface.
        seconds: Wall-clock seconds of search.
        tally: Counts.
        stopped: Why the search ended before its budget, or "".
        verified: What was to be covered and whether it is, of a verification.
        replayed: Kept scenarios that it was asked about first; `tally` is not of them.
        leaks: Workers that were ended for having grown too large over many calls.
        never_set: Fields of the target's spec classes that were never set to
            anything, since what they hold is not known: "kind.field".
        config: The engine's config that it was planned by: "real" if an engine
            made it, "stand-in", or "" if the surface reads none.
    """

    surface: str
    seconds: float = 0.0
    tally: Tally = msgspec.field(default_factory=Tally)
    stopped: str = ""
    verified: Verified | None = None
    replayed: int = 0
    leaks: int = 0
    never_set: tuple[str, ...] = ()
    config: str = ""

    @property
    def mixes_per_second(self) -> float:
        """Mixes judged a second, over all workers."""
        return self.tally.mixes / self.seconds if self.seconds else 0.0


class TargetReport(msgspec.Struct, kw_only=True):
    """What a run did with one target; `error` says why it could not."""

    uri: str
    version: str = ""
    surfaces: list[SurfaceReport] = msgspec.field(default_factory=list)
    error: str = ""


class PastRun(msgspec.Struct, frozen=True):
    """An earlier run, in a line.

    Attributes:
        started: When, in UTC, as ISO 8601 text.
        seconds: Seconds of search, over all surfaces of all targets.
        mixes: Mixes judged.
        new: New findings; those of one id on several targets are one.
        known: Known findings, likewise.
        interrupted: Whether it was stopped.
        label: Its targets, in words.
    """

    started: str
    seconds: float
    mixes: int
    new: int
    known: int
    interrupted: bool
    label: str


class Report(msgspec.Struct, kw_only=True):
    """What a run did.

    `enough` says that it ended early, since it had found as much as it was to;
    `history` are the runs before it, the oldest first.
    """

    kvfuzz: str
    seed: int
    targets: list[TargetReport] = msgspec.field(default_factory=list)
    findings: list[Finding] = msgspec.field(default_factory=list)
    interrupted: bool = False
    enough: bool = False
    history: list[PastRun] = msgspec.field(default_factory=list)

    @property
    def new(self) -> list[Finding]:
        """The findings that the ledger does not expect."""
        return [finding for finding in self.findings if finding.status == "new"]


class TargetStarted(msgspec.Struct, frozen=True):
    """A target is being loaded, for the first time, to search a surface of it."""

    uri: str
    surface: str


class Searching(msgspec.Struct, frozen=True):
    """Progress: the surface's report so far, and seconds left to the run (None: no limit)."""

    uri: str
    report: SurfaceReport
    seconds_left: float | None


class FindingMade(msgspec.Struct, frozen=True):
    """A finding, first as it was met, then again with its minimal scenario.

    `path` is the case file it was written to, "" if it needed none.
    """

    finding: Finding
    path: str


class Finished(msgspec.Struct, frozen=True):
    """The run is over."""

    report: Report


Event = TargetStarted | Searching | FindingMade | Finished
