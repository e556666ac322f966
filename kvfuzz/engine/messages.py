"""What a run's process and its workers say to each other, as JSON lines.

A worker is one process with one target in it. It is given one job, as a line
on its standard input, and sends messages until `Finished` or `Fault`; if it
falls silent or dies, the heartbeat (`Heartbeat`) tells which mix it was at.
Its standard input stays open for as long as the run is there to listen; if
the job is to answer, requests come on it, one after the other's answer.
"""

from __future__ import annotations

import mmap
import struct
import tempfile
from collections import Counter
from typing import Any, BinaryIO, cast

import msgspec

from kvfuzz.engine.calls import DEFAULT_LIMITS, Limits
from kvfuzz.engine.places import Coverage, Place
from kvfuzz.engine.replies import Reply
from kvfuzz.engine.session import Tally
from kvfuzz.findings import Finding
from kvfuzz.outcomes import Crash, Outcome
from kvfuzz.pages import Dialect
from kvfuzz.specs import Scenario
from kvfuzz.targets.load import Prepared


class FuzzJob(msgspec.Struct, tag="fuzz", frozen=True, kw_only=True):
    """Search: chunks `start.chunk`, then every `stride`-th, until time or mixes run out.

    Attributes:
        deadline: When to stop, on the clock of `time.monotonic`, which the
            processes of a machine share; None is never.
        end: When all is over, likewise: of what is being shrunk by then, the
            smallest so far will do.
        mixes: Chunks from the seed's first `mixes` mixes only, or None.
        witnesses: Fingerprint -> witness, of what the ledger knows: not shrunk
            if the witness shows it.
        done: Fingerprints that are not to be sent again.
        claims: Folder that the workers of a search share: a file a
            fingerprint, made by the one that shrinks it.
        version: The version of the target that `coverage`, `skip` and `found` are about.
        coverage: What need not be done again.
        skip: Mixes that ended a worker: not to be judged again.
        found: Fingerprints found so far, which are not to be sent again.
    """

    target: Prepared
    surface: str
    seed: int
    start: Place
    stride: int
    deadline: float | None
    mixes: int | None
    witnesses: dict[str, Scenario]
    done: list[str]
    claims: str
    end: float | None = None
    version: str = ""
    coverage: Coverage = msgspec.field(default_factory=Coverage)
    skip: frozenset[Place] = frozenset()
    found: list[str] = msgspec.field(default_factory=list)
    heartbeat: int = 0
    limits: Limits = DEFAULT_LIMITS


class VerifyJob(FuzzJob, tag="verify", frozen=True, kw_only=True):
    """Go through every mix of the patterns of up to `layers` layers, in the same way.

    Mix `chunk * CHUNK + number` of `engine.patterns` is at a place.

    Attributes:
        layers: The most layers of a pattern.
    """

    layers: int


class ShrinkJob(msgspec.Struct, tag="shrink", frozen=True, kw_only=True):
    """Shrink what the mix at `place` breaks, each call in a fork of its own.

    Attributes:
        fingerprint: Names the violation; None means that of `crash`.
        crash: How the worker ended that had this mix in hand.
        enumerated: Whether the place is one of a VerifyJob.
        end: As of a FuzzJob.
    """

    target: Prepared
    surface: str
    seed: int
    place: Place
    fingerprint: str | None
    crash: Crash
    enumerated: bool = False
    end: float | None = None
    heartbeat: int = 0
    limits: Limits = DEFAULT_LIMITS


class ReplayJob(msgspec.Struct, tag="replay", frozen=True, kw_only=True):
    """Judge the given scenarios thoroughly, each call in a fork of its own."""

    target: Prepared
    surface: str
    scenarios: list[Scenario]
    heartbeat: int = 0
    limits: Limits = DEFAULT_LIMITS


class AnswerJob(msgspec.Struct, tag="answer", frozen=True, kw_only=True):
    """Answer requests, which follow on standard input as JSON lines, until it is closed."""

    target: Prepared
    heartbeat: int = 0
    limits: Limits = DEFAULT_LIMITS


Job = FuzzJob | VerifyJob | ShrinkJob | ReplayJob | AnswerJob


class Open(msgspec.Struct, tag="open", frozen=True):
    """From here on answer on this surface, of what can be told in this dialect. Has no answer."""

    surface: str
    dialect: Dialect


