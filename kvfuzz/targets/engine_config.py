"""A stand-in for the engine's config, for a planner that is loaded alone.

It has what planners were seen to read, with the values that an engine of
`PlannerConfig` has. Reading anything else ends the run with a sentence that
names it, so that a setting of tomorrow's release can not be planned by at a
value that nobody chose.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from kvfuzz.planner_config import PlannerConfig
from kvfuzz.targets.base import Unreachable
from kvfuzz.targets.standalone import StandInUsed


class Part:
    """A part of a config: the attributes that it was given, and no others."""

    def __init__(self, part: str, **values: Any) -> None:
        self.__dict__.update(values)
        self._part = part

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise StandInUsed(
            f"The planner read {self._part}.{name}, of which kvfuzz's stand-in for an engine's "
            "config knows nothing."
        )


class _Speculative(Part):
    """How an engine speculates: with hidden states of the target, as eagle and mtp do."""

    method: str
    num_speculative_tokens: int

    def use_eagle(self) -> bool:
        return True

    def use_eagle_block_drop(self) -> bool:
        return True

    def use_multi_module_mtp(self) -> bool:
        return self.method == "mtp" and self.num_speculative_tokens > 1


def layouts_of(interface: ModuleType) -> tuple[str, ...]:
    """Names of the physical layouts that a planner has, the plain one first.

    Only those that keep a page in one piece: others an engine takes for
    models of one page size alone, where they change nothing of the plan.
    """
    layouts = getattr(interface, "KVCacheLayout", None) or ()
    return tuple(layout.name for layout in layouts if set(layout.name[:2]) == {"L", "B"})


def _keeps_all(interface: ModuleType) -> bool:
    """Whether an engine can keep every state of a sequence: then what that takes is computed."""
    spec = getattr(interface, "MambaSpec", None)
    size = getattr(spec, "max_memory_usage_bytes", None)
    return "all" in getattr(getattr(size, "__code__", None), "co_consts", ())


class StandInConfigs:
    """Makes configs for a planner of this interface. See `kvfuzz.targets.planned.Configs`."""

    kind: Final = "stand-in"

    def __init__(self, interface: ModuleType) -> None:
        layouts = getattr(interface, "KVCacheLayout", None) or ()
        self._layouts = {layout.name: layout for layout in layouts}
        self._keeps_all = _keeps_all(interface)

    def warm_up(self) -> None:
        """Nothing takes long."""

    def make(self, config: PlannerConfig) -> Any:
        """A new config object; planners write into it."""
        if config.mamba_cache_mode == "all" and not self._keeps_all:
            raise Unreachable("its engine has no mamba_cache_mode 'all'")
        layout = self._layouts.get(config.layout or next(iter(self._layouts), ""))
        speculative = None
        lookahead = 0
        if config.speculative_method is not None:
            speculative = _Speculative(
                "speculative_config",
                method=config.speculative_method,
                num_speculative_tokens=config.num_speculative_tokens,
            )
            lookahead = config.num_speculative_tokens if speculative.use_multi_module_mtp() else 1
        return Part(
            "vllm_config",
            model_config=Part(
                "model_config",
                max_model_len=config.max_model_len,
                original_max_model_len=-1 if config.auto_fit else config.max_model_len,
                hf_config=Part("hf_config", model_type="fuzzed"),
                supports_kv_cache_grouping=False,
            ),
            cache_config=Part(
                "cache_config",
                mamba_cache_mode=config.mamba_cache_mode,
                num_gpu_blocks_override=config.num_gpu_blocks_override,
                enable_prefix_caching=True,
                prefix_cache_retention_interval=None,
                get_resolved_kv_cache_layout=lambda: layout,
            ),
            parallel_config=Part(
                "parallel_config",
                decode_context_parallel_size=config.decode_context_parallel_size,
                prefill_context_parallel_size=1,
                tensor_parallel_size=config.decode_context_parallel_size,
            ),
            scheduler_config=Part(
                "scheduler_config",
                disable_hybrid_kv_cache_manager=not config.hybrid_manager,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_num_encoder_input_tokens=config.max_num_batched_tokens,
            ),
            attention_config=Part("attention_config", hisparse_config=None),
            device_config=Part("device_config", device_type="cpu"),
            speculative_config=speculative,
            kv_transfer_config=None,
            num_prefill_lookahead_tokens=lookahead,
            max_in_flight_tokens=config.concurrent_batches * config.max_num_batched_tokens,
        )
