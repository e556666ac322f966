"""A run beside those before it, as two charts and a table of the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvfuzz.engine.events import PastRun, Report

#: Past runs that are shown: the last ones.
MAX_RUNS = 400
#: Points of a line, this run's aside; neighbours share one if there are more runs.
_MAX_POINTS = 60
#: Points that are marked one by one, if there are no more than this.
_MAX_MARKS = 30
#: Names under a chart, the first run's and this one's among them. Three fit on a phone.
_MAX_NAMES = 3
#: The highest point, in percent of the chart.
_HIGH = 94.0


def past_runs(report: Report) -> dict[str, Any] | None:
    """The runs before this one and this one, in the order given; None if it is the first."""
    past = report.history[-MAX_RUNS:]
    if not past:
        return None
    this = _this(report)
    step = -(-len(past) // _MAX_POINTS)
    points = [*(past[at : at + step] for at in range(0, len(past), step)), [this]]
    rates = [_rate(runs) for runs in points]
    new = [max(run.new for run in runs) for runs in points]
    known = [max(run.known for run in runs) for runs in points]
    top, most = max(rate or 0.0 for rate in rates), max(*new, *known)
    return {
        "count": len(past),
        "left_out": len(report.history) - len(past),
        "step": step,
        "names": _names([runs[0] for runs in points[:-1]]),
        "top": f"{top:,.0f}",
        "rates": _line(rates, top),
        "most": f"{most:,}",
        "new": _line(new, most),
        "known": _line(known, most),
        "rows": [
            {"run": run, "when": _when(run), "rate": "-" if rate is None else f"{rate:,.0f}"}
            for run in [this, *reversed(past)]
            for rate in [_rate([run])]
        ],
    }


def _this(report: Report) -> PastRun:
    surfaces = [surface for target in report.targets for surface in target.surfaces]
    return PastRun(
        started="",
        seconds=sum(surface.seconds for surface in surfaces),
        mixes=sum(surface.tally.mixes for surface in surfaces),
        new=len({finding.id for finding in report.new}),
        known=len({finding.id for finding in report.findings if finding.status == "known"}),
        interrupted=report.interrupted,
        label=", ".join(target.uri for target in report.targets),
    )


def _rate(runs: Sequence[PastRun]) -> float | None:
    """Mixes a second; None of runs that took no time."""
    seconds = sum(run.seconds for run in runs)
    return sum(run.mixes for run in runs) / seconds if seconds > 0 else None


def _when(run: PastRun) -> str:
    """`2026-01-02 03:04`."""
    return run.started[:16].replace("T", " ") or "this run"


def _line(values: Sequence[float | None], top: float) -> dict[str, Any]:
    """A line through the values that there are, in percent of the chart, in equal steps.

    Not by time: a clock may have been set back, and nights lie between runs.
    """
    last = len(values) - 1
    points = [
        (round(100 * at / last, 2), round(100 - _HIGH * value / (top or 1), 2))
        for at, value in enumerate(values)
        if value is not None
    ]
    return {
        "points": " ".join(f"{x * 10:g},{y:g}" for x, y in points),
        "marks": points if last <= _MAX_MARKS else points[-1:],
    }


def _names(runs: Sequence[PastRun]) -> list[dict[str, Any]]:
    """Names of a few points: their runs' dates or, if those are all one, the times."""
    steps = min(_MAX_NAMES - 1, len(runs))
    places = [round(len(runs) * step / steps) for step in range(steps)]
    one_day = len(runs) > 1 and len({run.started[:10] for run in runs}) == 1
    shown = slice(11, 16) if one_day else slice(10)
    names = [{"at": 100 * at / len(runs), "text": _when(runs[at])[shown]} for at in places]
    return [*names, {"at": 100.0, "text": "this run"}]
