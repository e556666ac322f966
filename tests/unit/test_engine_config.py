"""The stand-in for an engine's config: what it says, and that it says no more."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kvfuzz.engine.session import Session
from kvfuzz.planner_config import PlannerConfig
from kvfuzz.specs import Scenario, open_spec
from kvfuzz.targets.base import Unreachable
from kvfuzz.targets.engine_config import StandInConfigs, layouts_of
from kvfuzz.targets.eras import adapt
from kvfuzz.targets.standalone import StandInUsed
from tests.sabotage import engine
from tests.sabotage.engine_planner import Planner

FULL = open_spec(
    "full_attention", {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": "uint8"}
)


def _config(**settings: Any) -> Any:
    return StandInConfigs(Planner().interface()).make(PlannerConfig(**settings))


def test_layouts_that_keep_a_page_in_one_piece():
    assert layouts_of(Planner().interface()) == ("LBHNC", "BLHNC")
    assert layouts_of(ModuleType("interface")) == ()


def test_a_plain_config():
    config = _config()
    assert config.model_config.max_model_len == 4096
    assert config.model_config.original_max_model_len == 4096
    assert config.cache_config.num_gpu_blocks_override is None
    assert config.cache_config.mamba_cache_mode == "none"
    assert config.cache_config.get_resolved_kv_cache_layout() is engine.KVCacheLayout.LBHNC
    assert config.parallel_config.decode_context_parallel_size == 1
    assert config.scheduler_config.disable_hybrid_kv_cache_manager is False
    assert config.scheduler_config.max_num_batched_tokens == 2048
    assert config.max_in_flight_tokens == 2048
    assert config.speculative_config is None
    assert config.num_prefill_lookahead_tokens == 0


def test_each_setting_reaches_the_config():
    config = _config(
        hybrid_manager=False,
        layout="BLHNC",
        max_model_len=17,
        auto_fit=True,
        max_num_batched_tokens=64,
        concurrent_batches=2,
        decode_context_parallel_size=4,
        num_gpu_blocks_override=5,
        mamba_cache_mode="all",
    )
    assert config.model_config.max_model_len == 17
    assert config.model_config.original_max_model_len == -1
    assert config.cache_config.num_gpu_blocks_override == 5
    assert config.cache_config.mamba_cache_mode == "all"
    assert config.cache_config.get_resolved_kv_cache_layout() is engine.KVCacheLayout.BLHNC
    assert config.parallel_config.decode_context_parallel_size == 4
    assert config.scheduler_config.disable_hybrid_kv_cache_manager is True
    assert config.max_in_flight_tokens == 128
    without = StandInConfigs(ModuleType("interface")).make(PlannerConfig())
    assert without.cache_config.get_resolved_kv_cache_layout() is None


def test_states_that_no_engine_of_the_target_keeps():
    without = StandInConfigs(ModuleType("interface"))
    with pytest.raises(Unreachable, match="mamba_cache_mode 'all'"):
        without.make(PlannerConfig(mamba_cache_mode="all"))
    assert without.make(PlannerConfig(mamba_cache_mode="align"))


@pytest.mark.parametrize(
    ("method", "tokens", "modules", "lookahead"),
    [("eagle", 3, False, 1), ("mtp", 1, False, 1), ("mtp", 3, True, 3)],
)
def test_speculation(method: str, tokens: int, modules: bool, lookahead: int):
    config = _config(speculative_method=method, num_speculative_tokens=tokens)
    speculative = config.speculative_config
    assert (speculative.method, speculative.num_speculative_tokens) == (method, tokens)
    assert speculative.use_eagle()
    assert speculative.use_multi_module_mtp() is modules
    assert config.num_prefill_lookahead_tokens == lookahead


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (lambda config: config.quant_config, "vllm_config.quant_config"),
        (lambda config: config.model_config.max_len, "model_config.max_len"),
        (lambda config: config.model_config.hf_config.layers, "hf_config.layers"),
    ],
)
def test_reading_what_nobody_chose_ends_the_run(read: Callable[[Any], Any], named: str):
    def answer(config: Any, specs: Any) -> Any:
        try:
            return read(config)
        except Exception:  # a planner that catches all does not get away with it
            return []

    utils = ModuleType("utils")
    utils.get_kv_cache_groups = answer  # type: ignore[attr-defined]
    session = Session(adapt(Planner().interface(), utils, "curious", "0"), "groups")
    with pytest.raises(StandInUsed, match=rf"The planner read {named}, of which"):
        session.ask(Scenario((("a", FULL),)))
    # What asks whether there is such a thing, as copying does, is told no.
    assert not hasattr(_config(), "__deepcopy__")
