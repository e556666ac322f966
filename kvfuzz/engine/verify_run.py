"""A verification: every pattern of a few layers put to a target, in pieces if need be.

It is a run whose workers enumerate (`engine.enumerator`) in place of drawing.
How far it has come is kept in a file, so that a run that was stopped, or
killed, goes on where it was and counts nothing twice.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from kvfuzz import __version__
from kvfuzz.engine import patterns
from kvfuzz.engine.enumerator import chunks
from kvfuzz.engine.events import Event, Report, Searching, Verified
from kvfuzz.engine.messages import (
    Coverage,
    Finished,
    Loaded,
    Message,
    Place,
    Progress,
    ShrinkJob,
    Shrunk,
    VerifyJob,
)
from kvfuzz.engine.run import Search, Settings, run
from kvfuzz.engine.session import Tally
from kvfuzz.engine.supervisor import Worker
from kvfuzz.errors import UsageError
from kvfuzz.files import printable, write_atomically
from kvfuzz.findings import Finding
from kvfuzz.outcomes import Crash
from kvfuzz.targets.load import Prepared

#: Seconds between two writings of the state.
_SAVE_SECONDS = 3.0
_FORMAT = 1


class VerifySettings(Settings, frozen=True, kw_only=True):
    """What to verify.

    Attributes:
        layers: The most layers of a pattern.
        states: Folder of the state files.
    """

    layers: int
    states: Path


class Unshrunk(msgspec.Struct, frozen=True, kw_only=True):
    """A violation that was still to be shrunk; `fingerprint` None means that of `crash`."""

    place: Place
    fingerprint: str | None
    crash: Crash


class State(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How far one verification has come, as its file holds it.

    Every count is of the mixes in `coverage` and `skip`, and of no others.
    """

    format: int
    kvfuzz: str
    target: str
    version: str
    surface: str
    layers: int
    finished: bool = False
    seconds: float = 0.0
    tally: Tally = msgspec.field(default_factory=Tally)
    coverage: Coverage = msgspec.field(default_factory=Coverage)
    skip: set[Place] = msgspec.field(default_factory=set)
    findings: list[Finding] = msgspec.field(default_factory=list)
    unshrunk: list[Unshrunk] = msgspec.field(default_factory=list)


_DECODER = msgspec.json.Decoder(State, dec_hook=lambda _, value: Counter(value))


