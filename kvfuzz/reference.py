"""The reference planner: what a packer of MLA mixes should do, in plain words.

Naive on purpose. It keeps the founding invariants on every mix, also where
releases of vLLM do not: without a full MLA layer, with several MLA block
sizes, with several page sizes among the full MLA layers.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvfuzz.pages import FULL_DIALECT, page_size_bytes
from kvfuzz.specs import LayerSpec, SlidingWindowMLASpec


def group_and_unify_kv_cache_specs(specs: Mapping[str, LayerSpec]) -> list[list[str]] | None:
    """Group the layers of a mix that needs packing; None if it needs none.

    A mix needs packing if it has a sliding-window MLA layer and more than one
    page size. Layers then share a group if they agree in kind, block size,
    window and page size. Groups, and layers in a group, come in order of
    first appearance.

    Source: the function of this name in vLLM 0.26 to 0.28, with the two rules
    that its callers rely on (block sizes and page sizes of a group agree)
    made part of the key.
    """
    if not any(isinstance(spec, SlidingWindowMLASpec) for spec in specs.values()):
        return None
    pages = {name: page_size_bytes(spec, FULL_DIALECT.rules) for name, spec in specs.items()}
    if len(set(pages.values())) <= 1:
        return None
    groups: dict[tuple[str, int, int | None, int], list[str]] = {}
    for name, spec in specs.items():
        key = (spec.kind, spec.block_size, spec.sliding_window, pages[name])
        groups.setdefault(key, []).append(name)
    return list(groups.values())
