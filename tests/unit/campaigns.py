"""Whole campaigns with real worker processes, for the tests of planners that misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import psutil

from kvfuzz.cases import Case, read_case
from kvfuzz.engine.calls import Limits
from kvfuzz.engine.campaign import run as run_campaign
from kvfuzz.engine.crew import LocalCrew
from kvfuzz.engine.events import Event, Finished, Report
from kvfuzz.engine.places import CHUNK
from kvfuzz.engine.records import Plan
from kvfuzz.engine.session import Tally
from kvfuzz.engine.settings import Settings
from kvfuzz.engine.state import State
from kvfuzz.findings import Finding
from kvfuzz.strategies.builders import stream
from kvfuzz.strategies.choices import SeededChoices
from kvfuzz.targets.load import Prepared
from tests.unit import planners

#: Small, so that what hangs or grows does not hold up the tests.
LIMITS = Limits(
    call_seconds=0.3,
    call_bytes=128 << 20,
    shrink_call_seconds=0.06,
    shrink_seconds=1.0,
    silent_seconds=3.0,
)
MIXES = 600
ROOT = Path(__file__).parents[2]


def _bad_places(seed: int, mixes: int) -> list[int]:
    """Which of a seed's first mixes the planners of `tests.unit.planners` misbehave on."""
    places = []
    for chunk in range(-(-mixes // CHUNK)):
        numbers = range(chunk * CHUNK, min((chunk + 1) * CHUNK, mixes))
        for number, (_, mix) in zip(numbers, stream(SeededChoices(seed, chunk)), strict=False):
            if planners.bad(dict(mix)):
                places.append(number)
    return places


@cache
def seed_with(incidents: int) -> int:
    """A seed with so many of them, the last with a few hundred mixes to follow."""
    for seed in range(1_000):
        places = _bad_places(seed, MIXES)
        if len(places) == incidents and places[-1] < MIXES - 300:
            return seed
    raise AssertionError("no seed has so many")


def settings_of(
    tmp_path: Path,
    target: str,
    *,
    mixes: int | None = MIXES,
    seconds: float | None = None,
    seed: int | None = None,
    jobs: int = 1,
    limits: Limits = LIMITS,
) -> Settings:
    """What to run: a planner of `tests.unit.planners`, or any other target."""
    uri = target if target == "reference" or ":" in target else f"tests.unit.planners:{target}"
    return Settings(
        targets=(Prepared(uri),),
        surfaces=("pack",),
        seconds=seconds,
        mixes=mixes,
        seed=seed_with(1) if seed is None else seed,
        lanes=jobs,
        use_ledger=False,
        cases=tmp_path / "cases",
        limits=limits,
    )


def run(
    settings: Settings, stop: Callable[[], bool] = lambda: False, *, resume: bool = False
) -> Iterator[Event]:
    """A campaign with those settings, in the folder of their cases, or the last one there."""
    plan = Plan(
        kind="run", targets=(), surfaces=(), seconds=None, mixes=None, seed=0, use_ledger=False
    )
    with State(settings.cases.parent) as state:
        past = state.latest("run") if resume else None
        campaign = state.go_on(past) if past else state.begin(plan)
        yield from run_campaign(settings, LocalCrew(settings.lanes), campaign, stop)


def report_of(events: Iterator[Event]) -> Report:
    """The report that a campaign ends with."""
    *_, last = events
    assert isinstance(last, Finished)
    return last.report


def tally_of(report: Report) -> Tally:
    """The counts of its only surface."""
    (target,) = report.targets
    (surface,) = target.surfaces
    return surface.tally


def kinds(finding: Finding) -> list[str]:
    """The kinds of its layers, sorted."""
    return sorted(spec.kind for _, spec in finding.scenario)


def assert_case(finding: Finding, tmp_path: Path) -> None:
    """Its case file says the same."""
    case, scenario = read_case(tmp_path / "cases" / f"{finding.id}.json", Case)
    assert case.fingerprint == finding.fingerprint
    assert scenario == finding.scenario


def descendants() -> list[psutil.Process]:
    """Workers of this process that live."""
    found = psutil.Process().children(recursive=True)
    return [process for process in found if "kvfuzz.engine.worker" in process.cmdline()]
