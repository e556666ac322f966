"""Comparing two targets: what they answer to one stream of scenarios, and in what that differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from math import inf
from typing import Final

import msgspec

from kvfuzz.engine.calls import DEFAULT_LIMITS, Limits
from kvfuzz.engine.comparison import Comparison, Found, SurfaceComparison
from kvfuzz.engine.differences import Difference, differences
from kvfuzz.engine.messages import Chunk, Told
from kvfuzz.engine.minimal import from_choices, plainest
from kvfuzz.engine.places import CHUNK
from kvfuzz.engine.replies import Reply
from kvfuzz.engine.sides import GivenUp, Sides, Stopped
from kvfuzz.engine.stream import built
from kvfuzz.errors import UsageError
from kvfuzz.invariants import Violation
from kvfuzz.pages import Dialect, beyond, common_dialect
from kvfuzz.specs import Scenario
from kvfuzz.strategies.layers import MOST_LAYERS
from kvfuzz.strategies.spaces import space_of
from kvfuzz.surfaces import SURFACES
from kvfuzz.targets.load import Prepared

_NOT_ASKED: Final = b"null"
# Answers kept: bounds memory.
_KEPT_ANSWERS: Final = 4_000


class CompareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to compare.

    Attributes:
        targets: Both, fetched.
        surfaces: Which; none are all that both have.
        seconds: Wall-clock seconds in all, or None.
        scenarios: Scenarios a surface, or None.
        seed: Names their stream.
        limits: Of calls, of shrinking and of workers.
    """

    targets: tuple[Prepared, Prepared]
    surfaces: tuple[str, ...]
    seconds: float | None
    scenarios: int | None
    seed: int
    limits: Limits = DEFAULT_LIMITS


class Differs(Violation):
    """Both targets answer alike: not this scenario."""

    invariant = "alike"

    def __init__(self, difference: Difference) -> None:
        super().__init__(symptom=difference.how, got=difference.how, expected="like answers")


def compare(
    settings: CompareSettings, report: Comparison, stop: Callable[[], bool]
) -> Iterator[Found | None]:
    """Compare, and keep `report` true all the while.

    Yields:
        Each difference once it is shrunk, and None now and then.

    Raises:
        UsageError: The targets have no such surface, or none in common.
        TargetError: One could not be loaded.
    """
    end = inf if settings.seconds is None else time.monotonic() + settings.seconds
    sides = Sides(settings.targets, settings.limits, stop)
    try:
        sides.loaded()
        yield from _surfaces(settings, report, sides, end)
    except Stopped:
        report.interrupted = True
    finally:
        sides.end()


def _surfaces(
    settings: CompareSettings, report: Comparison, sides: Sides, end: float
) -> Iterator[Found | None]:
    one, other = sides.sides
    assert one.dialect is not None
    assert other.dialect is not None
    common = common_dialect(one.dialect, other.dialect)
    report.versions = one.version, other.version
    report.configs = one.config, other.config
    report.only = beyond(one.dialect, common), beyond(other.dialect, common)
    report.surfaces_of_one = (
        tuple(surface for surface in one.surfaces if surface not in other.surfaces),
        tuple(surface for surface in other.surfaces if surface not in one.surfaces),
    )
    for side in sides.sides:
        for surface in settings.surfaces:
            if surface not in side.surfaces:
                raise UsageError(f"{side.uri} has no surface {surface}.")
    both = (surface for surface in SURFACES if surface in {*one.surfaces} & {*other.surfaces})
    wanted = settings.surfaces or tuple(both)
    if not wanted:
        raise UsageError(f"{one.uri} and {other.uri} have no surface in common.")
    for left, surface in zip(range(len(wanted), 0, -1), wanted, strict=True):
        begun = time.monotonic()
        compared = SurfaceComparison(surface)
        report.surfaces.append(compared)
        share = begun + (end - begun) / left
        search = _Search(settings, compared, sides, common, share)
        try:
            yield from search.run()
        except GivenUp as why:
            compared.stopped = str(why)
        finally:
            compared.seconds = time.monotonic() - begun


class _Met(msgspec.Struct):
    """A difference before it is shrunk: the smallest mix met, by its place, and how many were."""

    chunk: int
    number: int
    replies: tuple[Reply, Reply]
    scenarios: int = 1

    @property
    def layers(self) -> int:
        return self.replies[0].layers