def state_path(folder: Path, target: str, surface: str, layers: int) -> Path:
    """The file in which the state of a verification is kept."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", target).strip("-.")[:40]
    # Two targets may come to one such name.
    digest = sha256(f"{target}\0{surface}".encode()).hexdigest()[:8]
    return folder / f"verify-{name}-{layers}-{digest}.json"


def unfinished(settings: VerifySettings, target: str, surface: str) -> State | None:
    """The state of an earlier verification that was not finished, if there is one.

    Raises:
        UsageError: The file is damaged.
    """
    path = state_path(settings.states, target, surface, settings.layers)
    try:
        state = _DECODER.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{printable(str(path))} cannot be read: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{printable(str(path))} is damaged: {printable(str(error))}; delete it to verify "
            "from the start."
        ) from None
    same = (state.format, state.kvfuzz, state.target, state.surface, state.layers) == (
        _FORMAT,
        __version__,
        target,
        surface,
        settings.layers,
    )
    return state if same and not state.finished else None


def verify(settings: VerifySettings, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """Verify, until all is covered or `stop` says so; the last event is `Finished`.

    Raises:
        UsageError: A case or state file cannot be written, or a state file is damaged.
    """
    return run(settings, stop, Verification)


class Verification(Search):
    """One surface of one target, enumerated by several workers."""

    _job = VerifyJob
    _enumerated = True

    def __init__(
        self,
        settings: Settings,
        prepared: Prepared,
        surface: str,
        seconds: float | None,
        report: Report,
    ) -> None:
        super().__init__(settings, prepared, surface, seconds, report)
        assert isinstance(settings, VerifySettings)
        self._layers = settings.layers
        self._path = state_path(settings.states, prepared.uri, surface, settings.layers)
        self._earlier = unfinished(settings, prepared.uri, surface)
        self._coverage = self._earlier.coverage if self._earlier else Coverage()
        if self._earlier:
            self._skip = frozenset(self._earlier.skip)
        self._version = self._earlier.version if self._earlier else ""
        self._chunks = chunks(settings.layers)
        self.report.verified = Verified(
            layers=settings.layers,
            patterns=patterns.total(settings.layers),
            mixes=patterns.mixes(settings.layers),
        )

    def go(self, stop: Callable[[], bool]) -> Iterator[Event]:
        """Go through all of it, and keep the state on disk."""
        saved = 0.0
        try:
            for event in super().go(stop):
                yield event
                now = time.monotonic()
                if isinstance(event, Searching) and now - saved > _SAVE_SECONDS and self._has_news:
                    self._save()
                    saved = now
        except BaseException:
            with contextlib.suppress(UsageError):  # the first trouble is what is told
                self._save()
            raise
        self._save()

    @property
    def _has_news(self) -> bool:
        """Whether this run has done anything that the file may not tell."""
        assert self.report.verified is not None
        return self.report.tally.mixes > self.report.verified.resumed

    def _further(self) -> dict[str, Any]:
        found = [finding.fingerprint for finding in self._earlier.findings] if self._earlier else []
        return {
            "layers": self._layers,
            "version": self._version,
            "coverage": self._coverage,
            "found": found,
        }

    def _take(self, worker: Worker, message: Message) -> Iterator[Event]:
        job = worker.job
        before = self._workers[worker].last
        first = isinstance(message, Loaded) and self._started is None
        yield from super()._take(worker, message)
        match message:
            case Loaded(version) if first:
                yield from self._adopt(version)
            case Progress(_, Place() as last) if isinstance(job, VerifyJob):
                self._coverage.advance(before or job.start, last, job.stride)
                self._look()
            case Finished() if isinstance(job, VerifyJob) and not self.report.stopped:
                for chunk in range(job.start.chunk, self._chunks, job.stride):
                    self._coverage.finish(chunk)
                self._look()
            case Shrunk(digest, None) if isinstance(job, ShrinkJob) and job.fingerprint is None:
                if digest not in self._found:
                    # Judged again, the mix ended no process: something else had.
                    self.report.tally.violated["plan-or-refusal"] -= 1

    def _look(self) -> None:
        """See whether all is covered."""
        assert self.report.verified is not None
        finished = self._coverage.below >= self._chunks
        self.report.verified = msgspec.structs.replace(self.report.verified, finished=finished)

    def _adopt(self, version: str) -> Iterator[Event]:
        """Take over what an earlier run did, if it was with the same planner."""
        state, self._earlier = self._earlier, None
        if state is not None and state.version != version:
            self._coverage, self._skip, state = Coverage(), frozenset(), None
        self._version = version
        if state is None:
            return
        assert self._started is not None
        assert self.report.verified is not None
        self._started -= state.seconds
        self.report.tally.add(state.tally)
        self.report.verified = msgspec.structs.replace(
            self.report.verified, resumed=state.tally.mixes
        )
        for finding in state.findings:
            yield from self._keep(msgspec.structs.replace(finding, status="new", ledger=None))
        for item in state.unshrunk:
            self._shrink(item.place, item.fingerprint, item.crash)

    def _unshrunk(self) -> Iterator[Unshrunk]:
        for worker, told in self._workers.items():
            job = worker.job
            if isinstance(job, ShrinkJob):
                yield Unshrunk(place=job.place, fingerprint=job.fingerprint, crash=job.crash)
            else:
                for digest, place in told.pending.items():
                    yield Unshrunk(place=place, fingerprint=digest, crash=Crash(symptom="died"))

    def _save(self) -> None:
        """Write the state, if there is any.

        Raises:
            UsageError: It cannot be written.
        """
        if not self.report.tally.mixes or self._target.error or self.report.verified is None:
            return
        state = State(
            format=_FORMAT,
            kvfuzz=__version__,
            target=self._prepared.uri,
            version=self._version,
            surface=self._surface,
            layers=self._layers,
            finished=self.report.verified.finished,
            seconds=self.report.seconds,
            tally=self.report.tally,
            coverage=self._coverage,
            skip=set(self._skip),
            findings=[self._whole.findings[at] for at in self._found.values()],
            unshrunk=list(self._unshrunk()),
        )
        write_atomically(self._path, msgspec.json.encode(state) + b"\n")
