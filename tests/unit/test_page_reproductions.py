"""Reproductions of pages: each fails on its bug, and on nothing else."""

from __future__ import annotations

import ast
import sys
from types import ModuleType
from typing import Any

import pytest

from kvfuzz.engine.verify import fails
from kvfuzz.findings import Finding
from kvfuzz.invariants import get_invariant, invariants_of
from kvfuzz.reproduction import reproduction
from kvfuzz.specs import Scenario, open_spec
from tests.sabotage import paging

PLAIN: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": "float16"}
STATES: dict[str, Any] = {
    "block_size": 16,
    "shapes": ((4, 64), (8,)),
    "dtypes": ("int8", "float32"),
}


def _finding(invariant: str, symptom: str, expected: str, **fields: Any) -> Finding:
    kind = symptom.partition(" ")[0]
    spec = open_spec(kind, {**(STATES if kind == "mamba" else PLAIN), **fields})
    return Finding(
        id=f"{invariant}-00000000",
        invariant=invariant,
        fingerprint="0" * 64,
        target="vllm",
        version="1",
        surface="page",
        scenario=Scenario((("a", spec),)),
        symptom=symptom,
        claim=get_invariant(invariant).claim,
        got="a thing",
        expected=expected,
        layers=("a",),
        groups=(),
        pages=(1,),
        message="",
    )


DIALECT = paging.target_of().dialect
PADDED = _finding(
    "page-size-arithmetic",
    "full_attention padding dropped",
    "20000 bytes, which its spec is padded to",
    page_size_padded=20000,
    kv_quant_mode="int8_per_token_head",
)


def test_the_text_of_a_reproduction():
    assert reproduction(PADDED, DIALECT) == (
        '"""A page takes the bytes of its data, and no more than the padding and alignment\n'
        'that its spec asks for."""\n'
        "\n"
        "# page-size-arithmetic-00000000, found by kvfuzz on version 1.\n"
        "\n"
        "import torch\n"
        "\n"
        "from vllm.v1.kv_cache_interface import FullAttentionSpec, Mode\n"
        "\n"
        "\n"
        "def test_page_size_arithmetic():\n"
        "    # Seen: a thing\n"
        "    spec = FullAttentionSpec(\n"
        "        block_size=16,\n"
        "        dtype=torch.float16,\n"
        "        head_size=64,\n"
        '        kv_quant_mode=Mode["INT8_PER_TOKEN_HEAD"],\n'
        "        num_kv_heads=2,\n"
        "        page_size_padded=20000,\n"
        "    )\n"
        "    assert spec.page_size_bytes == 20000\n"
    )


def _raising() -> Any:
    """A page that raises, and counts as upstream's own."""
    names: dict[str, Any] = {"__name__": "vllm.v1.kv_cache_interface"}
    exec("def page_size_bytes(spec): assert spec.sliding_window is None", names)
    return names["page_size_bytes"]


#: Finding -> what makes the classes wrong in that way.
WRONG: list[tuple[Finding, dict[str, Any]]] = [
    (PADDED, {"page": lambda _: 9000}),
    (
        _finding("page-size-arithmetic", "full_attention page too small", "at least 8192 bytes"),
        {"page": lambda _: 9},
    ),
    (
        _finding(
            "page-size-arithmetic",
            "full_attention page unaligned",
            "a multiple of 576 bytes",
            alignment=576,
        ),
        {"page": paging.forgets_alignment},
    ),
    (
        _finding(
            "page-size-scales",
            "full_attention copied with a larger block",
            "one of at least 16384 and at most 16384 bytes",
        ),
        {"copy_with_new_block_size": lambda spec, _: spec},
    ),
    (
        _finding(
            "page-size-monotone",
            "full_attention less for more num_kv_heads",
            "a page that is no smaller",
        ),
        {"page": lambda spec: 100 // spec.num_kv_heads},
    ),
    (
        _finding("round-trip", "mamba misfits dtypes", "a value"),
        {"mamba": paging.NarrowMambaSpec},
    ),
    (
        _finding("round-trip", "full_attention copied by copy.deepcopy", "an equal spec"),
        {"__deepcopy__": lambda _, memo: None},
    ),
    (
        _finding("plan-or-refusal", "full_attention", "a plan", sliding_window=8),
        {"page": _raising()},
    ),
    (
        _finding("pure", "full_attention", "inputs as they were", sliding_window=8),
        {"page": paging.counts_its_readers},
    ),
]


@pytest.mark.parametrize(("finding", "wrong"), WRONG, ids=[f.symptom for f, _ in WRONG])
def test_a_reproduction_fails_on_its_bug_only(
    finding: Finding, wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    text = reproduction(finding, DIALECT)
    assert text is not None
    ast.parse(text)
    for name in ("vllm", "vllm.v1"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for members, failing in (({}, False), (wrong, True)):
        classes = paging.interface_of(**members)
        monkeypatch.setitem(sys.modules, "vllm.v1.kv_cache_interface", classes)
        assert fails(text, finding) is failing


def test_every_invariant_of_the_surface_has_a_form():
    shown = {finding.invariant for finding, _ in WRONG} | {"deterministic"}
    assert shown == {rule.id for rule in invariants_of("page")}
    finding = _finding("deterministic", "full_attention", "the same answer twice")
    text = reproduction(finding, DIALECT)
    assert text is not None
    assert text.endswith("assert all(spec.page_size_bytes == first for _ in range(9))\n")
    unknown = _finding("page-size-scales", "full_attention copied", "")
    assert reproduction(unknown, DIALECT) is None
