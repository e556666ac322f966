"""The width of a worker's block tables, by a plan's own specs.

A worker makes one table a group and asks the group's spec how long a row is;
what works on a layer asks that layer's. Older releases' specs do not tell.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from kvfuzz.outcomes import Row


def rows_of(made: Any, specs: Mapping[str, Any], config: Any) -> tuple[Row, ...]:
    """The rows of a rank's tables, of specs that tell.

    Args:
        made: The rank's config.
        specs: Layer name -> the spec that it had.
        config: The engine's, with the longest request that is planned for.
    """
    return tuple(_row(group, specs, config) for group in made.kv_cache_groups)


def tells_rows(interface: ModuleType) -> bool:
    """Whether the spec classes of a planner know how long a row is."""
    return hasattr(getattr(interface, "KVCacheSpec", None), "max_num_blocks_per_req")


def _row(group: Any, specs: Mapping[str, Any], config: Any) -> Row:
    length = config.model_config.max_model_len
    shared = group.kv_cache_spec
    by_layer = getattr(shared, "kv_cache_specs", {})
    widths: dict[tuple[int, int], int] = {}
    layers = []
    for name in group.layer_names:
        if name not in specs:
            continue  # another rule's business
        own, tokens = specs[name], by_layer.get(name, shared).block_size
        if (key := (id(own), tokens)) not in widths:
            widths[key] = _of(own, tokens).max_num_blocks_per_req(config, length)
        layers.append(widths[key])
    try:
        width = shared.max_num_blocks_per_req(config, length) if layers else 0
    except AssertionError:  # layers that keep each its own spec, and differ
        width = None
    return Row(width, tuple(layers))


def _of(spec: Any, tokens: int) -> Any:
    """The spec with blocks of so many tokens, whether or not its class would make it."""
    if spec.block_size == tokens:
        return spec
    made = copy.copy(spec)
    object.__setattr__(made, "block_size", tokens)
    return made
