"""Functions that reproductions of `groups` and `config` may call, as they stand in the file."""

from __future__ import annotations

from typing import Any, Final

from kvfuzz.pages import Dialect
from kvfuzz.planner_config import PLAIN_CONFIG, PlannerConfig
from kvfuzz.reproduction.text import enclosed, quoted
from kvfuzz.settings import LAYOUT, Returns, settings_of

#: What a planner calls one plan for the whole engine, in releases that make it first.
GLOBAL: Final = "get_global_kv_cache_groups"

_PLAN: Final = f"""def plan(config, ranks, memory):
    groups = {GLOBAL}(config, ranks)
    return get_kv_cache_configs(config, ranks, memory, groups)
"""

#: Name -> source, each after all that call it.
_FUNCTIONS: Final = {
    "page_of": '''def page_of(made, layer, block):
    """Buffer of a layer's page, its first byte, its end, and bytes of the buffer."""
    group = next(g for g in made.kv_cache_groups if layer in g.layer_names)
    page = planned_specs([group])[layer].page_size_bytes
    for number, tensor in enumerate(made.kv_cache_tensors):
        if layer in (names := layers_of(tensor)):
            strided = getattr(tensor, "block_stride", 0)  # parts of one buffer
            start = block * (strided or tensor.size // made.num_blocks)
            start += getattr(tensor, "offset", 0)
            start += names.index(layer) * getattr(tensor, "layer_stride", 0)
            buffer = "packed" if strided else number
            return buffer, start, start + page, tensor.size
''',
    "layers_of": """def layers_of(tensor):
    return tensor.layers if hasattr(tensor, "layers") else tensor.shared_by
""",
    "planned_specs": '''def planned_specs(groups):
    """The spec that each layer has in the plan."""
    return {
        name: getattr(group.kv_cache_spec, "kv_cache_specs", {}).get(
            name, group.kv_cache_spec
        )
        for group in groups
        for name in group.layer_names
    }
''',
    "best_width_bytes": '''def best_width_bytes(groups, config):
    """Bytes of one longest request if groups have the number of layers that is best."""
    layers = {}
    for group in groups:
        spec = group.kv_cache_spec
        layers[spec] = layers.get(spec, 0) + len(group.layer_names)
    taken = {spec: blocks_of(spec, config) * spec.page_size_bytes for spec in layers}
    return min(
        width * sum(-(-count // width) * taken[spec] for spec, count in layers.items())
        for width in range(1, max(layers.values()) + 1)
    )
''',
    "needed_blocks": '''def needed_blocks(made, config):
    """Blocks that one longest request takes of all groups."""
    specs = [group.kv_cache_spec for group in made.kv_cache_groups]
    return sum(blocks_of(spec, config) for spec in specs)
''',
    "blocks_of": '''def blocks_of(spec, config):
    """Blocks that one longest request takes, by the spec's own account."""
    parts = getattr(spec, "kv_cache_specs", {"": spec}).values()
    return max(
        (-(-s.max_memory_usage_bytes(config) // s.page_size_bytes) for s in parts),
        default=0,
    )
''',
    "pool_bytes": '''def pool_bytes(made):
    """Bytes of all buffers; tensors with a stride are parts of one."""
    sizes = {
        "packed" if getattr(tensor, "block_stride", 0) else number: tensor.size
        for number, tensor in enumerate(made.kv_cache_tensors)
    }
    return sum(sizes.values())
''',
}


def helpers(body: str, config: PlannerConfig, dialect: Dialect) -> str:
    """The functions that a test calls and that those call, each after what it calls.

    Args:
        body: The test.
        config: The engine that it is for.
        dialect: What its planner can be told.
    """
    functions = {"memory_of": _memory_of(config, dialect), **_FUNCTIONS}
    if GLOBAL in dialect.functions:
        functions["plan"] = _PLAN
    functions["engine_config"] = _engine_config(config, dialect)
    used = ""
    for name, source in functions.items():
        if f"{name}(" in used + body:
            used = f"{source}\n\n{used}"
    return used


def planner(dialect: Dialect) -> str:
    """The function that plans for all ranks."""
    return "plan" if GLOBAL in dialect.functions else "get_kv_cache_configs"


def plenty(config: PlannerConfig) -> list[str]:
    """Statements by which `config` has all the blocks that memory in plenty holds."""
    lines = []
    if config.num_gpu_blocks_override is not None:
        lines.append("    config.cache_config.num_gpu_blocks_override = None\n")
    return lines


def _memory_of(config: PlannerConfig, dialect: Dialect) -> str:
    lines = plenty(config)
    if config.auto_fit:
        length = config.max_model_len
        lines.append(f"    config.model_config.original_max_model_len = {length}\n")
    needed = f"needed_blocks(made, config) + 1{_beyond(config.spare_blocks or 0)}"
    total = f"blocks * block{_beyond(config.spare_bytes)}"
    return (
        "def memory_of(ranks):\n"
        '    """Bytes for one longest request, the null block and what is spare, on each rank."""\n'
        "    config = engine_config()\n"
        f"{''.join(lines)}"
        "    copies = [dict(specs) for specs in ranks]\n"
        "    memory = []\n"
        f"    for made in {planner(dialect)}(config, copies, [1 << 60] * len(ranks)):\n"
        "        block = pool_bytes(made) // made.num_blocks\n"
        f"        blocks = {needed}\n"
        f"        memory.append(max(0, {total}))\n"
        "    return memory\n"
    )


def _beyond(number: int) -> str:
    """What is added to a sum."""
    return f" {'-' if number < 0 else '+'} {abs(number)}" if number else ""


def _engine_config(config: PlannerConfig, dialect: Dialect) -> str:
    """A plain engine's config, and line by line what is otherwise."""
    plain, wanted = _settings(PLAIN_CONFIG, dialect), _settings(config, dialect)
    source = f"def engine_config():\n    config = {_source(plain, 4, 'config = ')}\n"
    changes = "".join(
        f"    config.{name} = {_source(value, 4, f'config.{name} = ')}\n"
        for name, value in _changes(plain, wanted)
    )
    if changes:
        source += f"    # Other than in a plain engine:\n{changes}"
    return f"{source}    return config\n"


def _settings(config: PlannerConfig, dialect: Dialect) -> dict[str, Any]:
    settings = settings_of(config)
    if dialect.layouts:
        part, name = LAYOUT
        settings[part][name] = Returns(_Layout(config.layout or dialect.layouts[0]))
    return settings


class _Layout(str):
    """The name of a layout."""

    def __repr__(self) -> str:
        return f"KVCacheLayout[{quoted(str(self))}]"


def _changes(plain: dict[str, Any], wanted: dict[str, Any]) -> list[tuple[str, Any]]:
    """(dotted name, value) of each setting that is another."""
    found = []
    for name, value in wanted.items():
        before = plain[name]
        if isinstance(before, dict) and isinstance(value, dict):
            found += [(f"{name}.{inner}", v) for inner, v in _changes(before, value)]
        elif value != before:
            found.append((name, value))
    return found


def _source(value: Any, indent: int, before: str) -> str:
    """The setting as Python source; `before` stands before it on its first line."""
    if isinstance(value, Returns):
        return f"lambda: {value.value!r}"
    if not isinstance(value, dict):
        return quoted(value) if isinstance(value, str) else repr(value)
    parts = [f"{name}={_source(v, indent + 4, f'{name}=')}" for name, v in value.items()]
    return enclosed("SimpleNamespace(", parts, ")", len(before) + indent + 1, indent)
