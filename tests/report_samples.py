"""Reports of runs that never were, for the tests of those who write them.

Every text that could come from others says something hostile.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from kvfuzz.engine.events import (
    FindingMade,
    PastRun,
    Report,
    Searching,
    SurfaceReport,
    TargetReport,
    TargetStarted,
    Verified,
)
from kvfuzz.engine.session import Tally
from kvfuzz.engine.shapes import Shapes
from kvfuzz.findings import Finding, make_finding
from kvfuzz.invariants import Violation
from kvfuzz.invariants.grouping import PartitionViolation, SinglePageSizeViolation
from kvfuzz.invariants.metamorphic import OrderFreeViolation
from kvfuzz.ledger import ledger
from kvfuzz.outcomes import Group
from kvfuzz.reporting.console import path_key
from kvfuzz.reporting.timeline import Timeline
from kvfuzz.specs import MLAAttentionSpec, Scenario, SlidingWindowMLASpec

SCRIPT = "</script><script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"
CONTROLS = "a\x00b\x1b[31mc\u202ee\uffff]]>&amp;"
HOSTILE = f"mine:{SCRIPT}"
FULL = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype="float32")
WIDE = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=128, dtype="float32")
WINDOW = SlidingWindowMLASpec(
    block_size=16, num_kv_heads=1, head_size=64, dtype="float32", sliding_window=128
)


def a_finding(violation: Violation, target: str, version: str, *, count: int = 3) -> Finding:
    """A finding on a mix of layers named SCRIPT, IMAGE and `layers.2`, or of the first of them."""
    mix = ((SCRIPT, FULL), (IMAGE, WINDOW), ("layers.2", WIDE))[:count]
    finding = make_finding(
        violation,
        scenario=Scenario(mix=mix),
        pages=(4096, 4096, 8192)[:count],
        surface="pack",
        target=target,
        version=version,
        shrunk=True,
    )
    return msgspec.structs.replace(finding, reproduction=f"# {SCRIPT}\nassert False\n")


def lost(target: str = HOSTILE, version: str = "1.0") -> Finding:
    """`layers.2` is in no group."""
    violation = PartitionViolation(
        symptom="lost",
        got=f"{SCRIPT} {CONTROLS}",
        expected=f"{IMAGE} in a group",
        layers=("layers.2",),
        groups=(Group(layers=(SCRIPT, IMAGE), pages=(4096, 4096)),),
    )
    return a_finding(violation, target, version)


def reordered(target: str = HOSTILE) -> Finding:
    """Another invariant's finding, without groups."""
    violation = OrderFreeViolation(symptom="order", got="other groups", expected="the same")
    return a_finding(violation, target, "1.0", count=2)


def mixed(target: str, version: str) -> Finding:
    """What the ledger knows, by design, of vLLM."""
    known = next(k for k in ledger() if k.entry.id == "single-page-size-0810dc85")
    violation = SinglePageSizeViolation(
        symptom="mixed",
        got="a group with pages of 4096, 8192 bytes",
        expected="one page size in each group",
        groups=(
            Group(layers=(SCRIPT, "layers.2"), pages=(4096, 8192)),
            Group(layers=(IMAGE,), pages=(4096,)),
        ),
    )
    return msgspec.structs.replace(
        a_finding(violation, target, version),
        id=known.entry.id,
        fingerprint=known.entry.fingerprint,
        status="known",
        ledger=known.entry.id,
    )


def routed(target: str, version: str) -> Finding:
    """What the ledger knows, as a bug, of vLLM."""
    known = next(k for k in ledger() if k.entry.id == "uniform-is-none-82c27ad5")
    return msgspec.structs.replace(
        mixed(target, version),
        id=known.entry.id,
        invariant="uniform-is-none",
        fingerprint=known.entry.fingerprint,
        ledger=known.entry.id,
        groups=(),
    )


