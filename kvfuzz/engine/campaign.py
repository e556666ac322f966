"""A campaign: surfaces of targets searched side by side under one wall-clock budget.

The one place that deals out time. It yields events; who shows them is not its
business.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from math import ceil

from kvfuzz import __version__
from kvfuzz.engine.crew import Crew
from kvfuzz.engine.events import Event, Finished, Report, Searching, TargetReport, TargetStarted
from kvfuzz.engine.records import Totals
from kvfuzz.engine.search import Search
from kvfuzz.engine.settings import Settings
from kvfuzz.engine.state import Campaign
from kvfuzz.engine.supervisor import pause
from kvfuzz.errors import KvfuzzError, UsageError

_SHOW_SECONDS = 0.2
#: Seconds between two writings of the state.
_SAVE_SECONDS = 1.0
#: The longest slice of a search's time, when searches outnumber workers: who
#: still finds is seen on the way; loading a planner is little beside it.
_SLICE_SECONDS = 30.0
#: With less left than this no further task is begun: a planner takes about so
#: long to be loaded.
_LEAST_SECONDS = 2.0
#: How much more time than another a search gets that still finds: the other
#: one, then, never has less than a third of its equal share.
_STILL_FINDING = 3.0
#: What is kept of a budget for the workers' last words, as a fraction of it
#: and in seconds at most.
_LAST_WORDS = (0.005, 0.1)


def run(
    settings: Settings,
    crew: Crew,
    campaign: Campaign,
    stop: Callable[[], bool] = lambda: False,
    form: type[Search] = Search,
) -> Iterator[Event]:
    """Run, until the budget is spent or `stop` says so; the last event is `Finished`.

    Args:
        settings: What to run; `seconds` is what is left of the budget.
        crew: Who does the jobs.
        campaign: Where it is kept how far they have come, and what it already
            says; it is closed in the end.
        stop: Whether to stop.
        form: What goes through a surface.

    Raises:
        UsageError: A case file or the state cannot be written. What was found
            until then has been yielded.
    """
    with campaign:
        conductor = _Conductor(settings, crew, campaign, form)
        try:
            yield from conductor.go(stop)
        except BaseException:
            with contextlib.suppress(UsageError):  # the first trouble is what is told
                conductor.save()
            raise
        conductor.save()
        conductor.report.interrupted = stop()
        yield Finished(conductor.report)


def favoured(searches: Sequence[Search]) -> Search:
    """The search that has had least of what it should have.

    Shares are equal, but one that found something new in the later half of
    its time has _STILL_FINDING times as much as one that did not.
    """

    def had(search: Search) -> float:
        still = search.found_at > search.spent / 2
        return search.claim / (_STILL_FINDING if still else 1.0)

    return min(searches, key=had)


class _Conductor:
    """The searches of a campaign, and its clock."""

    def __init__(
        self, settings: Settings, crew: Crew, campaign: Campaign, form: type[Search]
    ) -> None:
        self._settings = settings
        self._crew = crew
        self._campaign = campaign
        self._began = time.monotonic()
        self._deadline = self._end = None
        if settings.seconds is not None:
            self._end = self._began + settings.seconds
            fraction, most = _LAST_WORDS
            self._deadline = self._end - min(most, fraction * settings.seconds)
        self.report = Report(
            kvfuzz=__version__,
            seed=settings.seed,
            history=campaign.state.history(campaign.number),
        )
        self._searches: list[Search] = []
        for prepared in settings.targets:
            target = TargetReport(uri=prepared.uri)
            self.report.targets.append(target)
            for surface in settings.surfaces:
                stored = campaign.stored.get((prepared.uri, surface))
                self._searches.append(
                    form(settings, crew, prepared, surface, target, stored, self._deadline)
                )
        self._announced: set[Search] = set()
        self._saved = self._began

    def go(self, stop: Callable[[], bool]) -> Iterator[Event]:
        """Search to the end."""
        shown = 0.0
        try:
            while not stop() and not self._enough():
                yield from self._fill()
                busy = [search for search in self._searches if search.busy]
                if not busy:
                    break
                for search in busy:
                    yield from search.poll()
                now = time.monotonic()
                if now - shown > _SHOW_SECONDS:
                    shown = now
                    yield from self._shown(busy)
                if now - self._saved > _SAVE_SECONDS:
                    self.save()
                if self._end is not None and now > self._end:
                    break
                pause()
        finally:
            yield from self._close()
        self.report.enough = self._enough()
        if not stop() and not self.report.enough:
            for search in self._searches:
                search.show()  # also one whose turn never came
        yield from self._shown(self._searches)

    def _close(self) -> Iterator[Event]:
        """Close every search, also those after one that has trouble: each may have found something.

        Raises:
            KvfuzzError: A case file cannot be written, or a cluster is lost.
        """
        trouble: KvfuzzError | None = None
        for search in self._searches:
            try:
                yield from search.close()
            except KvfuzzError as error:
                trouble = trouble or error
        self._crew.close()
        if trouble is not None:
            raise trouble

    def _left(self) -> float | None:
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - time.monotonic())

    def _shown(self, searches: Sequence[Search]) -> Iterator[Event]:
        for search in searches:
            if search.shown:
                yield Searching(search.pair[0], search.report, self._left())

    def _enough(self) -> bool:
        most = self._settings.max_findings
        if most is None:
            return False
        # Those that are being shrunk are waited for.
        done = [f for search in self._searches for f in search.settled() if f.status == "new"]
        return len(done) >= most

    def _fill(self) -> Iterator[Event]:
        """Give every slot that is free to a search, if one wants it."""
        left = self._left()
        free = self._crew.slots - sum(search.searching for search in self._searches)
        while free > 0 and (left is None or left > 0):
            # A process more is not worth the last moments, unless it is the first.
            late = left is not None and left < _LEAST_SECONDS
            wanting = [s for s in self._searches if s.wants and not (late and s.claim)]
            if not wanting:
                break
            # Without a budget of time each goes to its end, one after another.
            search = wanting[0] if left is None else favoured(wanting)
            search.start(self._slice(left))
            free -= 1
            if search not in self._announced:
                self._announced.add(search)
                yield TargetStarted(*search.pair)

    def _slice(self, left: float | None) -> float | None:
        """Seconds that the next task gets."""
        longest = [seconds for seconds in (left, self._crew.task_seconds) if seconds is not None]
        number = len(self._searches)
        if self._settings.seconds is not None and number * self._settings.lanes > self._crew.slots:
            share = self._settings.seconds * self._crew.slots / number
            longest.append(share / ceil(share / _SLICE_SECONDS))
        return min(longest, default=None)

    def save(self) -> None:
        """Write how far it has come.

        Raises:
            UsageError: It cannot be written.
        """
        self._saved = time.monotonic()
        snapshots = {search.pair: search.snapshot() for search in self._searches}
        by_search = {search.pair: search.findings() for search in self._searches}
        self.report.findings = findings = [f for some in by_search.values() for f in some]
        ids = {
            status: {f.id for f in findings if f.status == status} for status in ("new", "known")
        }
        done = [snapshot for snapshot in snapshots.values() if snapshot]
        self._campaign.save(
            self._campaign.seconds + self._saved - self._began,
            Totals(
                searched=sum(snapshot.seconds for snapshot in done),
                mixes=sum(snapshot.tally.mixes for snapshot in done),
                new=len(ids["new"]),
                known=len(ids["known"]),
            ),
            {pair: snapshot for pair, snapshot in snapshots.items() if snapshot},
            {pair: some for pair, some in by_search.items() if snapshots[pair]},
            finished=self._finished(),
        )

    def _finished(self) -> bool:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return True
        return not any(search.wants or search.busy for search in self._searches)
