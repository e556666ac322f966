"""What a reproduction of `config` asserts, for each rule and symptom."""

from __future__ import annotations

import re
from typing import Final

from kvfuzz.reproduction.engine_checks import BOTH, Asked, Check, kept_tokens, memory_of, plain_call
from kvfuzz.reproduction.engine_helpers import planner, plenty
from kvfuzz.reproduction.text import quoted


def _partition_of_configs(asked: Asked) -> str:
    if asked.finding.symptom == "empty group":
        return f"""
    configs = {asked.call}
    on_ranks = zip(*(made.kv_cache_groups for made in configs))
    assert all(any(group.layer_names for group in parts) for parts in on_ranks)
"""
    return f"""
    configs = {asked.call}
    groups = [group for made in configs for group in made.kv_cache_groups]
    grouped = [name for group in groups for name in group.layer_names]
    assert sorted(grouped) == sorted(itertools.chain(*ranks))
"""


def _drafts_marked(asked: Asked) -> str:
    if len(set(asked.finding.scenario.ranks)) > 1 or any(asked.finding.scenario.ranks):
        return f"""
{asked.drafts}    configs = {asked.call}
    for parts in zip(*(made.kv_cache_groups for made in configs)):
        drafting = any(set(drafts) & set(group.layer_names) for group in parts)
        assert any(group.is_eagle_group for group in parts) == drafting
"""
    return f"""
{asked.drafts}    (made,) = {asked.call}
    for group in made.kv_cache_groups:
        drafting = any(name in drafts for name in group.layer_names)
        assert group.is_eagle_group == drafting
"""


def _one_accounting(asked: Asked) -> str | None:
    finding = asked.finding
    override = finding.scenario.config.num_gpu_blocks_override
    head = f"""
    config = engine_config()
    memory = {memory_of(finding)}
    configs = {asked.on_config()}
"""
    checks = {
        "ranks differ": "    assert len({made.num_blocks for made in configs}) == 1\n",
        "accepts what cannot be served": """\
    for made in configs:  # one block is the null block
        assert needed_blocks(made, config) <= made.num_blocks - 1
""",
        "override ignored": f"    assert all(made.num_blocks == {override} for made in configs)\n",
        "more memory than there is": """\
    for made, available in zip(configs, memory):
        assert pool_bytes(made) <= available
""",
        "memory left": """\
    # A block more would not fit on one of the ranks.
    assert any(
        pool_bytes(made) + pool_bytes(made) // made.num_blocks > available
        for made, available in zip(configs, memory)
    )
""",
        "shortened too far": f"""\
    model = config.model_config
    model.max_model_len += 1
    fits = all(needed_blocks(made, config) <= made.num_blocks - 1 for made in configs)
    assert model.max_model_len > {finding.scenario.config.max_model_len} or not fits
""",
    }
    check = checks.get(finding.symptom)
    return check and head + check


def _bounded_overhead(asked: Asked) -> str:
    scenario = asked.finding.scenario
    distinct = len({spec for _, spec in scenario})
    if asked.finding.symptom == "many groups":
        return f"""
    (made,) = {asked.call}
    assert len(made.kv_cache_groups) <= 8 * {distinct}  # distinct specs
"""
    head = f"""
    config = engine_config()
    (made,) = {asked.on_config(memory_of(asked.finding))}
    block = pool_bytes(made) // made.num_blocks
"""
    if asked.finding.symptom == "another width":
        return f"""{head}    best = best_width_bytes(made.kv_cache_groups, config)
    assert needed_blocks(made, config) * block <= 1.25 * best
"""
    return f"""{head}    specs = ranks[0].values()
    own = sum(blocks_of(spec, config) * spec.page_size_bytes for spec in specs)
    least = len(made.kv_cache_groups) * block
    assert needed_blocks(made, config) * block <= 4 * own + least
"""


def _ranks_own_their_layers(asked: Asked) -> str:
    if asked.finding.symptom.startswith("groups"):
        names = "name for group in made.kv_cache_groups for name in group.layer_names"
    else:
        names = "name for tensor in made.kv_cache_tensors for name in layers_of(tensor)"
    return f"""
    configs = {asked.call}
    for specs, made in zip(ranks, configs):
        names = [{names}]
        assert sorted(names) == sorted(specs)
"""


def _tensors_disjoint(asked: Asked) -> str | None:
    finding = asked.finding
    scenario = finding.scenario
    blocks = [int(block) for block in re.findall(r"\bblock (\d+) of ", finding.got)]
    layers = finding.layers[::-1]
    if not layers or len(blocks) != len(layers):
        return None
    places = [*scenario.specs()]
    rank = scenario.ranks[places.index(layers[0])] if scenario.ranks else 0
    head = f"\n    made = {asked.call}[{rank}]\n"
    if len(layers) == 1:
        return f"""{head}    _, start, end, size = page_of(made, {quoted(layers[0])}, {blocks[0]})
    assert start >= 0 and end <= size
"""
    return f"""{head}    one, start, end, _ = page_of(made, {quoted(layers[0])}, {blocks[0]})
    other, begin, stop, _ = page_of(made, {quoted(layers[1])}, {blocks[1]})
    assert one != other or end <= begin or stop <= start
"""


def _table_width(asked: Asked) -> str:
    finding = asked.finding
    head = f"""
    config = engine_config()
    configs = {asked.on_config(memory_of(finding))}
    length = config.model_config.max_model_len
    for specs, made in zip(ranks, configs):
        for group in made.kv_cache_groups:
            row = group.kv_cache_spec.max_num_blocks_per_req(config, length)
"""
    if finding.symptom == "less than it takes":
        return f"""{head}            if {quoted(finding.layers[0])} in group.layer_names:
                assert row >= blocks_of(group.kv_cache_spec, config)
"""
    return f"""{head}            for name in group.layer_names:
                own = copy.copy(specs[name])
                tokens = planned_specs([group])[name].block_size
                object.__setattr__(own, "block_size", tokens)
                assert own.max_num_blocks_per_req(config, length) == row
"""


def _kept_context_fits(asked: Asked) -> str | None:
    kept = kept_tokens(asked.finding)
    if not kept:
        return None
    return f"""
    config = engine_config()
    configs = {asked.on_config(memory_of(asked.finding))}
    for group in itertools.chain(*(made.kv_cache_groups for made in configs)):
        if {asked.layer} in group.layer_names:
            tokens = planned_specs([group])[{asked.layer}].block_size
            blocks = blocks_of(group.kv_cache_spec, config)
            assert blocks * tokens >= {kept}
"""


def _split_agrees(asked: Asked) -> str:
    config = asked.finding.scenario.config
    lines = "".join(plenty(config))
    return f"""
    def planned(configs):
        return planned_specs(g for made in configs for g in made.kv_cache_groups)

    split = planned({asked.call})
    config = engine_config()
{lines}    together = {{name: spec for specs in ranks for name, spec in specs.items()}}
    assert planned({planner(asked.dialect)}(config, [together], [1 << 60])) == split
"""


#: Invariant -> what makes its test's statements.
CONFIG_CHECKS: Final[dict[str, Check]] = {
    **BOTH,
    "accepts-what-fits": plain_call,
    "partition": _partition_of_configs,
    "one-accounting": _one_accounting,
    "bounded-overhead": _bounded_overhead,
    "ranks-own-their-layers": _ranks_own_their_layers,
    "tensors-disjoint": _tensors_disjoint,
    "drafts-marked": _drafts_marked,
    "table-width": _table_width,
    "kept-context-fits": _kept_context_fits,
    "split-agrees": _split_agrees,
}
