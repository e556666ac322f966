"""Reproductions of `groups` and `config`: each fails on the planner it is of, and no other."""

from __future__ import annotations

import ast
from typing import Any

import msgspec
import pytest
import torch  # noqa: F401 - so that the forks in which reproductions run need not load it

from kvfuzz.engine.calls import Limits
from kvfuzz.engine.session import Session
from kvfuzz.engine.verify import fails
from kvfuzz.findings import Finding, make_finding
from kvfuzz.invariants import invariants_of
from kvfuzz.planner_config import PlannerConfig
from kvfuzz.reproduction import reproduction
from kvfuzz.reproduction.engine import CHECKS
from kvfuzz.specs import LayerSpec, Scenario, open_spec
from kvfuzz.targets.eras import VllmTarget, adapt
from tests.unit import engine_planner

PLAIN: dict[str, Any] = {"block_size": 16, "head_size": 64, "dtype": "float32"}
FULL = open_spec("full_attention", PLAIN)
WIDE = open_spec("full_attention", {**PLAIN, "head_size": 128})
SHORT = open_spec("full_attention", {**PLAIN, "block_size": 8, "head_size": 128})
WINDOW = open_spec("sliding_window", {**PLAIN, "sliding_window": 8})


def _mix(*specs: LayerSpec, **others: Any) -> Scenario:
    mix = tuple((f"layers.{i}", spec) for i, spec in enumerate(specs))
    return Scenario(mix, **others)


TWO = _mix(FULL, SHORT)
WITH_WINDOW = _mix(FULL, WINDOW)
RANKS = _mix(FULL, FULL, WINDOW, ranks=(0, 1, 1))
DRAFTS = _mix(FULL, FULL, FULL, drafts=2, config=PlannerConfig(speculative_method="eagle"))
DRAFTS_APART = _mix(FULL, FULL, drafts=1, ranks=(0, 1), config=DRAFTS.config)
EDGE = _mix(FULL, WIDE, config=PlannerConfig(spare_blocks=-2, spare_bytes=1, auto_fit=True))
ENOUGH = _mix(FULL, WIDE, config=PlannerConfig(spare_blocks=0))
OVERRIDE = _mix(FULL, config=PlannerConfig(num_gpu_blocks_override=1000))

#: (surface, invariant, scenario, how the planner is broken)
BROKEN = [
    ("groups", "plan-or-refusal", TWO, "crash"),
    ("groups", "plan-or-refusal", TWO, "hang"),
    ("groups", "plan-or-refusal", TWO, "unreadable"),
    ("groups", "refusal-says-why", TWO, "says nothing"),
    ("groups", "necessary-refusal", TWO, "says nothing"),
    ("groups", "partition", TWO, "lost"),
    ("groups", "partition", TWO, "empty"),
    ("groups", "pure", TWO, "impure"),
    ("groups", "deterministic", TWO, "fickle"),
    ("groups", "order-free", _mix(FULL, FULL, FULL), "order"),
    ("groups", "order-free", _mix(*[FULL] * 7), "order"),
    ("groups", "nothing-lost", TWO, "causal"),
    ("groups", "nothing-lost", WITH_WINDOW, "kind"),
    ("groups", "group-attributes-true", TWO, "one group"),
    ("groups", "group-attributes-true", _mix(WINDOW, FULL), "one group"),
    ("groups", "group-attributes-true", TWO, "no kind"),
    ("groups", "pages-compatible", TWO, "small page"),
    ("groups", "pages-compatible", _mix(FULL, WIDE), "two pages"),
    ("groups", "blocks-divide", TWO, "odd blocks"),
    ("groups", "bounded-never-dearer", WITH_WINDOW, "dear window"),
    ("groups", "kept-context-fits", TWO, "few blocks"),
    ("groups", "drafts-together", DRAFTS, "scattered"),
    ("config", "plan-or-refusal", RANKS, "crash"),
    ("config", "plan-or-refusal", RANKS, "unreadable"),
    ("config", "refusal-says-why", RANKS, "says nothing"),
    ("config", "partition", TWO, "lost"),
    ("config", "partition", RANKS, "empty"),
    ("config", "pure", TWO, "impure"),
    ("config", "deterministic", TWO, "fickle"),
    ("config", "one-accounting", EDGE, "too few"),
    ("config", "one-accounting", RANKS, "uneven"),
    ("config", "one-accounting", OVERRIDE, "no override"),
    ("config", "one-accounting", ENOUGH, "too much"),
    ("config", "one-accounting", TWO, "too little"),
    ("config", "one-accounting", _mix(FULL, config=PlannerConfig(auto_fit=True)), "short"),
    ("config", "accepts-what-fits", ENOUGH, "refuses what fits"),
    ("config", "bounded-overhead", TWO, "needless"),
    ("config", "bounded-overhead", TWO, "many groups"),
    ("config", "bounded-overhead", _mix(FULL, FULL), "scattered"),
    ("config", "ranks-own-their-layers", RANKS, "lost"),
    ("config", "ranks-own-their-layers", RANKS, "foreign"),
    ("config", "tensors-disjoint", _mix(FULL, FULL), "overlap"),
    ("config", "tensors-disjoint", RANKS, "outside"),
    ("config", "drafts-marked", DRAFTS, "unmarked"),
    ("config", "drafts-marked", DRAFTS_APART, "unmarked"),
    ("config", "table-width", RANKS, "wide"),
    ("config", "table-width", RANKS, "narrow"),
    ("config", "kept-context-fits", RANKS, "few blocks"),
    ("config", "split-agrees", RANKS, "split"),
]  # fmt: skip