class Chunk(msgspec.Struct, tag="chunk", frozen=True, kw_only=True):
    """What comes of a chunk of a seed's stream? Answered by `Replies`.

    Attributes:
        seed: Names the stream.
        chunk: Which chunk.
        size: How many of its scenarios, from the first.
        skip: Scenarios, by number, not to be asked about.
        deadline: When to stop, on the clock of `time.monotonic`, or None.
    """

    seed: int
    chunk: int
    size: int
    skip: tuple[int, ...] = ()
    deadline: float | None = None


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """What comes of this scenario? Answered by `Told`.

    Attributes:
        scenario: The scenario.
        seconds: Ask in a fork, that may take so long; None asks in the worker.
    """

    scenario: Scenario
    seconds: float | None = None


Request = Open | Chunk | Ask


class Loaded(msgspec.Struct, tag="loaded", frozen=True):
    """The target is loaded.

    Attributes:
        version: Its version.
        surfaces: Its surfaces.
        never_set: Fields ("kind.field") that no scenario of the job's surface
            sets, since what they hold is not known.
        config: Where the config is from that it plans by: see `targets.base.config_of`.
        dialect: What it can be told; of an AnswerJob.
    """

    version: str
    surfaces: tuple[str, ...]
    never_set: tuple[str, ...] = ()
    config: str = ""
    dialect: Dialect | None = None


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """Counts since the last such message, of mixes up to and with `last` of the job's."""

    tally: Tally
    last: Place | None


class Violated(msgspec.Struct, tag="violated", frozen=True):
    """A fingerprint was seen for the first time.

    Attributes:
        finding: As it was met.
        place: Where its mix is, if `Shrunk` is to follow; None if it stays so.
    """

    finding: Finding
    place: Place | None


class Shrunk(msgspec.Struct, tag="shrunk", frozen=True):
    """The finding of that fingerprint, minimal; None if it did not come back."""

    fingerprint: str
    finding: Finding | None


class Replayed(msgspec.Struct, tag="replayed", frozen=True):
    """What became of one scenario of a ReplayJob: outcome, and a finding a violation."""

    outcome: Outcome
    findings: tuple[Finding, ...]


class Replies(msgspec.Struct, tag="replies", frozen=True):
    """A reply a scenario of a chunk, in order, as `Reply | None` in JSON.

    They are compared as they are, and decoded only if they differ.
    """

    replies: list[msgspec.Raw]


class Told(msgspec.Struct, tag="told", frozen=True):
    """The reply to one scenario, and bytes of each layer's page before planning."""

    reply: Reply | None
    pages: tuple[int, ...]


class Finished(msgspec.Struct, tag="finished", frozen=True):
    """The job is done; `exhausted` if a search came to the end of its mixes before its time."""

    exhausted: bool = True


class Fault(msgspec.Struct, tag="fault", frozen=True):
    """The target could not be loaded, or kvfuzz failed; one sentence."""

    message: str


Message = Loaded | Progress | Violated | Shrunk | Replayed | Replies | Told | Finished | Fault


def decode(data: bytes | str, form: Any) -> Any:
    """JSON in a form that may hold a Tally, whose Counters are all that msgspec does not know.

    Raises:
        msgspec.DecodeError: It is of another form.
    """
    return msgspec.json.decode(data, type=form, dec_hook=lambda _, value: Counter(value))


class Heartbeat:
    """A few shared bytes: the place of the mix in hand, and a count that moves with it.

    Survives the death of the process that writes it. Lives in a file without
    a name, so that it is gone with the last process that holds it.

    Args:
        file: Descriptor of that file.
    """

    _FORM = struct.Struct("<QQQ")

    def __init__(self, file: int) -> None:
        self._map = mmap.mmap(file, self._FORM.size)
        self._count = 0

    @classmethod
    def create(cls) -> tuple[BinaryIO, Heartbeat]:
        """A new one, and its file, which the other process is to inherit."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        file.write(bytes(cls._FORM.size))
        file.flush()
        return cast(BinaryIO, file), cls(file.fileno())

    def beat(self, place: Place) -> None:
        """Say that the mix at `place` is in hand."""
        self._count += 1
        self._FORM.pack_into(self._map, 0, self._count, place.chunk, place.number)

    def read(self) -> tuple[int, Place]:
        """The count, and the place of the mix in hand."""
        count, chunk, number = self._FORM.unpack_from(self._map, 0)
        return count, Place(chunk, number)

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()
