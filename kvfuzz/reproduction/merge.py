"""Reproductions of the surface `merge`: one spec class, two equal objects, one assertion."""

from __future__ import annotations

from typing import Any, Final

from kvfuzz.catalogue import Catalogue, FieldForm, KindForm
from kvfuzz.findings import Finding
from kvfuzz.reproduction.text import LINE, beginning, opening
from kvfuzz.specs import OpenSpec

#: Invariant -> the test's statements after `specs` is built.
_CHECKS: Final = {
    "nothing-lost": """
    assert type(specs[0]).merge(specs) == specs[0]
""",
    "plan-or-refusal": """
    type(specs[0]).merge(specs)
""",
    "pure": """
    before = copy.deepcopy(specs)
    type(specs[0]).merge(specs)
    assert specs == before
""",
    "deterministic": """
    first = type(specs[0]).merge(specs)
    assert all(type(specs[0]).merge(specs) == first for _ in range(9))
""",
}


def merge_reproduction(finding: Finding, catalogue: Catalogue) -> str | None:
    """The text of a pytest file that shows the finding; None if its invariant has no form.

    Args:
        finding: A finding of the surface `merge`.
        catalogue: The spec classes of its target, which has those of the mix.
    """
    check = _CHECKS.get(finding.invariant)
    if check is None:
        return None
    specs = [spec for _, spec in finding.scenario]
    assert all(isinstance(spec, OpenSpec) for spec in specs)
    kinds = {spec.kind: catalogue[spec.kind] for spec in specs}
    copies = "import copy\n\n" if "copy." in check else ""
    names = sorted({kind.name for kind in kinds.values()} | enums(specs, catalogue))
    torch = "import torch\n\n" if "torch." in (made := _made(specs, catalogue)) else ""
    return (
        f"{opening(finding)}{copies}{torch}"
        f"from vllm.v1.kv_cache_interface import {', '.join(names)}\n\n\n"
        f"{beginning(finding)}"
        f"    specs = [\n{made}    ]"
        f"{check}"
    )


def _made(specs: list[Any], catalogue: Catalogue) -> str:
    return "".join(f"        {call(spec, catalogue[spec.kind])},\n" for spec in specs)


def enums(specs: list[Any], catalogue: Catalogue) -> set[str]:
    """Names of the enumerations that the source of these specs needs."""
    return {
        form.enum
        for spec in specs
        for name, _ in spec.fields
        if (form := catalogue[spec.kind].fields[name]).enum
    }


def call(spec: OpenSpec, kind: KindForm) -> str:
    """The source of a spec, as an entry of a list or call in a function's body."""
    given = [f"{name}={_value(value, kind.fields[name])}" for name, value in spec.fields]
    line = f"{kind.name}({', '.join(given)})"
    if len(line) + 9 <= LINE:
        return line
    return f"{kind.name}(\n" + "".join(f"            {part},\n" for part in given) + "        )"


def _value(value: Any, form: FieldForm) -> str:
    """The value as Python source: never other than a literal or a known name."""
    if form.type == "dtype":
        return f"torch.{value}" if str(value).isidentifier() else repr(value)
    if form.type == "dtypes":
        return f"({', '.join(f'torch.{part}' for part in value)},)"
    if form.type == "name":
        return f"{form.enum}[{str(value).upper()!r}]"
    return repr(value)
