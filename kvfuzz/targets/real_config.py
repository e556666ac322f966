"""Real configs: what the vLLM that is installed here makes of an engine's settings.

The installed planner is asked about engines that can be started, and no
others: each config takes the road that `vllm serve` takes, through all checks
and defaults of that release and platform. Settings that the engine refuses,
or silently makes something else of, are `Unreachable`.

Only the model is made up: a `config.json` of a few hundred bytes, in a folder
that is there while the config is built. No network, no weights.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from kvfuzz.errors import HarnessFault, TargetError
from kvfuzz.planner_config import PLAIN_CONFIG, PlannerConfig
from kvfuzz.targets.base import Unreachable
from kvfuzz.targets.sentences import said

#: The layout of an engine for whose layers every layout will do.
_PLAIN_LAYOUT: Final = "LBHNC"

#: Of either model. One KV head, so that it is the engine that bounds the context parallelism.
_SHAPE: Final[dict[str, Any]] = {
    "intermediate_size": 64,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 128,
    "torch_dtype": "bfloat16",
}
#: A hybrid of attention and state layers that has MTP modules: of all kinds of model the one
#: that every setting can be given to. Latent attention would change the size of a step.
_TARGET: Final[dict[str, Any]] = {
    **_SHAPE,
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "num_hidden_layers": 16,
    "hybrid_override_pattern": "M*" * 8,
    "mtp_hybrid_override_pattern": "*",
    "mamba_head_dim": 8,
    "ssm_state_size": 16,
    "n_groups": 1,
}
_DRAFT: Final[dict[str, Any]] = {
    **_SHAPE,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 1,
}

_LOG_LEVEL: Final = "VLLM_LOGGING_LEVEL"
#: A first config of each kind: vLLM looks at the model's class, in a process of its own and
#: for up to 20 s if it has never done so on this machine.
_FIRST: Final = (
    PlannerConfig(speculative_method="eagle"),
    PlannerConfig(speculative_method="mtp"),
)
#: Distinct settings that are kept, with their configs of some 25 KB.
_KEPT: Final = 4096
#: How an engine refuses settings. pydantic's ValidationError is a ValueError.
_REFUSALS: Final = (ValueError, AssertionError, NotImplementedError)


class RealConfigs:
    """Makes configs by the vLLM that is installed here. See `kvfuzz.targets.planned.Configs`."""

    kind: Final = "real"

    def __init__(self) -> None:
        self._built: dict[PlannerConfig, Any] = {}

    def warm_up(self) -> None:
        """Build the first configs, which takes seconds.

        Raises:
            TargetError: Not even a plain engine's config can be built here.
        """
        try:
            _build(PLAIN_CONFIG)
        except (Unreachable, HarnessFault) as error:
            raise TargetError(
                f"The installed vLLM can build no engine's config here, by which the surfaces "
                f"groups and config are planned: {error}"
            ) from None
        for config in _FIRST:
            try:
                _build(config)
            except Unreachable:  # a release without it
                continue

    def make(self, config: PlannerConfig) -> Any:
        """The config of an engine with these settings, its own where planners write.

        Raises:
            Unreachable: No engine has them.
        """
        wanted = msgspec.structs.replace(config, spare_blocks=None, spare_bytes=0)
        built = self._built.get(wanted)
        if built is None:
            try:
                built = _build(wanted)
            except Unreachable as error:
                built = error
            if len(self._built) >= _KEPT:
                self._built.clear()
            self._built[wanted] = built
        if isinstance(built, Unreachable):
            raise Unreachable(*built.args)
        made = copy.copy(built)
        made.model_config = copy.copy(built.model_config)
        made.cache_config = copy.copy(built.cache_config)
        return made


def _build(wanted: PlannerConfig) -> Any:
    """A new config.

    Raises:
        Unreachable: The engine refuses the settings, or would have others.
        HarnessFault: It could not be built for another reason.
    """
    with TemporaryDirectory(prefix="kvfuzz-model-") as folder, _environment_kept(), quiet_log():
        try:
            from vllm.engine.arg_utils import EngineArgs

            built = EngineArgs(**_arguments(wanted, Path(folder))).create_engine_config()
            _lay_out(built, wanted.layout)
        except _REFUSALS as error:
            raise Unreachable(said(error)) from None
        except Unreachable:
            raise
        except Exception as error:
            raise HarnessFault(said(error)) from error
    for name, got in _got(built).items():
        asked = getattr(wanted, name)
        if got != asked:
            raise Unreachable(f"an engine that is asked for {name}={asked!r} has {got!r}")
    return built


def _arguments(wanted: PlannerConfig, folder: Path) -> dict[str, Any]:
    """What a user would give to the engine."""
    sharing = wanted.decode_context_parallel_size
    arguments: dict[str, Any] = {
        "model": _model(folder / "target", _TARGET, wanted),
        "skip_tokenizer_init": True,
        "max_model_len": -1 if wanted.auto_fit else wanted.max_model_len,
        "max_num_batched_tokens": wanted.max_num_batched_tokens,
        "tensor_parallel_size": sharing,  # the ranks are the same ones
        "decode_context_parallel_size": sharing,
        # Each stage of a pipeline has a step in flight, with or without asynchronous scheduling.
        "pipeline_parallel_size": wanted.concurrent_batches,
        "num_gpu_blocks_override": wanted.num_gpu_blocks_override,
        "disable_hybrid_kv_cache_manager": not wanted.hybrid_manager,
        # A model with state layers has the mode "none" only where nothing is kept for reuse.
        "enable_prefix_caching": wanted.mamba_cache_mode != "none",
        "mamba_cache_mode": wanted.mamba_cache_mode,
    }
    if wanted.speculative_method is not None:
        speculative: dict[str, Any] = {
            "method": wanted.speculative_method,
            "num_speculative_tokens": wanted.num_speculative_tokens,
        }
        if wanted.speculative_method == "eagle":
            speculative["model"] = _model(folder / "draft", _DRAFT, wanted)
        arguments["speculative_config"] = speculative
    return arguments


def _model(folder: Path, form: Mapping[str, Any], wanted: PlannerConfig) -> str:
    """A folder with the model's `config.json`: as long as the engine, with a module a token."""
    heads = 8 * wanted.decode_context_parallel_size
    config = {
        **form,
        "hidden_size": heads * form["head_dim"],
        "num_attention_heads": heads,
        "mamba_num_heads": heads,
        "max_position_embeddings": wanted.max_model_len,
        "num_nextn_predict_layers": wanted.num_speculative_tokens,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def _lay_out(built: Any, layout: str | None) -> None:
    """Say the layout, as the engine's core does once it has asked its workers.

    Raises:
        ValueError: There is none such.
        Unreachable: The release has no layouts.
    """
    if hasattr(built.cache_config, "kv_cache_layout"):
        built.cache_config.kv_cache_layout = layout or _PLAIN_LAYOUT
        built.cache_config.get_resolved_kv_cache_layout()
    elif layout is not None:
        raise Unreachable("this release has no layouts")


def _got(built: Any) -> dict[str, Any]:
    """The settings as the engine has them, by their names in `PlannerConfig`."""
    speculative = built.speculative_config
    got = {
        "hybrid_manager": not built.scheduler_config.disable_hybrid_kv_cache_manager,
        "max_model_len": built.model_config.max_model_len,
        "auto_fit": built.model_config.original_max_model_len == -1,
        "max_num_batched_tokens": built.scheduler_config.max_num_batched_tokens,
        "concurrent_batches": built.max_concurrent_batches,
        "decode_context_parallel_size": built.parallel_config.decode_context_parallel_size,
        "num_gpu_blocks_override": built.cache_config.num_gpu_blocks_override,
        "mamba_cache_mode": built.cache_config.mamba_cache_mode,
        "speculative_method": speculative and speculative.method,
    }
    if speculative is not None:
        got["num_speculative_tokens"] = speculative.num_speculative_tokens
    return got


@contextmanager
def quiet_log() -> Iterator[None]:
    """Have vLLM log nothing: it reads this when it is imported, or builds a config."""
    before = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = "CRITICAL"
    try:
        yield
    finally:
        del os.environ[_LOG_LEVEL]
        if before is not None:
            os.environ[_LOG_LEVEL] = before


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Undo what building a config does to the environment, such as preloading libraries."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
