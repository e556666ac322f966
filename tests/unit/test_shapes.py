"""Shapes of mixes: under which names they are counted, which mixes are, and what JSON says."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from kvfuzz.engine.messages import Message, decode
from kvfuzz.engine.session import Session, Tally
from kvfuzz.engine.shapes import (
    GROUP_NAMES,
    KIND_NAMES,
    LAYER_NAMES,
    RATIO_NAMES,
    SHAPES_SHARE,
    Shapes,
    ratio_name,
)
from kvfuzz.outcomes import Crash, Group, NotExpressible, Outcome, Plan, Refusal
from kvfuzz.reference import group_and_unify_kv_cache_specs
from kvfuzz.reporting.json_file import report_to_json
from kvfuzz.specs import LayerSpec, Scenario
from kvfuzz.targets.base import NeutralTarget
from tests.report_samples import FULL, WIDE, WINDOW, a_passing_report

PLAN = Plan(groups=(Group(layers=("a",), pages=(1,)),))


def _counted(*specs: LayerSpec, outcome: Outcome = PLAN, pages: tuple[int, ...] = ()) -> Shapes:
    mix = tuple((f"layers.{n}", spec) for n, spec in enumerate(specs))
    shapes = Shapes()
    shapes.count(Scenario(mix), {f"layers.{n}": page for n, page in enumerate(pages)}, outcome)
    return shapes


def test_one_mix_counts_once_a_kind_and_dtype():
    shapes = _counted(FULL, WIDE, WINDOW, FULL, pages=(4096, 8192, 4096, 4096))
    assert shapes == Shapes(
        kinds=Counter({"mla_attention float32": 1, "sliding_window_mla float32": 1}),
        ratios=Counter({"2": 1}),
        groups=Counter({"1": 1}),
        layers=Counter({"2-4": 1}),
    )
    assert shapes.mixes == 1
    assert set(shapes.kinds) < set(KIND_NAMES)


@pytest.mark.parametrize(
    ("pages", "name"),
    [
        ((4096, 4096), "1"),
        ((4096, 4095), "<1.05"),
        ((1049, 1000, 1020), "<1.05"),
        ((1050, 1000), "<2"),
        ((1001, 2000), "coprime"),
        ((3, 2), "coprime"),
        ((1000, 2000, 1500), "2"),
        ((3000, 1000), ">2 whole"),
        ((7, 1), ">2 whole"),
        ((5000, 2000), ">2"),
        ((2001, 1000), "coprime"),
    ],
)
def test_ratios(pages: tuple[int, ...], name: str):
    assert ratio_name(pages) == name
    assert name in RATIO_NAMES


@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        (Plan(groups=None), "none"),
        (Plan(groups=()), "0"),
        (PLAN, "1"),
        (Plan(groups=PLAN.groups * 7), "7"),  # type: ignore[operator]
        (Plan(groups=PLAN.groups * 8), "8+"),  # type: ignore[operator]
        (Plan(groups=PLAN.groups * 60), "8+"),  # type: ignore[operator]
        (Refusal("ValueError", "no"), "refusal"),
        (Crash(symptom="died"), "crash"),
        (NotExpressible("no field x"), "not-expressible"),
    ],
)
def test_groups(outcome: Outcome, name: str):
    assert _counted(FULL, outcome=outcome, pages=(1,)).groups == {name: 1}
    assert name in GROUP_NAMES


def test_layers():
    names = {n: "".join(_counted(*[FULL] * n).layers) for n in (1, 2, 4, 5, 16, 17, 64)}
    assert names == {1: "1", 2: "2-4", 4: "2-4", 5: "5-16", 16: "5-16", 17: "17+", 64: "17+"}
    assert set(names.values()) == set(LAYER_NAMES)


def test_a_mix_that_cannot_be_asked_has_no_ratio():
    shapes = _counted(FULL, WIDE, outcome=NotExpressible("no field x"), pages=(4096,))
    assert shapes.ratios == {}
    assert (shapes.kinds, shapes.layers) == ({"mla_attention float32": 1}, {"2-4": 1})


def test_one_mix_in_so_many_is_counted_by_its_number():
    session = Session(NeutralTarget("x", group_and_unify_kv_cache_specs, "1"), "pack")
    mixes = (Scenario((("a", FULL),)), Scenario((("a", WINDOW), ("b", WIDE))))
    tally, halves = Tally(), (Tally(), Tally())
    for number in range(2 * SHAPES_SHARE):
        mix = mixes[number // SHAPES_SHARE]
        session.judge(mix, tally, number)
        session.judge(mix, halves[number % 3 // 2], number)
    assert tally.mixes == 2 * SHAPES_SHARE
    assert tally.shapes == Shapes(
        kinds=Counter({"mla_attention float32": 2, "sliding_window_mla float32": 1}),
        ratios=Counter({"1": 1, "2": 1}),
        groups=Counter({"none": 1, "2": 1}),
        layers=Counter({"1": 1, "2-4": 1}),
    )
    halves[0].add(halves[1])
    assert halves[0] == tally
    # A worker sends them as JSON.
    sent = msgspec.json.encode({"type": "progress", "tally": tally, "last": None})
    received: Tally = decode(sent, Message).tally
    assert received == tally
    assert isinstance(received.shapes.kinds, Counter)


def test_json_says_what_was_not_seen():
    (surface,) = report_to_json(a_passing_report())["targets"][0]["surfaces"]
    shapes = surface["shapes"]
    assert list(shapes) == ["share", "mixes", "kinds", "ratios", "groups", "layers"]
    assert (shapes["share"], shapes["mixes"]) == (32, 100)
    assert len(shapes["kinds"]) == 14
    assert shapes["kinds"]["sliding_window_mla float32"] == 20
    assert shapes["kinds"]["sliding_window_mla uint8"] == 0
    assert shapes["ratios"] == {
        "1": 75, "<1.05": 25, "<2": 0, "2": 0, ">2 whole": 0, ">2": 0, "coprime": 0
    }  # fmt: skip
    assert list(shapes["groups"].values()) == [25, 0, 0, 75, *[0] * 9]
    assert shapes["layers"] == {"1": 0, "2-4": 100, "5-16": 0, "17+": 0}
