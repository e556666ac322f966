"""Reproductions: a finding as a pytest file that needs nothing but vLLM.

Whether it fails is for `engine.verify` to find out; what stands here is only
how it is written.
"""

from __future__ import annotations

from kvfuzz.catalogue import Catalogue
from kvfuzz.findings import Finding
from kvfuzz.reproduction.merge import merge_reproduction
from kvfuzz.reproduction.pack import pack_reproduction
from kvfuzz.reproduction.page import page_reproduction


def reproduction(finding: Finding, catalogue: Catalogue) -> str | None:
    """The text of a pytest file that shows the finding; None if its invariant has no form.

    What comes from the mix is in the text as literals only.

    Args:
        finding: The finding.
        catalogue: The spec classes of its target.
    """
    if finding.surface == "merge":
        return merge_reproduction(finding, catalogue)
    if finding.surface == "page":
        return page_reproduction(finding, catalogue)
    if finding.surface in ("groups", "config"):
        return None
    return pack_reproduction(finding)
