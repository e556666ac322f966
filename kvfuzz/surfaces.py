"""The surfaces: a planner's entry points that kvfuzz can test."""

#: Surface -> what it is, for `kvfuzz list surfaces`.
SURFACES = {
    "pack": "group_and_unify_kv_cache_specs: which MLA layers share a packed group, or None",
    "merge": "Spec.merge of each spec class: the one spec that a group of equal layers has",
}
