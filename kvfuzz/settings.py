"""The settings of an engine's config that planners read, as vLLM spells them.

One table for the stand-in that a loaded planner is given and for the config
that a reproduction writes down, so that both ask the same.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from kvfuzz.planner_config import PlannerConfig

#: The setting that gives the physical layout: a method, where a release has it.
LAYOUT: Final = ("cache_config", "get_resolved_kv_cache_layout")


class Returns(NamedTuple):
    """A method of a config that takes nothing and returns this."""

    value: Any


def settings_of(config: PlannerConfig) -> dict[str, Any]:
    """Setting -> value of an engine of that config; a part of the config is a dict itself.

    But for LAYOUT: what a layout is, a planner's own modules say.
    """
    speculative = None
    lookahead = 0
    if config.speculative_method is not None:
        # With hidden states of the target, as eagle and mtp do.
        modules = config.speculative_method == "mtp" and config.num_speculative_tokens > 1
        speculative = {
            "method": config.speculative_method,
            "num_speculative_tokens": config.num_speculative_tokens,
            "use_eagle": Returns(value=True),
            "use_eagle_block_drop": Returns(value=True),
            "use_multi_module_mtp": Returns(value=modules),
        }
        lookahead = config.num_speculative_tokens if modules else 1
    return {
        "model_config": {
            "max_model_len": config.max_model_len,
            "original_max_model_len": -1 if config.auto_fit else config.max_model_len,
            "hf_config": {"model_type": "fuzzed"},
            "supports_kv_cache_grouping": False,
        },
        "cache_config": {
            "mamba_cache_mode": config.mamba_cache_mode,
            "num_gpu_blocks_override": config.num_gpu_blocks_override,
            "enable_prefix_caching": True,
            "prefix_cache_retention_interval": None,
        },
        "parallel_config": {
            "decode_context_parallel_size": config.decode_context_parallel_size,
            "prefill_context_parallel_size": 1,
            # Read on one model's path alone (0.30, 0.31), where it would place layers by name.
            "pipeline_parallel_size": 1,
            "tensor_parallel_size": config.decode_context_parallel_size,
        },
        "scheduler_config": {
            "disable_hybrid_kv_cache_manager": not config.hybrid_manager,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_num_encoder_input_tokens": config.max_num_batched_tokens,
        },
        "attention_config": {"hisparse_config": None},
        "device_config": {"device_type": "cpu"},
        "speculative_config": speculative,
        "kv_transfer_config": None,
        "num_prefill_lookahead_tokens": lookahead,
        "max_in_flight_tokens": config.concurrent_batches * config.max_num_batched_tokens,
    }
