"""Reproductions: each fails on a planner with its bug, holds on one without, and is only data."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from types import ModuleType

import msgspec
import pytest
import torch  # noqa: F401 - so that the forks in which reproductions run need not load it

from kvfuzz.engine.verify import fails
from kvfuzz.findings import Finding
from kvfuzz.invariants import get_invariant, invariants_of
from kvfuzz.pages import FULL_DIALECT
from kvfuzz.reproduction import reproduction
from kvfuzz.specs import LayerSpec, MLAAttentionSpec, Scenario, SlidingWindowMLASpec

# Stand-ins for vLLM's modules: the classes that a reproduction builds, and
# planners in the form that upstream's have.


@dataclass(kw_only=True)
class Full:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: object
    alignment: int | None = None

    @property
    def page_size_bytes(self) -> int:
        return self.block_size * self.num_kv_heads * self.head_size


@dataclass(kw_only=True)
class Window(Full):
    sliding_window: int


PLANNERS = """
class Group:
    def __init__(self, layers): self.kv_cache_specs = layers

CALLS = []

def group_and_unify_kv_cache_specs(specs):
    return BODY

def of(specs, *names):
    return [Group({name: specs[name]}) for name in names]
"""
CORRECT = "None"
WRONG = {
    "uniform-is-none": "of(specs, *specs)",
    "partition": "of(specs, 'a')",
    "single-page-size": "[Group(dict(specs))]",
    "plan-or-refusal": "{}['x']",
    "pure": "specs.pop('a') and None",
    "deterministic": "None if CALLS.append(1) or len(CALLS) > 1 else of(specs, *specs)",
    "order-free": "of(specs, *specs) if next(iter(specs)) == 'b' else None",
}
#: What a correct planner answers where None would not do.
GROUPED = "of(specs, *specs)"

MIX: dict[str, LayerSpec] = {
    "a": MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576, dtype="float32"),
    "b": SlidingWindowMLASpec(
        block_size=16, num_kv_heads=1, head_size=64, dtype="uint8", sliding_window=8
    ),
}


def _finding(invariant: str, mix: dict[str, LayerSpec] = MIX, got: str = "a thing") -> Finding:
    return Finding(
        id=f"{invariant}-00000000",
        invariant=invariant,
        fingerprint="0" * 64,
        target="vllm",
        version='1"""\nimport os',
        surface="pack",
        scenario=Scenario(mix=tuple(mix.items())),
        symptom="",
        claim=get_invariant(invariant).claim,
        got=got,
        expected="",
        layers=(),
        groups=(),
        pages=tuple(range(len(mix))),
        message="",
    )


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    interface = ModuleType("vllm.v1.kv_cache_interface")
    vars(interface).update(MLAAttentionSpec=Full, SlidingWindowMLASpec=Window, KVQuantMode=dict)
    for name in ("vllm", "vllm.v1", "vllm.v1.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    return monkeypatch


def _plan_with(vllm: pytest.MonkeyPatch, body: str) -> None:
    utils = ModuleType("vllm.v1.core.kv_cache_utils")
    exec(PLANNERS.replace("BODY", body), vars(utils))
    vllm.setitem(sys.modules, utils.__name__, utils)


def test_every_rule_of_the_packer_has_a_reproduction():
    assert {rule.id for rule in invariants_of("pack")} == set(WRONG)


@pytest.mark.parametrize("invariant", WRONG)
def test_it_fails_on_the_bug_and_on_nothing_else(vllm: pytest.MonkeyPatch, invariant: str):
    finding = _finding(invariant, got="KeyError in group_and_unify_kv_cache_specs: x")
    text = reproduction(finding, FULL_DIALECT)
    assert text is not None
    _plan_with(vllm, WRONG[invariant])
    assert fails(text, finding)
    _plan_with(vllm, GROUPED if invariant in ("partition", "single-page-size") else CORRECT)
    assert not fails(text, finding)


@pytest.mark.parametrize(
    "body", ["__import__('signal').raise_signal(9)", "[None for _ in iter(int, 1)]"]
)
def test_a_planner_that_never_returns_fails(vllm: pytest.MonkeyPatch, body: str):
    finding = _finding("plan-or-refusal")
    text = reproduction(finding, FULL_DIALECT)
    assert text is not None
    _plan_with(vllm, body)
    assert fails(text, msgspec.structs.replace(finding, symptom="time-out"))
    assert not fails(text, finding)  # it was to raise something


def test_a_test_that_does_not_come_to_the_planner_does_not_fail(vllm: pytest.MonkeyPatch):
    _plan_with(vllm, WRONG["uniform-is-none"])
    lacking = {"a": MLAAttentionSpec(**{**_fields(MIX["a"]), "compress_ratio": 4})}
    finding = _finding("uniform-is-none", lacking)
    text = reproduction(finding, FULL_DIALECT)
    assert text is not None
    assert "compress_ratio=4" in text
    assert not fails(text, finding)  # the stand-in has no such field
    vllm.delitem(sys.modules, "vllm.v1.core.kv_cache_utils")
    assert not fails(text, finding)


def _fields(spec: LayerSpec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


def test_the_text():
    assert reproduction(_finding("uniform-is-none", got="2 groups"), FULL_DIALECT) == (
        '"""If all layers have one page size, the packer returns None."""\n'
        "\n"
        '# uniform-is-none-00000000, found by kvfuzz on version 1"""\\nimport os.\n'
        "\n"
        "import torch\n"
        "\n"
        "from vllm.v1.core.kv_cache_utils import group_and_unify_kv_cache_specs\n"
        "from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowMLASpec\n"
        "\n"
        "\n"
        "def new_mla_spec(**overrides):\n"
        "    fields = dict(block_size=16, num_kv_heads=1, head_size=576, dtype=torch.float32)\n"
        "    return MLAAttentionSpec(**{**fields, **overrides})\n"
        "\n"
        "\n"
        "def new_sliding_window_mla_spec(**overrides):\n"
        "    fields = dict(\n"
        "        block_size=16, num_kv_heads=1, head_size=576, dtype=torch.float32, "
        "sliding_window=128\n"
        "    )\n"
        "    return SlidingWindowMLASpec(**{**fields, **overrides})\n"
        "\n"
        "\n"
        "def test_uniform_is_none():\n"
        "    # Seen: 2 groups\n"
        "    kv_cache_specs = {\n"
        "        'a': new_mla_spec(),  # a page of 0 bytes\n"
        "        'b': new_sliding_window_mla_spec(head_size=64, dtype=torch.uint8, "
        "sliding_window=8),  # a page of 1 bytes\n"
        "    }\n"
        "    assert group_and_unify_kv_cache_specs(kv_cache_specs) is None\n"
    )


@pytest.mark.parametrize("invariant", WRONG)
def test_hostile_texts_stay_literals(invariant: str):
    evil = "'\"\"\"\n\r\x0c\u2028\\N{BULLET}'); import os; ('{orders}"
    mix = {evil: MLAAttentionSpec(**{**_fields(MIX["a"]), "cache_dtype_str": evil})}
    text = reproduction(_finding(invariant, mix, got=evil), FULL_DIALECT)
    assert text is not None
    tree = ast.parse(text)
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert "os" not in imported
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    assert texts.count(evil) == 2  # the layer's name, and its cache format


def test_a_quantisation_mode_is_named():
    mix = {"a": MLAAttentionSpec(**{**_fields(MIX["a"]), "kv_quant_mode": "nvfp4"})}
    text = reproduction(_finding("plan-or-refusal", mix), FULL_DIALECT)
    assert text is not None
    assert "import KVQuantMode, MLAAttentionSpec\n" in text
    assert "new_mla_spec(kv_quant_mode=KVQuantMode['NVFP4'])" in text
