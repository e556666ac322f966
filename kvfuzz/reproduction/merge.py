"""Reproductions of the surface `merge`: one spec class, two equal objects, one assertion."""

from __future__ import annotations

from typing import Final

from kvfuzz.catalogue import Catalogue
from kvfuzz.findings import Finding
from kvfuzz.reproduction.specs import call, class_names
from kvfuzz.reproduction.text import beginning, opening
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
    specs = [spec for _, spec in finding.scenario if isinstance(spec, OpenSpec)]
    assert len(specs) == len(finding.scenario)
    copies = "import copy\n\n" if "copy." in check else ""
    names = sorted(class_names(specs, catalogue))
    made = "".join(f"        {call(spec, catalogue[spec.kind], 9, 8)},\n" for spec in specs)
    torch = "import torch\n\n" if "torch." in made else ""
    return (
        f"{opening(finding)}{copies}{torch}"
        f"from vllm.v1.kv_cache_interface import {', '.join(names)}\n\n\n"
        f"{beginning(finding)}"
        f"    specs = [\n{made}    ]"
        f"{check}"
    )
