"""Reproductions of the surface `page`: one spec, and what is asked of it."""

from __future__ import annotations

import re
from typing import Final

from kvfuzz.catalogue import Catalogue
from kvfuzz.findings import Finding
from kvfuzz.reproduction.specs import call, class_names
from kvfuzz.reproduction.text import beginning, opening
from kvfuzz.specs import OpenSpec, open_spec

_NUMBER: Final = re.compile(r"\d+")

#: The end of a symptom of `page-size-arithmetic` -> what its page must be to the number expected.
_PAGES: Final = {
    "page below its data": ">= {}",
    "page below its view": ">= {}",
    "page too small": ">= {}",
    "padding dropped": "== {}",
    "page unaligned": "% {} == 0",
    "page too large": "<= {}",
}
_LARGER_BLOCK: Final = """
    larger = spec.copy_with_new_block_size(2 * spec.block_size)
    assert {} <= larger.page_size_bytes <= {}
"""
_LARGER: Final = """
    larger = {}
    assert larger.page_size_bytes >= spec.page_size_bytes
"""
_DECODED: Final = """
    annotation = typing.get_type_hints(type(spec))["{0}"]
    message = msgspec.msgpack.encode(spec.{0}, enc_hook=str)
    try:
        decoded = msgspec.msgpack.decode(
            message,
            type=annotation,
            dec_hook=lambda kind, text: getattr(torch, text.removeprefix("torch.")),
        )
    except msgspec.ValidationError as error:
        decoded = error
    assert decoded == spec.{0}
"""
_COPIED: Final = """
    copied = {}(spec)
    assert copied == spec
    assert copied.page_size_bytes == spec.page_size_bytes
"""
#: Invariant -> the test's statements after `spec` is built, if they are always the same.
_CHECKS: Final = {
    "plan-or-refusal": """
    assert spec.page_size_bytes >= 0
""",
    "pure": """
    before = copy.deepcopy(vars(spec))
    spec.page_size_bytes
    assert vars(spec) == before
""",
    "deterministic": """
    first = spec.page_size_bytes
    assert all(spec.page_size_bytes == first for _ in range(9))
""",
}


def page_reproduction(finding: Finding, catalogue: Catalogue) -> str | None:
    """The text of a pytest file that shows the finding; None if its invariant has no form.

    Args:
        finding: A finding of the surface `page`.
        catalogue: The spec classes of its target, which has that of the layer.
    """
    specs = dict(finding.scenario)
    spec = specs[finding.layers[0]] if finding.layers else next(iter(specs.values()))
    assert isinstance(spec, OpenSpec)
    check = _check(finding, spec, catalogue)
    if check is None:
        return None
    names = sorted(class_names([spec], catalogue))
    made = f"    spec = {_built(spec, catalogue)}"
    standard = [name for name in ("copy", "dataclasses", "typing") if f"{name}." in check]
    third = [name for name in ("msgspec", "torch") if f"{name}." in made + check]
    imports = "".join(
        "".join(f"import {name}\n" for name in part) + "\n" for part in (standard, third) if part
    )
    return (
        f"{opening(finding)}{imports}"
        f"from vllm.v1.kv_cache_interface import {', '.join(names)}\n\n\n"
        f"{beginning(finding)}{made}{check}"
    )


def _built(spec: OpenSpec, catalogue: Catalogue) -> str:
    """The source of a spec, a field a line if they are many."""
    return call(spec, catalogue[spec.kind], 13)


def _check(finding: Finding, spec: OpenSpec, catalogue: Catalogue) -> str | None:
    kind = f"{spec.kind} "
    numbers = _NUMBER.findall(finding.expected)
    symptom = finding.symptom.removeprefix(kind)
    match finding.invariant:
        case "page-size-arithmetic" if symptom in _PAGES and numbers:
            return f"\n    assert spec.page_size_bytes {_PAGES[symptom].format(numbers[0])}\n"
        case "page-size-scales" if len(numbers) > 1:
            return _LARGER_BLOCK.format(*numbers)
        case "page-size-monotone":
            name = symptom.rpartition(" ")[2]
            fields = dict(spec.fields)
            number = fields.get(name)
            if type(number) is not int:
                return None
            larger = open_spec(spec.kind, {**fields, name: 2 * number})
            return _LARGER.format(_built(larger, catalogue))
        case "round-trip" if symptom.startswith("misfits "):
            name = symptom.rpartition(" ")[2]
            return _DECODED.format(name) if name.isidentifier() else None
        case "round-trip":
            copied = symptom.rpartition(" ")[2]
            return _COPIED.format(copied) if copied.replace(".", "").isidentifier() else None
        case other:
            return _CHECKS.get(other)
