"""What a reproduction of `groups` asserts, for each rule and symptom."""

from __future__ import annotations

import zlib
from math import gcd
from typing import Final

from kvfuzz.reproduction.engine_checks import BOTH, Asked, Check, kept_tokens, plain_call
from kvfuzz.reproduction.text import quoted
from kvfuzz.specs import OpenSpec

#: Permutations of more layers than this are too many to try them all.
_MAX_PERMUTED: Final = 5


def _field(asked: Asked, layer: str, name: str) -> str | None:
    """The name of a field that a layer's class has; None if it is none."""
    kind = asked.dialect.catalogue.get(asked.spec(layer).kind)
    return name if kind is not None and name in kind.fields and name.isidentifier() else None


def _partition_of_groups(asked: Asked) -> str:
    if asked.finding.symptom == "empty group":
        return f"""
    groups = {asked.call}
    assert all(group.layer_names for group in groups)
"""
    return f"""
    groups = {asked.call}
    grouped = [name for group in groups for name in group.layer_names]
    assert sorted(grouped) == sorted(kv_cache_specs)
"""


def _order_free(asked: Asked) -> str:
    scenario = asked.finding.scenario
    drafts = asked.drafts if scenario.drafts else ""
    order = "sorted(order, key=drafts.__contains__)" if drafts else "order"
    if len(scenario) <= _MAX_PERMUTED:
        orders = "itertools.permutations(kv_cache_specs)"
        names = ""
    else:
        # Those that the rule itself tries.
        count = len(scenario)
        number = zlib.crc32(repr(asked.finding.pages).encode())
        step = next(s for s in range(2 + number % 61, count + 64) if gcd(s, count) == 1)
        mixed = f"names[({number % count} + i * {step % count}) % {count}] for i in range({count})"
        names = f"    names = list(kv_cache_specs)\n    mixed = [{mixed}]\n"
        orders = "(names[::-1], mixed)"
    call = asked.call.replace("kv_cache_specs)", "ordered)")
    return f"""
{drafts}{names}    specs = list(kv_cache_specs.values())

    def partition(order):
        ordered = {{name: kv_cache_specs[name] for name in {order}}}
        return sorted(
            sorted(specs.index(kv_cache_specs[name]) for name in group.layer_names)
            for group in {call}
        )

    expected = partition(kv_cache_specs)
    for order in {orders}:
        assert partition(order) == expected
"""


def _given_and_planned(asked: Asked, layer: str) -> str:
    """Statements that take a layer's spec and that which it has in the plan."""
    return f"""
    groups = {asked.call}
    given, planned = kv_cache_specs[{layer}], planned_specs(groups)[{layer}]
"""


def _nothing_lost(asked: Asked) -> str | None:
    finding = asked.finding
    head = _given_and_planned(asked, asked.layer)
    if " becomes " in finding.symptom:
        return f"{head}    assert type(planned) is type(given)\n"
    name = _field(asked, finding.layers[0], finding.symptom.rpartition(" changes ")[2])
    if name is None:
        return None
    return f"{head}    assert planned.{name} == given.{name}\n"


def _group_attributes_true(asked: Asked) -> str | None:
    finding = asked.finding
    if finding.symptom.endswith("of no kind"):
        return f"""
    for group in {asked.call}:
        assert get_kv_cache_spec_kind(group.kv_cache_spec).name != "UNKNOWN"
"""
    shared, _, said = finding.symptom.partition(" says ")
    alike = [name for name in finding.layers if asked.spec(name).kind == shared]
    if said != "kind":
        name = _field(asked, alike[0], said) if alike else None
        return (
            name
            and f"""
    for group in {asked.call}:
        shared = group.kv_cache_spec
        for given in map(kv_cache_specs.get, group.layer_names):
            if type(given) is type(shared):
                assert shared.{name} == given.{name}
"""
        )
    # A layer with a window or chunks may be promoted to another kind.
    bounds = ("sliding_window", "attention_chunk_size")
    others = [
        name
        for name in finding.layers
        if name not in alike and not any(getattr(asked.spec(name), bound) for bound in bounds)
    ]
    if not others:
        return None
    head = _given_and_planned(asked, quoted(others[0]))
    return f"{head}    assert type(planned) is type(given)\n"


def _pages_compatible(asked: Asked) -> str:
    if not asked.finding.symptom.endswith(" page too small"):
        return f"""
    groups = {asked.call}
    assert len({{group.kv_cache_spec.page_size_bytes for group in groups}}) == 1
"""
    head = _given_and_planned(asked, asked.layer)
    spec = asked.spec(asked.finding.layers[0])
    if isinstance(spec, OpenSpec) and spec.shapes:  # a state takes what it takes
        return f"{head}    assert planned.page_size_bytes >= given.page_size_bytes\n"
    return f"""{head}    blocks = planned.block_size / given.block_size
    assert planned.page_size_bytes >= given.page_size_bytes * blocks
"""


def _blocks_divide(asked: Asked) -> str:
    return f"""
    groups = {asked.call}
    given = [spec.block_size for spec in kv_cache_specs.values()]
    planned = [spec.block_size for spec in planned_specs(groups).values()]
    assert math.gcd(*planned) >= min(math.gcd(*given), *planned)
"""


def _bounded_never_dearer(asked: Asked) -> str:
    return f"""
    config = engine_config()
    spec = kv_cache_specs[{asked.layer}]
    tokens = config.model_config.max_model_len
    assert blocks_of(spec, config) <= -(-tokens // spec.block_size)
"""


def _kept_context_fits(asked: Asked) -> str | None:
    kept = kept_tokens(asked.finding)
    if not kept:
        return None
    return f"""
    spec = kv_cache_specs[{asked.layer}]
    assert blocks_of(spec, engine_config()) * spec.block_size >= {kept}
"""


def _drafts_together(asked: Asked) -> str:
    return f"""
{asked.drafts}    groups = {asked.call}
    holders = [group for group in groups if set(drafts) & set(group.layer_names)]
    assert len(holders) == 1
"""


#: Invariant -> what makes its test's statements.
GROUP_CHECKS: Final[dict[str, Check]] = {
    **BOTH,
    "necessary-refusal": plain_call,
    "partition": _partition_of_groups,
    "order-free": _order_free,
    "nothing-lost": _nothing_lost,
    "group-attributes-true": _group_attributes_true,
    "pages-compatible": _pages_compatible,
    "blocks-divide": _blocks_divide,
    "bounded-never-dearer": _bounded_never_dearer,
    "kept-context-fits": _kept_context_fits,
    "drafts-together": _drafts_together,
}