def shapes(mixes: int) -> Shapes:
    """Shapes of so many mixes, most of them not tried."""
    return Shapes(
        kinds=Counter({"mla_attention float32": mixes, "sliding_window_mla float32": mixes // 5}),
        ratios=Counter({"1": mixes - mixes // 4, "<1.05": mixes // 4}),
        groups=Counter({"none": mixes // 4, "2": mixes - mixes // 4}),
        layers=Counter({"2-4": mixes}),
    )


def surface(mixes: int, violated: dict[str, int], unjudged: tuple[str, ...] = ()) -> SurfaceReport:
    """What a search of so many mixes says."""
    rules = (
        "plan-or-refusal",
        "uniform-is-none",
        "partition",
        "single-page-size",
        "pure",
        "deterministic",
    )
    checked = {rule: mixes for rule in (*rules, "order-free") if rule not in unjudged}
    tally = Tally(
        mixes=mixes,
        outcomes=Counter({"plan": mixes * 3 // 4, "none": mixes - mixes * 3 // 4}),
        checked=Counter(checked),
        violated=Counter(violated),
        shapes=shapes(mixes // 10),
    )
    return SurfaceReport(surface="pack", seconds=4.0, tally=tally)


def a_report() -> Report:
    """Two new findings, two known ones on two releases, one target that failed."""
    release = surface(1000, {"single-page-size": 250, "uniform-is-none": 100}, ("order-free",))
    other = surface(2000, {"single-page-size": 500})
    mine = surface(400, {"partition": 7, "order-free": 1, "pure": 2})
    return Report(
        kvfuzz="0.0.1",
        seed=7,
        targets=[
            TargetReport(uri="vllm==0.25.1", version="0.25.1", surfaces=[release]),
            TargetReport(uri="vllm==0.28.0", version="0.28.0", surfaces=[other]),
            TargetReport(uri=HOSTILE, version="1.0", surfaces=[mine]),
            TargetReport(uri="mine:broken", error=f"No {SCRIPT} {CONTROLS} \ud800."),
        ],
        findings=[
            mixed("vllm==0.25.1", "0.25.1"),
            mixed("vllm==0.28.0", "0.28.0"),
            routed("vllm==0.25.1", "0.25.1"),
            reordered(),
            lost(),
        ],
    )


def paths_of(report: Report) -> dict[str, str]:
    """A case file for every new finding."""
    return {path_key(f): f"my reports/cases/{f.id}.json" for f in report.new}


def a_timeline(report: Report) -> Timeline:
    """Four seconds of each target, with a finding a second after its start."""
    now = 0.0
    timeline = Timeline(lambda: now)
    for target in report.targets:
        for made in target.surfaces:
            timeline.take(TargetStarted(target.uri, made.surface))
            now += 1.0
            for finding in report.findings:
                if finding.target == target.uri:
                    timeline.take(FindingMade(finding, ""))
            now += 3.0
            timeline.take(Searching(target.uri, made, 0.0))
    return timeline


def a_passing_report() -> Report:
    """Nothing found on one target."""
    target = TargetReport(uri="reference", version="0.0.1", surfaces=[surface(1000, {})])
    return Report(kvfuzz="0.0.1", seed=7, targets=[target])


def a_verified_report() -> Report:
    """One verification that holds, one that an earlier run began, one that could not go on."""
    done, resumed, broken = surface(794, {}), surface(794, {"partition": 2}), surface(200, {})
    done.verified = Verified(layers=3, patterns=397, mixes=794, finished=True)
    resumed.verified = msgspec.structs.replace(done.verified, resumed=100)
    broken.verified = Verified(layers=3, patterns=397, mixes=794)
    broken.stopped = "20 workers died"
    targets = [
        TargetReport(uri=uri, version="1", surfaces=[made])
        for uri, made in (("reference", done), (HOSTILE, resumed), ("mine:dies", broken))
    ]
    return Report(kvfuzz="0.0.1", seed=0, targets=targets)


def past(count: int) -> list[PastRun]:
    """So many runs, of one minute a day; the first took no time, the second was stopped."""
    runs = [
        PastRun(
            started=f"2026-{1 + day // 28:02}-{1 + day % 28:02}T03:00:00Z",
            seconds=60.0,
            mixes=6000 + 60 * (day % 7),
            new=day % 3,
            known=2,
            interrupted=day == 1,
            label=f"vllm==0.25.1, {SCRIPT}",
        )
        for day in range(count)
    ]
    return [msgspec.structs.replace(runs[0], seconds=0.0, mixes=0), *runs[1:]]