class Broken:
    """A planner that can be broken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, more: str = "") -> None:
        self._modules = engine_planner.load(monkeypatch, more)
        self.target: VllmTarget = adapt(*self._modules, "vllm", "1")

    def as_in(self, how: str) -> None:
        for module in self._modules:
            vars(module)["BROKEN"] = how

    def finding(self, surface: str, invariant: str, scenario: Scenario) -> Finding:
        limits = Limits(call_seconds=0.5)
        hangs = "hang" in (vars(module)["BROKEN"] for module in self._modules)
        session = Session(self.target, surface, isolate=hangs, limits=limits)
        violations = {v.invariant: v for v in session.judge(scenario)}
        assert invariant in violations
        return make_finding(
            violations[invariant],
            scenario=scenario,
            pages=tuple(session.pages(scenario).values()),
            surface=surface,
            target="vllm",
            version="1",
            shrunk=True,
        )


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Broken:
    return Broken(monkeypatch)


@pytest.mark.parametrize("surface", CHECKS)
def test_every_rule_has_a_reproduction(surface: str):
    rules = {rule.id for rule in invariants_of(surface)}
    rules -= {"optimized-agrees"}  # a file cannot say how its interpreter is started
    assert rules == set(CHECKS[surface])
    assert rules == {invariant for judged, invariant, _, _ in BROKEN if judged == surface}


@pytest.mark.parametrize(("surface", "invariant", "scenario", "how"), BROKEN)
def test_it_fails_on_the_bug_and_on_nothing_else(
    broken: Broken, surface: str, invariant: str, scenario: Scenario, how: str
):
    broken.as_in(how)
    finding = broken.finding(surface, invariant, scenario)
    text = reproduction(finding, broken.target.dialect)
    assert text is not None
    assert fails(text, finding)
    assert max(map(len, text.splitlines())) <= 88
    broken.as_in("")
    assert not fails(text, finding)


def test_a_setting_that_its_config_lacks_is_no_failure(broken: Broken):
    broken.as_in("crash")
    finding = broken.finding("groups", "plan-or-refusal", TWO)
    text = reproduction(finding, broken.target.dialect)
    assert text is not None
    broken.as_in("lacking")
    assert not fails(text, finding)
    broken.as_in("hang")
    assert not fails(text, finding)


def test_a_better_reason_mends_a_refusal(broken: Broken):
    broken.as_in("says nothing")
    finding = broken.finding("config", "refusal-says-why", TWO)
    text = reproduction(finding, broken.target.dialect)
    assert text is not None
    broken.as_in("says why")
    assert not fails(text, finding)


def test_a_plan_of_all_ranks_is_made_first_where_there_is_one(monkeypatch: pytest.MonkeyPatch):
    broken = Broken(monkeypatch, engine_planner.GLOBAL)
    broken.as_in("too few")
    finding = broken.finding("config", "one-accounting", EDGE)
    text = reproduction(finding, broken.target.dialect)
    assert text is not None
    assert "    groups = get_global_kv_cache_groups(config, ranks)\n" in text
    assert fails(text, finding)
    broken.as_in("groups are given")
    assert not fails(text, finding)


def test_the_text_of_groups(broken: Broken):
    broken.as_in("causal")
    mix = [(f"layers.{i}", FULL) for i in range(1, 21)]
    scenario = Scenario(
        (("odd", SHORT), *mix), config=PlannerConfig(max_model_len=17, layout="BLHNC")
    )
    finding = broken.finding("groups", "nothing-lost", scenario)
    assert reproduction(finding, broken.target.dialect) == NOTHING_LOST


def test_the_text_of_a_test_of_ranks(broken: Broken):
    broken.as_in("unmarked")
    finding = broken.finding("config", "drafts-marked", DRAFTS_APART)
    text = reproduction(finding, broken.target.dialect)
    assert text is not None
    assert text[text.index("def test_") :] == DRAFTS_MARKED
    assert SPECULATIVE in text


def test_memory_at_an_edge_is_worked_out_in_the_file(broken: Broken):
    broken.as_in("too few")
    text = reproduction(broken.finding("config", "one-accounting", EDGE), broken.target.dialect)
    assert text is not None
    assert MEMORY in text


@pytest.mark.parametrize("surface", CHECKS)
def test_hostile_names_stay_literals(broken: Broken, surface: str):
    evil = "'\"\"\"\\N{BULLET}{i}'); import os; ('"
    scenario = Scenario(((evil, FULL), (f"{evil}1", FULL), (f"{evil}2", FULL), (f"{evil}3", FULL)))
    broken.as_in("crash")
    finding = broken.finding(surface, "plan-or-refusal", scenario)
    for invariant in CHECKS[surface]:
        changed = msgspec.structs.replace(finding, invariant=invariant, got=f"block 1 of {evil}")
        text = reproduction(changed, broken.target.dialect)
        if text is None:
            continue
        tree = ast.parse(text)
        imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        assert "os" not in {alias.name for node in imported for alias in node.names}
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        assert evil in texts


NOTHING_LOST = '''\
"""A layer's spec in the plan is the one that it had, but for its block size, padding
and a promotion that makes it keep its whole context."""

# nothing-lost-da3051ba, found by kvfuzz on version 1.

from functools import partial
from types import SimpleNamespace

import torch

from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheLayout


def engine_config():
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=4096,
            original_max_model_len=4096,
            hf_config=SimpleNamespace(model_type="fuzzed"),
            supports_kv_cache_grouping=False,
        ),
        cache_config=SimpleNamespace(
            mamba_cache_mode="none",
            num_gpu_blocks_override=None,
            enable_prefix_caching=True,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: KVCacheLayout["LBHNC"],
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
            tensor_parallel_size=1,
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False,
            max_num_batched_tokens=2048,
            max_num_encoder_input_tokens=2048,
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        device_config=SimpleNamespace(device_type="cpu"),
        speculative_config=None,
        kv_transfer_config=None,
        num_prefill_lookahead_tokens=0,
        max_in_flight_tokens=2048,
    )
    # Other than in a plain engine:
    config.model_config.max_model_len = 17
    config.model_config.original_max_model_len = 17
    config.cache_config.get_resolved_kv_cache_layout = lambda: KVCacheLayout["BLHNC"]
    return config


def planned_specs(groups):
    """The spec that each layer has in the plan."""
    return {
        name: getattr(group.kv_cache_spec, "kv_cache_specs", {}).get(
            name, group.kv_cache_spec
        )
        for group in groups
        for name in group.layer_names
    }


def test_nothing_lost():
    # Seen: causal=False in the planned full_attention spec
    full_attention_spec = FullAttentionSpec(
        block_size=8,
        dtype=torch.float32,
        head_size=128,
    )
    new_full_attention_2 = partial(
        FullAttentionSpec,
        block_size=16,
        dtype=torch.float32,
        head_size=64,
    )
    kv_cache_specs = {
        "odd": full_attention_spec,
        **{f"layers.{i}": new_full_attention_2() for i in range(1, 21)},
    }
    groups = get_kv_cache_groups(engine_config(), kv_cache_specs)
    given, planned = kv_cache_specs["odd"], planned_specs(groups)["odd"]
    assert planned.causal == given.causal
'''

DRAFTS_MARKED = """\
def test_drafts_marked():
    # Seen: a group of layers.1 not marked
    full_attention_spec = FullAttentionSpec(
        block_size=16,
        dtype=torch.float32,
        head_size=64,
    )
    draft_full_attention_spec = FullAttentionSpec(
        block_size=16,
        dtype=torch.float32,
        head_size=64,
        is_draft=True,
    )
    ranks = [
        {"layers.0": full_attention_spec},
        {"layers.1": draft_full_attention_spec},
    ]
    drafts = ["layers.1"]
    configs = get_kv_cache_configs(engine_config(), ranks, [1 << 60] * 2)
    for parts in zip(*(made.kv_cache_groups for made in configs)):
        drafting = any(set(drafts) & set(group.layer_names) for group in parts)
        assert any(group.is_eagle_group for group in parts) == drafting
"""

SPECULATIVE = """\
    # Other than in a plain engine:
    config.speculative_config = SimpleNamespace(
        method="eagle",
        num_speculative_tokens=1,
        use_eagle=lambda: True,
        use_eagle_block_drop=lambda: True,
        use_multi_module_mtp=lambda: False,
    )
    config.num_prefill_lookahead_tokens = 1
"""

MEMORY = '''\
def memory_of(ranks):
    """Bytes for one longest request, the null block and what is spare, on each rank."""
    config = engine_config()
    config.model_config.original_max_model_len = 4096
    copies = [dict(specs) for specs in ranks]
    memory = []
    for made in get_kv_cache_configs(config, copies, [1 << 60] * len(ranks)):
        block = pool_bytes(made) // made.num_blocks
        blocks = needed_blocks(made, config) + 1 - 2
        memory.append(max(0, blocks * block + 1))
    return memory
'''
