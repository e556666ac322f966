"""Open specs: what is found out of classes, how it is told to them, and how it is read back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from kvfuzz.cases import Case, decode_case
from kvfuzz.catalogue import FieldForm, lacks, unknown_fields
from kvfuzz.engine.events import Report, SurfaceReport, TargetReport
from kvfuzz.engine.session import Session
from kvfuzz.engine.shapes import Shapes
from kvfuzz.errors import UsageError
from kvfuzz.findings import Finding
from kvfuzz.invariants import get_invariant
from kvfuzz.outcomes import Group, Plan, Terms
from kvfuzz.reporting.shape_tables import shapes_by_surface
from kvfuzz.reproduction import reproduction
from kvfuzz.specs import OpenSpec, Scenario, open_spec, scenario_to_json, spec_fields
from kvfuzz.targets.discover import kind_of
from tests.sabotage import merging

#: What is asked of surfaces that read nothing of it.
ASKED = Scenario(())

PLAIN: dict[str, Any] = {"block_size": 16, "head_size": 64, "dtype": "float32"}
STATES = open_spec(
    "mamba", {"block_size": 8, "shapes": ((4, 64), (8,)), "dtypes": ("bfloat16", "int8")}
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("FullAttentionSpec", "full_attention"),
        ("MLAAttentionSpec", "mla_attention"),
        ("SlidingWindowMLASpec", "sliding_window_mla"),
        ("RSWASpec", "rswa"),
        ("TQFullAttentionSpec", "tq_full_attention"),
    ],
)
def test_kinds_are_class_names(name: str, kind: str):
    assert kind_of(name) == kind


def test_what_is_found_of_a_class():
    catalogue = merging.target_of().dialect.catalogue
    assert set(catalogue) == {"full_attention", "mamba"}  # no base, and none that holds others
    full = catalogue["full_attention"]
    assert full.name == "FullAttentionSpec"
    assert full.fields == {
        "block_size": FieldForm(type="int", required=True),
        "head_size": FieldForm(type="int", required=True),
        "dtype": FieldForm(type="dtype", required=True),
        "mode": FieldForm(type="name", default="none", names=("none", "half"), enum="Mode"),
        "window": FieldForm(type="int"),
        "causal": FieldForm(type="bool", default=True),
        "role": FieldForm(type="text", default="default"),
        "odd": FieldForm(type="unknown"),
    }
    assert {name: form.type for name, form in catalogue["mamba"].fields.items()} == {
        "block_size": "int",
        "shapes": "shapes",
        "dtypes": "dtypes",
    }
    # Never set, and said to be so.
    assert unknown_fields(catalogue) == ("full_attention.odd",)


def test_a_spec_is_told_and_looked_at():
    target = merging.target_of()
    spec = open_spec("full_attention", {**PLAIN, "mode": "half", "window": 8, "causal": False})
    native = target.translate(spec)
    assert (native.dtype, native.mode, native.window) == (torch.float32, merging.Mode.HALF, 8)
    assert (native.causal, native.role) == (False, "default")
    states = target.translate(STATES)
    assert (states.shapes, states.dtypes) == (((4, 64), (8,)), (torch.bfloat16, torch.int8))
    assert target.page_size(STATES, states) == 8
    for given, made in ((spec, native), (STATES, states)):
        specs = {"a": made, "b": made}
        plan = target.normalise("merge", target.call("merge", specs, ASKED), specs, {})
        page = given.block_size
        assert plan == Plan(
            (Group(("a", "b"), (page, page), Terms((given, given), (given, given), given)),)
        )


def test_what_a_target_cannot_be_told():
    catalogue = merging.target_of().dialect.catalogue
    no_kind, no_field = open_spec("rswa", {}), open_spec("full_attention", {"sink": 1})
    assert lacks(catalogue, no_kind) == "no spec class for the kind rswa"
    assert lacks(catalogue, no_field) == "no field sink in the spec class of full_attention"
    assert lacks(catalogue, STATES) is None
    target = merging.target_of()
    for fields in ({"window": "8"}, {"causal": 1}, {"mode": "odd"}, {"dtype": "int3"}):
        with pytest.raises(ValueError, match="cannot be"):
            target.translate(open_spec("full_attention", {**PLAIN, **fields}))


def test_fields_are_attributes():
    assert (STATES.kind, STATES.block_size, STATES.sliding_window) == ("mamba", 8, None)
    assert not hasattr(STATES, "__deepcopy__")
    assert spec_fields(STATES)["dtypes"] == ("bfloat16", "int8")


def _case(*layers: dict[str, Any], surface: str = "merge") -> bytes:
    return msgspec.json.encode({"format": 1, "surface": surface, "scenario": {"mix": layers}})


def test_cases_hold_open_specs():
    scenario = Scenario((("a", STATES), ("b", open_spec("any", {"x": None, "y": "z", "w": True}))))
    data = _case(*scenario_to_json(scenario)["mix"])
    assert decode_case(data, "it", Case)[1] == scenario
    assert msgspec.json.decode(msgspec.json.encode(scenario), type=Scenario) == scenario


@pytest.mark.parametrize(
    ("layer", "place"),
    [
        ({"name": "a"}, "`$.scenario.mix[0]`"),
        ({"name": "a", "kind": 3}, "`$.scenario.mix[0].kind`"),
        ({"name": "a", "kind": "k", "x": {"y": 1}}, "`$.scenario.mix[0][...]`"),
        ({"name": "a", "kind": "k", "x": 1.5}, "`$.scenario.mix[0][...]`"),
        ({"name": "a", "kind": "k", "x": 2**50}, "`$.scenario.mix[0][...]`"),
        ({"name": "a", "kind": "k", "x": [[[1]]]}, "`$.scenario.mix[0][...][0][0]`"),
        ({"name": "a", "kind": "k" * 99}, "`$.scenario.mix[0].kind`"),
    ],
)
def test_hostile_layers_are_one_sentence(layer: dict[str, Any], place: str):
    with pytest.raises(UsageError) as caught:
        decode_case(_case(layer), "it", Case)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


def _finding(invariant: str, spec: OpenSpec) -> Finding:
    return Finding(
        id=f"{invariant}-00000000",
        invariant=invariant,
        fingerprint="0" * 64,
        target="vllm",
        version="1",
        surface="merge",
        scenario=Scenario((("a", spec),)),
        symptom="",
        claim=get_invariant(invariant).claim,
        got="a thing",
        expected="",
        layers=(),
        groups=(),
        pages=(1,),
        message="",
    )


def test_the_text_of_a_reproduction():
    dialect = merging.target_of().dialect
    spec = open_spec("full_attention", {**PLAIN, "mode": "half"})
    assert reproduction(_finding("nothing-lost", spec), dialect) == (
        '"""A layer\'s spec in the plan is the one that it had, but for its block size, padding\n'
        'and a promotion that makes it keep its whole context."""\n'
        "\n"
        "# nothing-lost-00000000, found by kvfuzz on version 1.\n"
        "\n"
        "import torch\n"
        "\n"
        "from vllm.v1.kv_cache_interface import FullAttentionSpec, Mode\n"
        "\n"
        "\n"
        "def test_nothing_lost():\n"
        "    # Seen: a thing\n"
        "    specs = [\n"
        "        FullAttentionSpec(\n"
        "            block_size=16,\n"
        "            dtype=torch.float32,\n"
        "            head_size=64,\n"
        '            mode=Mode["HALF"],\n'
        "        ),\n"
        "    ]\n"
        "    assert type(specs[0]).merge(specs) == specs[0]\n"
    )
    states = reproduction(_finding("pure", STATES), dialect)
    assert states is not None
    assert "import copy\n" in states
    assert "dtypes=(torch.bfloat16, torch.int8)" in states
    assert "shapes=((4, 64), (8,))" in states


