"""A run over time: mixes a second, and when each finding was met, in bounded memory.

Takes the run's events as they come. Mixes are counted in buckets of equal
width; when a run outgrows them, neighbours are joined and the width doubles,
so that eight hours take as much memory as a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from kvfuzz.engine.events import Event, FindingMade, Searching, TargetStarted
from kvfuzz.reporting.console import path_key

#: Buckets that are kept at most; even, since they are joined in pairs.
MAX_BUCKETS = 240
_FIRST_WIDTH = 0.5
#: Starts that are kept: more cannot be told apart in a picture.
_MAX_STARTS = 400


class Start(NamedTuple):
    """A surface of a target was taken up, so many seconds into the run."""

    seconds: float
    uri: str
    surface: str


class Timeline:
    """Collects what a run's events say of time.

    Args:
        clock: Tells seconds; only differences count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._buckets = [0.0] * MAX_BUCKETS
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        #: Seconds from the first event's clock to the last.
        self.seconds = 0.0
        #: Seconds that a bucket spans.
        self.width = _FIRST_WIDTH
        self.starts: list[Start] = []
        #: Finding, by `path_key` -> seconds at which it was first met.
        self.met: dict[str, float] = {}

    def take(self, event: Event) -> None:
        """Take one event into account."""
        now = max(self.seconds, self._clock() - self._began)
        self.seconds = now
        match event:
            case TargetStarted(uri, surface):
                if len(self.starts) < _MAX_STARTS:
                    self.starts.append(Start(now, uri, surface))
                _, mixes = self._seen.get((uri, surface), (now, 0))
                self._seen[uri, surface] = (now, mixes)
            case Searching(uri, report):
                key = (uri, report.surface)
                before, mixes = self._seen.get(key, (0.0, 0))
                if report.verified:  # what an earlier run did took no time of this one
                    mixes = max(mixes, report.verified.resumed)
                # The target was loaded in between: no mix came in that time.
                begin = max(before, now - report.seconds)
                self._add(begin, now, max(0, report.tally.mixes - mixes))
                self._seen[key] = (now, report.tally.mixes)
            case FindingMade(finding, _):
                self.met.setdefault(path_key(finding), now)

    def _add(self, begin: float, end: float, mixes: int) -> None:
        """Spread mixes evenly over the buckets from `begin` to `end`."""
        while end >= self.width * MAX_BUCKETS:
            pairs = zip(self._buckets[::2], self._buckets[1::2], strict=True)
            self._buckets = [one + other for one, other in pairs] + [0.0] * (MAX_BUCKETS // 2)
            self.width *= 2
        if not mixes:
            return
        first, last = int(begin / self.width), int(end / self.width)
        for bucket in range(first, last + 1):
            if end > begin:
                low = max(begin, bucket * self.width)
                share = max(0.0, min(end, (bucket + 1) * self.width) - low) / (end - begin)
            else:
                share = float(bucket == last)
            self._buckets[bucket] += mixes * share

    def rates(self) -> list[tuple[float, float]]:
        """(seconds into the run, mixes a second then), one a bucket, at its middle.

        The last bucket is left out if the run ended before half of it.
        """
        rates: list[tuple[float, float]] = []
        for bucket, mixes in enumerate(self._buckets):
            begin = bucket * self.width
            span = min(self.width, self.seconds - begin)
            if span <= 0 or (span < self.width / 2 and rates):
                break
            rates.append((begin + span / 2, mixes / span))
        return rates
