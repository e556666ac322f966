"""Reproductions: a finding as a pytest file that needs nothing but vLLM.

Whether it fails is for `engine.verify` to find out; what stands here is only
how it is written.
"""

from __future__ import annotations

from kvfuzz.findings import Finding
from kvfuzz.pages import Dialect
from kvfuzz.reproduction.engine import CHECKS, engine_reproduction
from kvfuzz.reproduction.merge import merge_reproduction
from kvfuzz.reproduction.pack import pack_reproduction
from kvfuzz.reproduction.page import page_reproduction


def reproduction(finding: Finding, dialect: Dialect) -> str | None:
    """The text of a pytest file that shows the finding; None if its invariant has no form.

    What comes from the mix is in the text as literals only.

    Args:
        finding: The finding.
        dialect: What its target can be told.
    """
    if finding.surface == "merge":
        return merge_reproduction(finding, dialect.catalogue)
    if finding.surface == "page":
        return page_reproduction(finding, dialect.catalogue)
    if finding.surface in CHECKS:
        return engine_reproduction(finding, dialect)
    return pack_reproduction(finding)
