"""The surfaces: a planner's entry points that kvfuzz can test."""

from __future__ import annotations

from typing import NamedTuple


class Surface(NamedTuple):
    """A surface.

    Attributes:
        says: What it is, for `kvfuzz list surfaces`.
        open_specs: Whether it is asked about any spec class, rather than the
            two that a packer of MLA mixes plans for.
    """

    says: str
    open_specs: bool = True


SURFACES = {
    "pack": Surface(
        "group_and_unify_kv_cache_specs, later _get_packed_kv_cache_groups: which MLA layers share "
        "a packed group, or None",
        open_specs=False,
    ),
    "groups": Surface("get_kv_cache_groups: which layers share a group, a page and a block table"),
    "config": Surface("get_kv_cache_configs: blocks, memory and tensors of each pipeline rank"),
    "merge": Surface("Spec.merge of each spec class: the one spec that a group of layers has"),
    "page": Surface("page_size_bytes of each spec class: the bytes of one block of one layer"),
}