class _Search:
    """The search for differences on one surface.

    What was met most often is shrunk first. Of a budget of time half goes to
    that for as long as there is something to shrink; if scenarios are the
    budget it comes after them all, so that the same seed gives the same.
    """

    def __init__(
        self,
        settings: CompareSettings,
        compared: SurfaceComparison,
        sides: Sides,
        dialect: Dialect,
        end: float,
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._compared = compared
        self._sides = sides
        self._dialect = dialect
        self._end = end
        self._names = settings.targets[0].uri, settings.targets[1].uri
        self._space = space_of(compared.surface, dialect)
        self._met: dict[Difference, _Met] = {}
        #: Differences that did not come back.
        self._fickle: set[Difference] = set()
        #: What both said: further starts of shrinking are the same scenarios each time.
        self._said: dict[Scenario, tuple[Told, Told]] = {}
        sides.open(compared.surface, dialect)

    def run(self) -> Iterator[Found | None]:
        """Compare chunk by chunk until time or scenarios run out."""
        try:
            yield from self._run()
        finally:
            self._keep_as_met()

    def _run(self) -> Iterator[Found | None]:
        most = self._settings.scenarios
        comparing = shrinking = 0.0
        for chunk in count():
            size = CHUNK if most is None else min(CHUNK, most - chunk * CHUNK)
            begun = time.monotonic()
            if size <= 0 or begun > self._end:
                break
            self._compare(chunk, size)
            yield None
            comparing += time.monotonic() - begun
            while self._end < inf and shrinking < comparing and self._left():
                begun = time.monotonic()
                yield from self._shrink()
                shrinking += time.monotonic() - begun
        while self._left():
            yield from self._shrink()

    def _left(self) -> bool:
        """Whether there is something to shrink, and time for it."""
        few = len(self._compared.found) < self._limits.shrinks
        return bool(self._met) and few and time.monotonic() < self._end

    def _compare(self, chunk: int, size: int) -> None:
        request = Chunk(
            seed=self._settings.seed,
            chunk=chunk,
            size=size,
            deadline=None if self._end == inf else self._end,
        )
        pairs = self._sides.chunk(request, lambda number: self._rebuild(chunk, number)[1])
        compared = self._compared
        for number, (one, other) in enumerate(zip(*map(_as_bytes, pairs), strict=False)):
            if _NOT_ASKED in (one, other):
                for which, reply in enumerate((one, other)):
                    compared.left_out[which] += reply == _NOT_ASKED
                continue
            compared.scenarios += 1
            if one == other:
                continue
            replies = msgspec.json.decode(one, type=Reply), msgspec.json.decode(other, type=Reply)
            shown = differences(*replies, self._names)
            compared.differing += bool(shown)
            for difference in shown:
                self._count(difference, _Met(chunk, number, replies))

    def _count(self, difference: Difference, met: _Met) -> None:
        if (found := self._known(difference)) is not None:
            found.scenarios += 1
        elif difference in self._fickle:
            self._compared.fickle += 1
        else:
            before = self._met.get(difference)
            if before is not None:
                met = met if met.layers < before.layers else before
                met.scenarios = before.scenarios + 1
            self._met[difference] = met
            if len(self._met) > self._limits.findings:
                raise GivenUp(f"there are over {self._limits.findings:,} differences")

    def _shrink(self) -> Iterator[Found]:
        """Shrink what was met most often, and count what else was met of it."""
        difference = max(self._met, key=lambda difference: self._met[difference].scenarios)
        met = self._met[difference]
        found = self._minimal(difference, met)
        del self._met[difference]  # not before: should the run be stopped, it stays as it was met
        if found is None:
            self._fickle.add(difference)
            self._compared.fickle += met.scenarios
            return
        found.scenarios = met.scenarios
        for other in [other for other in self._met if other.shows(found.difference)]:
            found.scenarios += self._met.pop(other).scenarios
        self._compared.found.append(found)
        yield found

    def _keep_as_met(self) -> None:
        """Keep what was not shrunk; of two where one shows the other, the other one."""
        for difference in sorted(self._met, key=lambda difference: len(difference.kinds)):
            met = self._met[difference]
            if (found := self._known(difference)) is not None:
                found.scenarios += met.scenarios
                continue
            scenario = self._rebuild(met.chunk, met.number)[1]
            self._compared.found.append(
                Found(
                    difference=difference,
                    scenarios=met.scenarios,
                    scenario=scenario,
                    pages=((0,) * len(scenario),) * 2,
                    replies=met.replies,
                )
            )

    def _known(self, difference: Difference) -> Found | None:
        """What is found already and is shown by whatever shows this difference."""
        return next((f for f in self._compared.found if difference.shows(f.difference)), None)

    def _rebuild(self, chunk: int, number: int) -> tuple[list[int], Scenario]:
        """The choices of a scenario, and the scenario."""
        mixes = built(self._space, self._settings.seed, chunk, record=True)
        return next(islice(mixes, number, None))

    def _ask(self, scenario: Scenario, seconds: float | None) -> tuple[Told, Told]:
        """What both say, in a fork each if that may take only so many seconds."""
        if seconds is not None:
            return self._sides.told(scenario, seconds)
        said = self._said.get(scenario)
        if said is None:
            if len(self._said) >= _KEPT_ANSWERS:
                self._said.clear()
            said = self._said[scenario] = self._sides.told(scenario)
        return said

    def _shown(
        self, scenario: Scenario, difference: Difference, seconds: float | None
    ) -> Found | None:
        """What shows that difference, if the scenario does."""
        mine, theirs = self._ask(scenario, seconds)
        if mine.reply is None or theirs.reply is None:
            return None
        for shown in differences(mine.reply, theirs.reply, self._names):
            if difference.shows(shown):
                return Found(
                    difference=shown,
                    scenario=scenario,
                    pages=(mine.pages, theirs.pages),
                    replies=(mine.reply, theirs.reply),
                )
        return None

    def _minimal(self, difference: Difference, met: _Met) -> Found | None:
        """A difference with the simplest scenario that shows it; None if it does not come back."""
        limits = self._limits
        deadline = min(self._end, time.monotonic() + limits.shrink_seconds)
        recorded, original = self._rebuild(met.chunk, met.number)
        deadly = any(reply.passing for reply in met.replies)
        patience = limits.call_seconds if deadly else None
        first = self._shown(original, difference, patience)
        if first is None:
            return None
        hurried = limits.shrink_call_seconds if deadly else None

        def broken(scenario: Scenario) -> Differs | None:
            found = self._shown(scenario, difference, hurried)
            return None if found is None else Differs(found.difference)

        shrunk = from_choices(self._space, recorded, broken, MOST_LAYERS, deadline) or original
        if not deadly:  # those take long a try
            shrunk = plainest(self._space, self._dialect, shrunk, broken, deadline)
        last = self._shown(shrunk, difference, patience) or first
        last.shrunk = last is not first and time.monotonic() < deadline
        return last


def _as_bytes(replies: Iterable[msgspec.Raw]) -> list[bytes]:
    return [bytes(reply) for reply in replies]
