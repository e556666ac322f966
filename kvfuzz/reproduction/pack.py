"""Reproductions of the surface `pack`.

Written like vLLM's own tests of its planner: small builders with defaults,
then the specs, then one assertion.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kvfuzz.findings import Finding
from kvfuzz.reproduction.text import LINE, beginning, opening
from kvfuzz.specs import DTYPE_BYTES, KINDS, LayerSpec

_CALL: Final = "group_and_unify_kv_cache_specs"

#: Spec kind -> builder, vLLM's class, and the builder's defaults.
_BUILDERS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "mla_attention": (
        "new_mla_spec",
        "MLAAttentionSpec",
        {"block_size": 16, "num_kv_heads": 1, "head_size": 576, "dtype": "float32"},
    ),
    "sliding_window_mla": (
        "new_sliding_window_mla_spec",
        "SlidingWindowMLASpec",
        {
            "block_size": 16,
            "num_kv_heads": 1,
            "head_size": 576,
            "dtype": "float32",
            "sliding_window": 128,
        },
    ),
}

#: Permutations of more layers than this are too many to try them all.
_MAX_PERMUTED: Final = 6

#: Invariant -> the test's statements after `kv_cache_specs` is built.
_CHECKS: Final = {
    "uniform-is-none": f"""
    assert {_CALL}(kv_cache_specs) is None
""",
    "partition": f"""
    groups = {_CALL}(kv_cache_specs)
    assert all(group.kv_cache_specs for group in groups)
    grouped = [name for group in groups for name in group.kv_cache_specs]
    assert sorted(grouped) == sorted(kv_cache_specs)
""",
    "single-page-size": f"""
    for group in {_CALL}(kv_cache_specs):
        pages = {{spec.page_size_bytes for spec in group.kv_cache_specs.values()}}
        assert len(pages) == 1
""",
    "plan-or-refusal": f"""
    {_CALL}(kv_cache_specs)
""",
    "pure": f"""
    before = copy.deepcopy(kv_cache_specs)
    {_CALL}(kv_cache_specs)
    assert list(kv_cache_specs.items()) == list(before.items())
""",
    "deterministic": f"""
    def plan():
        groups = {_CALL}(copy.deepcopy(kv_cache_specs))
        return groups and [list(group.kv_cache_specs.items()) for group in groups]

    first = plan()
    assert all(plan() == first for _ in range(9))
""",
    "order-free": f"""
    def partition(names):
        groups = {_CALL}({{name: kv_cache_specs[name] for name in names}})
        return groups and {{frozenset(group.kv_cache_specs) for group in groups}}

    names = list(kv_cache_specs)
    expected = partition(names)
    for order in {{orders}}:
        assert partition(order) == expected
""",
}


def pack_reproduction(finding: Finding) -> str | None:
    """The text of a pytest file that shows the finding; None if its invariant has no form.

    What comes from the mix is in the text as literals only.
    """
    check = _CHECKS.get(finding.invariant)
    if check is None:
        return None
    if finding.invariant == "order-free":
        few = len(finding.scenario) <= _MAX_PERMUTED
        orders = "itertools.permutations(names)" if few else "(names[::-1], sorted(names))"
        check = check.replace("{orders}", orders)
    kinds = {spec.kind for _, spec in finding.scenario}
    used = [kind for kind in KINDS if kind in kinds]
    quantised = any(spec.kv_quant_mode != "none" for _, spec in finding.scenario)
    copies = "import copy\n\n"
    standard = {"pure": copies, "deterministic": copies, "order-free": "import itertools\n\n"}
    if finding.invariant == "order-free" and "itertools" not in check:
        standard = {}
    classes = [*(["KVQuantMode"] if quantised else []), *(_BUILDERS[kind][1] for kind in used)]
    head = (
        f"{opening(finding)}"
        f"{standard.get(finding.invariant, '')}"
        "import torch\n\n"
        f"from vllm.v1.core.kv_cache_utils import {_CALL}\n"
        f"from vllm.v1.kv_cache_interface import {', '.join(classes)}\n"
    )
    builders = "".join(f"\n\n{_builder(kind)}" for kind in used)
    pages = dict(zip(finding.scenario.specs(), finding.pages, strict=True))
    layers = "".join(
        f"        {name!r}: {_spec(spec)},  # a page of {pages[name]} bytes\n"
        for name, spec in finding.scenario
    )
    return f"{head}{builders}\n\n{beginning(finding)}    kv_cache_specs = {{\n{layers}    }}{check}"


def _builder(kind: str) -> str:
    name, cls, defaults = _BUILDERS[kind]
    fields = ", ".join(f"{field}={_value(field, value)}" for field, value in defaults.items())
    line = f"    fields = dict({fields})\n"
    if len(line) > LINE:
        line = f"    fields = dict(\n        {fields}\n    )\n"
    return f"def {name}(**overrides):\n{line}    return {cls}(**{{**fields, **overrides}})\n"


def _spec(spec: LayerSpec) -> str:
    """The call of the builder that makes `spec`: what differs from the defaults."""
    name, _, defaults = _BUILDERS[spec.kind]
    given = []
    for field in msgspec.structs.fields(spec):
        value = getattr(spec, field.name)
        if value != defaults.get(field.name, field.default):
            given.append(f"{field.name}={_value(field.name, value)}")
    return f"{name}({', '.join(given)})"


def _value(field: str, value: Any) -> str:
    """The field's value as Python source: never other than a literal or a known name."""
    if field == "dtype":
        return f"torch.{value}" if value in DTYPE_BYTES else f"getattr(torch, {value!r})"
    if field == "kv_quant_mode":
        return f"KVQuantMode[{value.upper()!r}]"
    return repr(value)
