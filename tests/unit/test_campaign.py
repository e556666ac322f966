"""How a campaign deals out time, and what it makes of what workers tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvfuzz.engine.campaign import favoured, run
from kvfuzz.engine.crew import timed
from kvfuzz.engine.events import Event, FindingMade, Report, Searching, TargetStarted
from kvfuzz.engine.events import Finished as Over
from kvfuzz.engine.messages import (
    Finished,
    FuzzJob,
    Job,
    Loaded,
    Message,
    Progress,
    Replayed,
    ReplayJob,
    ShrinkJob,
    Shrunk,
    Violated,
    decode,
)
from kvfuzz.engine.places import Coverage, Place
from kvfuzz.engine.records import Plan
from kvfuzz.engine.session import Tally
from kvfuzz.engine.settings import Settings
from kvfuzz.engine.state import State
from kvfuzz.errors import UsageError
from kvfuzz.outcomes import Crash
from kvfuzz.outcomes import Plan as Planned
from kvfuzz.targets.load import Prepared
from tests.report_samples import lost

PLAN = Plan(kind="run", targets=(), surfaces=(), seconds=None, mixes=None, seed=0, use_ledger=False)


class _Had:
    def __init__(self, claim: float, spent: float, found_at: float) -> None:
        self.claim, self.spent, self.found_at = claim, spent, found_at


@pytest.mark.parametrize(
    ("searches", "index"),
    [
        ([(0, 0, 0), (0, 0, 0)], 0),
        ([(30, 0, 0), (0, 0, 0)], 1),
        ([(60, 60, 0), (30, 30, 0)], 1),
        # Who found something in the later half of its time may have three times as much.
        ([(60, 60, 40), (30, 30, 0)], 0),
        ([(89, 89, 45), (30, 30, 0)], 0),
        ([(91, 91, 46), (30, 30, 0)], 1),
        ([(60, 60, 30), (30, 30, 0)], 1),  # not later than half
        ([(60, 60, 40), (60, 60, 50), (30, 30, 0)], 0),
    ],
)
def test_who_is_favoured(searches: list[tuple[float, float, float]], index: int):
    made: list[Any] = [_Had(*numbers) for numbers in searches]
    assert favoured(made) is made[index]


def test_a_job_is_timed_from_when_it_is_started(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvfuzz.engine.crew.time.monotonic", lambda: 100.0)
    job = ShrinkJob(
        target=Prepared("reference"),
        surface="pack",
        seed=0,
        place=Place(0, 0),
        fingerprint=None,
        crash=Crash(symptom="died"),
    )
    made = timed(job, 2.5, 60.0)
    assert isinstance(made, ShrinkJob)
    assert made.end == 160.0
    assert timed(job, 2.5, None) is job
    replay = ReplayJob(target=Prepared("reference"), surface="pack", scenarios=[])
    assert timed(replay, 2.5, 60.0) is replay
    search = FuzzJob(
        target=Prepared("reference"),
        surface="pack",
        seed=0,
        start=Place(0, 0),
        stride=1,
        deadline=None,
        mixes=None,
        witnesses={},
        done=[],
        claims="",
    )
    made = timed(search, 2.5, 60.0)
    assert isinstance(made, FuzzJob)
    assert (made.deadline, made.end) == (102.5, 160.0)


class _Task:
    """A task that says what it is told to say, in one go."""

    loaded = True
    place: Place | None = None

    def __init__(self, job: Job, said: list[Message], crash: Crash | None = None) -> None:
        self.job, self.crash, self.done = job, crash, False
        self._said = said
        self.ended = False

    def messages(self) -> Iterator[Message]:
        yield from self._said
        self._said = []
        self.done = True

    def end(self) -> None:
        self.ended = True


class _Crew:
    """A crew whose tasks are scripted: one list of messages a searching job, in order."""

    task_seconds: float | None = None

    def __init__(self, *scripts: list[Message], slots: int = 1) -> None:
        self.slots = slots
        self.jobs: list[Job] = []
        self.seconds: list[float | None] = []
        self._scripts = list(scripts)
        self.closed = False

    def start(self, job: Job, seconds: float | None, left: float | None) -> _Task:
        self.jobs.append(decode(msgspec.json.encode(job), Job))  # as it is now
        self.seconds.append(seconds)
        said: list[Message] = [Loaded("1", ("pack",))]
        said += self._scripts.pop(0) if self._scripts else [Finished()]
        return _Task(job, said)

    def close(self) -> None:
        self.closed = True


def _settings(tmp_path: Path, **fields: Any) -> Settings:
    common: dict[str, Any] = {
        "targets": (Prepared("reference"),), "surfaces": ("pack",), "seconds": None,
        "mixes": 1000, "seed": 0, "lanes": 1, "use_ledger": False, "cases": tmp_path / "cases",
    }  # fmt: skip
    return Settings(**{**common, **fields})


def _run(tmp_path: Path, settings: Settings, crew: _Crew) -> tuple[list[Event], Report]:
    with State(tmp_path) as state:
        past = state.latest("run")
        campaign = state.go_on(past) if past else state.begin(PLAN)
        *events, last = run(settings, crew, campaign)
    assert isinstance(last, Over)
    assert crew.closed
    return events, last.report


def _counted(mixes: int, last: Place) -> Progress:
    return Progress(Tally(mixes=mixes, outcomes=Counter(plan=mixes)), last)


def test_a_lane_goes_on_where_its_last_slice_ended(tmp_path: Path):
    crew = _Crew(
        [_counted(300, Place(1, 43)), Finished(exhausted=False)],
        [_counted(100, Place(1, 143)), Finished(exhausted=False)],
        [_counted(600, Place(3, 231)), Finished()],
    )
    _, report = _run(tmp_path, _settings(tmp_path), crew)
    jobs = [job for job in crew.jobs if isinstance(job, FuzzJob)]
    assert [(job.start, job.coverage) for job in jobs] == [
        (Place(0, 0), Coverage()),
        (Place(1, 0), Coverage(1, set(), {1: 44})),
        (Place(1, 0), Coverage(1, set(), {1: 144})),
    ]
    assert report.targets[0].surfaces[0].tally.mixes == 1000


def test_lanes_are_dealt_out_and_each_is_one_tasks(tmp_path: Path):
    crew = _Crew(slots=3)
    _run(tmp_path, _settings(tmp_path, lanes=3), crew)
    jobs = [job for job in crew.jobs if isinstance(job, FuzzJob)]
    assert [(job.start, job.stride) for job in jobs] == [
        (Place(0, 0), 3),
        (Place(1, 0), 3),
        (Place(2, 0), 3),
    ]


@pytest.mark.parametrize(
    ("seconds", "targets", "slots", "planned"),
    [
        (60.0, 1, 2, 60.0),  # nobody waits for a slot
        (60.0, 2, 1, 30.0),
        (60.0, 4, 2, 30.0),
        (40.0, 4, 1, 10.0),
        (3600.0, 2, 1, 30.0),
        (100.0, 2, 1, 25.0),  # two slices each
    ],
)
def test_slices(tmp_path: Path, seconds: float, targets: int, slots: int, planned: float):
    crew = _Crew(slots=slots)
    names = tuple(Prepared(f"t{number}") for number in range(targets))
    settings = _settings(tmp_path, targets=names, seconds=seconds, mixes=None, lanes=slots)
    _run(tmp_path, settings, crew)
    first = crew.seconds[0]
    assert first is not None
    # But for what is kept for last words, and the moment that has passed.
    assert planned - 1 < first <= planned


def test_a_crew_may_want_short_tasks(tmp_path: Path):
    crew = _Crew()
    crew.task_seconds = 20.0
    _run(tmp_path, _settings(tmp_path), crew)
    assert crew.seconds == [20.0]


def test_every_search_is_announced_once_and_shown_at_the_end(tmp_path: Path):
    names = (Prepared("one"), Prepared("two"))
    crew = _Crew([Finished(exhausted=False)], [Finished()], [Finished()])
    events, report = _run(tmp_path, _settings(tmp_path, targets=names), crew)
    assert [e.uri for e in events if isinstance(e, TargetStarted)] == ["one", "two"]
    assert [e.uri for e in events if isinstance(e, Searching)][-2:] == ["one", "two"]
    assert [target.uri for target in report.targets] == ["one", "two"]


def test_findings_are_each_targets_own(tmp_path: Path):
    """The same fingerprint on two targets is two findings, whoever found it first."""
    names = (Prepared("one"), Prepared("two"))
    scripts: list[list[Message]] = [
        [Violated(finding, Place(0, 3)), Shrunk(finding.fingerprint, finding), Finished()]
        for name in ("one", "two")
        for finding in [msgspec.structs.replace(lost(), target=name)]
    ]
    crew = _Crew(*scripts)
    events, report = _run(tmp_path, _settings(tmp_path, targets=names), crew)
    assert [finding.target for finding in report.findings] == ["one", "two"]
    assert len([e for e in events if isinstance(e, FindingMade)]) >= 2


def test_all_is_told_though_no_case_can_be_written(tmp_path: Path):
    """Also what another search has found by then; and --resume has it."""
    found = [
        [
            msgspec.structs.replace(lost(), target=name, fingerprint=f"{n:064x}", id=f"{name}-{n}")
            for n in range(3)
        ]
        for name in ("one", "two")
    ]
    met = [[Violated(finding, None) for finding in some] for some in found]
    crew = _Crew(
        *([*each, _counted(3, Place(0, 2)), Finished(exhausted=False)] for each in met), slots=2
    )
    settings = _settings(tmp_path, targets=(Prepared("one"), Prepared("two")))
    settings.cases.write_text("not a folder")
    told: list[FindingMade] = []
    with State(tmp_path) as state:
        events = run(settings, crew, state.begin(PLAN))
        with pytest.raises(UsageError, match=r"one-0\.json cannot be written"):
            told.extend(event for event in events if isinstance(event, FindingMade))
    assert [event.finding for event in told] == [*found[0], *found[1]]
    assert {event.path for event in told} == {""}
    assert crew.closed
    settings.cases.unlink()
    _, report = _run(tmp_path, settings, _Crew(slots=2))
    assert report.findings == [*found[0], *found[1]]
    assert len(list(settings.cases.iterdir())) == 6


def test_enough_is_enough(tmp_path: Path):
    finding = lost()
    crew = _Crew(
        [Violated(finding, Place(0, 3)), Shrunk(finding.fingerprint, finding),
         Finished(exhausted=False)],
    )  # fmt: skip
    _, report = _run(tmp_path, _settings(tmp_path, max_findings=1), crew)
    assert len(crew.jobs) == 1
    assert [f.fingerprint for f in report.findings] == [finding.fingerprint]
    # Nothing says that it is over: --resume may go on.
    with State(tmp_path) as state:
        past = state.latest("run")
    assert past is not None
    assert past.finished is False


def test_kept_cases_are_replayed_first_and_not_again_by_a_resumed_run(tmp_path: Path):
    finding = lost()
    settings = _settings(tmp_path, corpus={"pack": (finding.scenario,), "other": ()})
    replayed = Replayed(Planned(None), (finding,))
    crew = _Crew([replayed, Finished()], [_counted(5, Place(0, 4)), Finished(exhausted=False)])
    _, report = _run(tmp_path, settings, crew)
    assert isinstance(crew.jobs[0], ReplayJob)
    assert crew.jobs[0].scenarios == [finding.scenario]
    assert report.targets[0].surfaces[0].replayed == 1
    assert [f.fingerprint for f in report.findings] == [finding.fingerprint]
    crew = _Crew()
    _run(tmp_path, settings, crew)
    assert [type(job) for job in crew.jobs] == [FuzzJob]


def test_many_unshrunk_findings_are_shrunk_a_few_at_a_time(tmp_path: Path):
    """As many as there are lanes; a campaign may be killed while hundreds wait."""

    class Waiting(_Crew):
        most = 0

        def start(self, job: Job, seconds: float | None, left: float | None) -> _Task:
            task = super().start(job, seconds, left)
            alive = [t for t in tasks if not t.done and isinstance(t.job, ShrinkJob)]
            tasks.append(task)
            self.most = max(self.most, len(alive) + isinstance(job, ShrinkJob))
            return task

    tasks: list[_Task] = []
    finding = lost()
    met: list[Message] = [
        Violated(msgspec.structs.replace(finding, fingerprint=f"{n:064x}"), Place(0, n))
        for n in range(50)
    ]
    crew = Waiting([*met, _counted(50, Place(0, 49))], slots=2)
    crash = Crash(symptom="died", exception="SIGSEGV")

    original = crew.start

    def start(job: Job, seconds: float | None, left: float | None) -> _Task:
        task = original(job, seconds, left)
        if isinstance(job, FuzzJob) and len(crew.jobs) == 1:
            task.crash = crash
        return task

    crew.start = start  # type: ignore[method-assign]
    _run(tmp_path, _settings(tmp_path, lanes=2), crew)
    shrinks = [job for job in crew.jobs if isinstance(job, ShrinkJob)]
    assert [job.place for job in shrinks] == [Place(0, n) for n in range(50)]
    assert crew.most == 2
