"""Configs of an engine, with a made-up `vllm.engine.arg_utils` in place of the real one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvfuzz.engine.session import Session
from kvfuzz.errors import HarnessFault, TargetError
from kvfuzz.outcomes import NotExpressible
from kvfuzz.planner_config import PlannerConfig
from kvfuzz.specs import MLAAttentionSpec, Scenario
from kvfuzz.targets.base import NeutralTarget, Unreachable, config_of
from kvfuzz.targets.engine_config import StandInConfigs
from kvfuzz.targets.real_config import RealConfigs

Check = Callable[[dict[str, Any], Any], None]


def _config(given: dict[str, Any]) -> Any:
    """The config of an engine that does as it is told, whose model is read while it is there."""
    model = json.loads(Path(given["model"], "config.json").read_text())
    length = given["max_model_len"]
    draft = given.get("speculative_config")
    if draft and "model" in draft:
        assert Path(draft["model"], "config.json").is_file()
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=model["max_position_embeddings"] if length == -1 else length,
            original_max_model_len=length,
        ),
        cache_config=SimpleNamespace(
            mamba_cache_mode=given["mamba_cache_mode"],
            num_gpu_blocks_override=given["num_gpu_blocks_override"],
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=given["decode_context_parallel_size"]
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=given["disable_hybrid_kv_cache_manager"],
            max_num_batched_tokens=given["max_num_batched_tokens"],
        ),
        speculative_config=draft
        and SimpleNamespace(
            method=draft["method"], num_speculative_tokens=draft["num_speculative_tokens"]
        ),
        max_concurrent_batches=given["pipeline_parallel_size"],
    )


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Check], list[dict[str, Any]]]:
    """A function that installs an engine; `check` may refuse settings or change the config."""

    def install(check: Check) -> list[dict[str, Any]]:
        asked = []

        class EngineArgs:
            def __init__(self, **given: Any) -> None:
                self.given = given

            def create_engine_config(self) -> Any:
                asked.append(self.given)
                os.environ["KVFUZZ_TEST"] = "1"
                config = _config(self.given)
                check(self.given, config)
                return config

        module = ModuleType("vllm.engine.arg_utils")
        module.EngineArgs = EngineArgs  # type: ignore[attr-defined]
        for name in ("vllm", "vllm.engine"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return asked

    return install


def obeys(given: dict[str, Any], config: Any) -> None:
    pass


ODD = PlannerConfig(
    hybrid_manager=False,
    max_model_len=1000,
    auto_fit=True,
    max_num_batched_tokens=64,
    concurrent_batches=2,
    decode_context_parallel_size=4,
    num_gpu_blocks_override=0,
    mamba_cache_mode="align",
    speculative_method="eagle",
    num_speculative_tokens=3,
)


def test_each_setting_is_given_and_held_to(engine: Callable[[Check], list[dict[str, Any]]]):
    asked = engine(obeys)
    configs = RealConfigs()
    made = configs.make(ODD)
    assert made.model_config.max_model_len == 1000
    assert made.max_concurrent_batches == 2
    # Equal settings share a config, but for what planners write into.
    made.model_config.max_model_len = 7
    again = configs.make(ODD)
    assert again.model_config.max_model_len == 1000
    assert again.scheduler_config is made.scheduler_config
    assert len(asked) == 1
    assert not Path(asked[0]["model"]).exists()
    assert "KVFUZZ_TEST" not in os.environ


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ("model_config", "max_model_len"),
        ("model_config", "original_max_model_len"),
        ("cache_config", "mamba_cache_mode"),
        ("cache_config", "num_gpu_blocks_override"),
        ("parallel_config", "decode_context_parallel_size"),
        ("scheduler_config", "disable_hybrid_kv_cache_manager"),
        ("scheduler_config", "max_num_batched_tokens"),
        ("speculative_config", "method"),
        ("speculative_config", "num_speculative_tokens"),
        (None, "max_concurrent_batches"),
    ],
)
def test_what_is_silently_changed_is_unreachable(
    engine: Callable[[Check], list[dict[str, Any]]], part: str | None, field: str
):
    engine(lambda _, config: setattr(getattr(config, part) if part else config, field, None))
    with pytest.raises(Unreachable, match="an engine that is asked for "):
        RealConfigs().make(ODD)


def test_a_refusal_is_unreachable_and_remembered(
    engine: Callable[[Check], list[dict[str, Any]]],
):
    def refuses(given: dict[str, Any], config: Any) -> None:
        raise NotImplementedError("not\n with this")

    asked = engine(refuses)
    configs = RealConfigs()
    for _ in range(2):
        with pytest.raises(Unreachable) as caught:
            configs.make(ODD)
        assert str(caught.value) == "NotImplementedError: not with this"
    assert len(asked) == 1


def test_layouts_are_those_of_the_release(engine: Callable[[Check], list[dict[str, Any]]]):
    engine(obeys)
    with pytest.raises(Unreachable, match="this release has no layouts"):
        RealConfigs().make(PlannerConfig(layout="LBHNC"))


def test_another_failure_is_no_answer(engine: Callable[[Check], list[dict[str, Any]]]):
    def fails(given: dict[str, Any], config: Any) -> None:
        raise OSError("no space left")

    engine(fails)
    with pytest.raises(HarnessFault, match="OSError: no space left"):
        RealConfigs().make(ODD)
    with pytest.raises(TargetError) as caught:
        RealConfigs().warm_up()
    assert str(caught.value).startswith("The installed vLLM can build no engine's config here, ")


def test_warming_up_builds_one_of_each_kind(engine: Callable[[Check], list[dict[str, Any]]]):
    def no_eagle(given: dict[str, Any], config: Any) -> None:
        if given.get("speculative_config", {}).get("method") == "eagle":
            raise ValueError("no such method")

    asked = engine(no_eagle)
    RealConfigs().warm_up()
    methods = [given.get("speculative_config", {}).get("method") for given in asked]
    assert methods == [None, "eagle", "mtp"]


LAYER = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype="float32")


class _Asking(NeutralTarget):
    """A target whose every call raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("it", lambda _: None, "0")
        self._error = error

    def call(self, surface: str, specs: dict[str, Any], scenario: Scenario) -> Any:
        raise self._error


@pytest.mark.parametrize("isolate", [False, True])
def test_what_is_unreachable_is_not_expressible(isolate: bool):
    session = Session(_Asking(Unreachable("why")), "pack", isolate=isolate)
    answer, _ = session.ask(Scenario((("a", LAYER),)))
    assert answer.outcome == NotExpressible("why")


@pytest.mark.parametrize("isolate", [False, True])
def test_a_fault_is_told_also_of_a_fork(isolate: bool):
    session = Session(_Asking(HarnessFault("why")), "pack", isolate=isolate)
    with pytest.raises(HarnessFault, match=r"^why$"):
        session.ask(Scenario((("a", LAYER),)))


def test_a_mode_that_no_engine_has():
    class MambaSpec:
        def max_memory_usage_bytes(self, config: Any) -> int:
            return 1 if config.cache_config.mamba_cache_mode == "align" else 2

    interface = ModuleType("interface")
    interface.MambaSpec = MambaSpec  # type: ignore[attr-defined]
    configs = StandInConfigs(interface)
    assert configs.make(PlannerConfig(mamba_cache_mode="align"))
    with pytest.raises(Unreachable, match="no mamba_cache_mode 'all'"):
        configs.make(PlannerConfig(mamba_cache_mode="all"))


def test_a_target_without_configs():
    assert config_of(NeutralTarget("it", lambda _: None, "0"), "pack") == ""