def test_shapes_of_open_specs_have_their_kinds():
    shapes = Shapes()
    full = open_spec("full_attention", PLAIN)
    for spec in (full, full, STATES):
        plan = Plan((Group(("a",), (16,)),))
        shapes.count(Scenario((("a", spec),)), {"a": 16}, plan)
    assert shapes.kinds == {"full_attention float32": 2, "mamba several": 1}
    report = TargetReport(uri="it", surfaces=[SurfaceReport(surface="merge")])
    report.surfaces[0].tally.shapes = shapes
    (view,) = shapes_by_surface(Report(kvfuzz="0", seed=1, targets=[report]), {"it": 1})
    assert view["whole"]["kinds"] == ["full attention", "mamba"]
    rows = {row["dtype"]: row["cells"] for row in view["whole"]["heat"]}
    assert [cell["number"] for cell in rows["float32"]] == ["2", "0"]
    assert [cell["number"] for cell in rows["several"]] == ["0", "1"]


def test_a_merge_that_changes_the_page_says_so():
    def halves(cls: type, specs: list[Any]) -> Any:
        return cls(**{**vars(specs[0]), "block_size": specs[0].block_size // 2})

    session = Session(merging.target_of(halves), "merge")
    scenario = Scenario((("a", open_spec("full_attention", PLAIN)),))
    (violation,) = session.judge(scenario)
    assert violation.symptom == "full_attention changes block_size"
    assert violation.got == (
        "block_size=8 in the planned full_attention spec, and a page of 8 bytes"
    )
    assert violation.expected == "block_size=16, as in the layer's own spec, and a page of 16 bytes"
