"""Loading a planner alone from a small tree: what is real, what stands in, and what is said."""

from __future__ import annotations

import copy
import operator
import sys
import typing
from abc import ABC
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvfuzz.errors import HarnessFault, TargetError
from kvfuzz.outcomes import Group, Plan
from kvfuzz.pages import PageRules
from kvfuzz.specs import MLAAttentionSpec, Scenario, SlidingWindowMLASpec
from kvfuzz.targets.base import config_of
from kvfuzz.targets.eras import adapt
from kvfuzz.targets.load import Prepared, load, prepare
from kvfuzz.targets.standalone import PlannerModules, StandIn, StandInUsed, load_planner

#: What is asked of surfaces that read nothing of it.
ASKED = Scenario(())

INTERFACE = """
from dataclasses import dataclass
from enum import IntEnum
from typing import Optional
import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.utils import double
logger = init_logger(__name__)
logger.warning_once("one %s", "two")
class KVQuantMode(IntEnum):
    NONE = 0
    NVFP4 = 4
    OTHER = 5
@dataclass(frozen=True, kw_only=True)
class MLAAttentionSpec:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    kv_quant_mode: KVQuantMode = KVQuantMode.NONE
    config: "VllmConfig | None" = None
    @property
    def page_size_bytes(self):
        return self.block_size * self.num_kv_heads * self.head_size * self.dtype.itemsize
@dataclass(frozen=True, kw_only=True)
class SlidingWindowMLASpec(MLAAttentionSpec):
    sliding_window: int
    def for_(self, config: VllmConfig | None, other: Optional[VllmConfig] = None): ...
@dataclass
class UniformTypeKVCacheSpecs:
    kv_cache_specs: dict
"""
UTILS = """
from vllm import envs
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import *
from vllm.v1.request import Request
class Mine(Request):
    pass
def group_and_unify_kv_cache_specs(specs):
    names = set(specs)
    if "ask" in names:
        try:
            return bool(Request.is_streaming)
        except Exception:
            return None
    if "make" in names:
        return Mine()
    if names & {"cuda", "none"}:
        assert not current_platform.is_cuda() and envs.FLAG
        return None
    return [UniformTypeKVCacheSpecs(dict(specs))]
"""
TREE = {
    # None of these is run: the first two are bare packages, the others stand in.
    "__init__.py": "raise SystemExit",
    "v1/__init__.py": "raise SystemExit",
    "config/__init__.py": "raise SystemExit",
    "logger.py": "raise SystemExit",
    "platforms/__init__.py": "raise SystemExit",
    "v1/request.py": "raise SystemExit",
    "envs.py": "FLAG = True",
    "utils/__init__.py": "from vllm.utils.math import double",
    "utils/math.py": "def double(x): return 2 * x",
    "v1/kv_cache_interface.py": INTERFACE,
    "v1/core/kv_cache_utils.py": UTILS,
}
SPECS = {
    "mla": MLAAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="float32"),
    "window": SlidingWindowMLASpec(
        block_size=16, num_kv_heads=1, head_size=8, dtype="uint8", sliding_window=9
    ),
}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes the tree with some of its files replaced, or left out (None)."""

    def made(**changes: str | None) -> Path:
        for name, text in (TREE | changes).items():
            if text is not None:
                path = tmp_path / "vllm" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return tmp_path

    return made


@pytest.fixture(autouse=True)
def _nothing_stays_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.fixture
def planner(make: Callable[..., Path]) -> PlannerModules:
    return load_planner(make(), "it")


def test_what_is_real_and_what_stands_in(planner: PlannerModules):
    assert planner.interface.double(4) == 8
    assert planner.utils.envs.FLAG is True
    assert repr(planner.interface.VllmConfig) == "<stand-in for vllm.config.VllmConfig>"
    assert planner.utils.current_platform.dispatch_key == "CPU"
    assert planner.utils.current_platform.is_device_capability_family(100) is False


def test_a_target_of_it(make: Callable[..., Path]):
    (make() / "vllm" / "_version.py").write_text("__version__ = '0.1'")
    target = load(Prepared("vllm@here", str(make())))
    assert (target.uri, target.version, target.surfaces) == ("vllm@here", "0.1", ("pack",))
    plain = {"block_size", "num_kv_heads", "head_size", "dtype", "kv_quant_mode", "config"}
    assert target.dialect.fields == {
        "mla_attention": plain,
        "sliding_window_mla": plain | {"sliding_window"},
    }
    assert target.dialect.quant_modes == {"none", "nvfp4"}
    assert target.dialect.rules == PageRules(value_head=False)
    natives = {name: target.translate(spec) for name, spec in SPECS.items()}
    plan = target.normalise("pack", target.call("pack", natives, ASKED), natives, {})
    assert plan == Plan((Group(("mla", "window"), (1024, 128)),))
    # Again, now that the page sizes are remembered.
    assert target.normalise("pack", target.call("pack", natives, ASKED), natives, {}) == plan
    assert target.call("pack", {"none": natives["mla"]}, ASKED) is None
    assert target.normalise("pack", None, natives, {}) == Plan(None)


def test_a_spec_that_was_written_into_is_seen(planner: PlannerModules):
    target = adapt(planner.interface, planner.utils, "it", "0")
    native = target.translate(SPECS["mla"])
    before = target.state(native)
    specs = {"a": native}
    answer = target.call("pack", specs, ASKED)
    assert target.normalise("pack", answer, specs, {}) == Plan((Group(("a",), (1024,)),))
    assert target.state(native) == before
    object.__setattr__(native, "head_size", 16)
    assert target.state(native) != before
    assert target.normalise("pack", answer, specs, {}) == Plan((Group(("a",), (2048,)),))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (True, "a plan must be a list or None, got bool"),
        ([["a"]], "a group must hold a dict of specs, got list"),
        ([{"a": 1}], "a group must hold a dict of specs, got dict"),
    ],
)
def test_other_answers_are_type_errors(planner: PlannerModules, answer: Any, message: str):
    target = adapt(planner.interface, planner.utils, "it", "0")
    with pytest.raises(TypeError, match=message):
        target.normalise("pack", answer, {}, {})


def test_layers_must_have_names(planner: PlannerModules):
    target = adapt(planner.interface, planner.utils, "it", "0")
    native = target.translate(SPECS["mla"])
    group = planner.interface.UniformTypeKVCacheSpecs({7: native})
    with pytest.raises(TypeError, match="by layer name"):
        target.normalise("pack", [group], {"a": native}, {})


def test_no_function_no_surface(planner: PlannerModules):
    del planner.utils.group_and_unify_kv_cache_specs
    assert adapt(planner.interface, planner.utils, "it", "0").surfaces == ()


def test_an_unknown_page_rule_is_said(planner: PlannerModules):
    def page(self: Any) -> int:
        return 7

    planner.interface.MLAAttentionSpec.page_size_bytes = property(page)
    with pytest.raises(
        TargetError, match=r"^it computes page sizes by a rule .* 7 bytes, not 39936"
    ):
        adapt(planner.interface, planner.utils, "it", "0")


@pytest.mark.parametrize(("layer", "name"), [("ask", "Request.is_streaming"), ("make", "Request")])
def test_a_planner_that_uses_a_stand_in(planner: PlannerModules, layer: str, name: str):
    with pytest.raises(StandInUsed) as caught:
        planner.utils.group_and_unify_kv_cache_specs({layer: None})
    assert str(caught.value) == (
        f"The planner used vllm.v1.request.{name}, a part of vLLM that kvfuzz does not load."
    )
    assert isinstance(caught.value, HarnessFault)
    assert not isinstance(caught.value, Exception)


X: Any = StandIn("vllm.x.X")


@pytest.mark.parametrize(
    "use",
    [
        lambda: X(),
        lambda: X.y.z(1),
        lambda: bool(X),
        lambda: not X,
        lambda: X == 1,
        lambda: X.y == X,
        lambda: X != 1,
        lambda: operator.eq(1, X),
        lambda: X < 1,
        lambda: operator.ge(1, X),
        lambda: X in {1: 1},
        lambda: 1 in X,
        lambda: {X: 1},
        lambda: list(X),
        lambda: len(X),
        lambda: X + 1,
        lambda: 1 // X,
        lambda: -X,
        lambda: int(X),
        lambda: range(X),
        lambda: f"{X}",
        lambda: str(X),
        lambda: open(X),  # noqa: SIM115, PTH123
        lambda: isinstance(1, X),
        lambda: isinstance(1, (str, X)),
        lambda: issubclass(int, X),
        lambda: setattr(X, "a", 1),
        lambda: operator.setitem(X, "a", 1),
        lambda: X.__enter__(),
        lambda: types_of(X)(),
        lambda: max(1, X),
    ],
)
def test_uses_that_raise(use: Callable[[], Any]):
    with pytest.raises(StandInUsed, match=r"vllm\.x\.X"):
        use()


def types_of(base: Any) -> Any:
    class Derived(base, ABC):
        pass

    return Derived


def test_uses_that_are_fine():
    def annotated(a: X | None, b: None | X, c: list[X], d: X[int]) -> dict[str, X]: ...  # noqa: RUF036

    hints = typing.get_type_hints(annotated)
    assert [hints[name] for name in "abd"] == [X, X, X]
    assert typing.get_args(hints["return"])[1] is X
    assert typing.get_args(typing.Optional[X])[0] is X  # noqa: UP045
    assert typing.get_args(typing.Union[int, X])[1] is X  # noqa: UP007
    assert issubclass(types_of(X), ABC)
    assert issubclass(types_of(X.y), ABC)
    assert not hasattr(X, "__wrapped__")
    assert repr(copy.deepcopy(X.y)) == "<stand-in for vllm.x.X.y>"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"utils/math.py": "def double(:"},
            r"it cannot be loaded: \S*/vllm/utils/math\.py, line 1: invalid syntax\.",
        ),
        (
            {"utils/math.py": "import no_such_package.part"},
            r"it needs the Python package no_such_package, which is not installed: "
            r"pip install no_such_package\.",
        ),
        (
            {"v1/core/kv_cache_utils.py": None},
            r"it cannot be loaded: \S* has no module vllm\.v1\.core; is it vLLM's source\?",
        ),
        (
            {"v1/request.py": None},
            r"it cannot be loaded: \S* has no module vllm\.v1\.request; is it vLLM's source\?",
        ),
        (
            {"envs.py": "from vllm.config import VllmConfig; VllmConfig()"},
            r"it cannot be loaded alone\. The planner used vllm\.config\.VllmConfig, .*",
        ),
        (
            {"envs.py": "1 / 0"},
            r"it cannot be loaded: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_what_cannot_be_loaded(
    make: Callable[..., Path], changes: dict[str, str | None], message: str
):
    finders = list(sys.meta_path)
    with pytest.raises(TargetError, match=rf"^{message}$") as caught:
        load_planner(make(**changes), "it")
    assert caught.value.exit_code == 3
    # As if it had not been tried.
    assert sys.meta_path == finders
    assert not [name for name in sys.modules if name.split(".")[0] == "vllm"]


def test_one_process_one_planner(planner: PlannerModules, tmp_path: Path):
    with pytest.raises(TargetError, match="one process holds one planner"):
        load_planner(tmp_path, "another")


@pytest.fixture
def installed(make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that installs the tree, with some of its files replaced."""

    def install(**changes: str) -> None:
        logger = "from types import SimpleNamespace\n"
        logger += "def init_logger(name): return SimpleNamespace(warning_once=print)"
        folder = make(
            **dict.fromkeys(["__init__.py", "v1/__init__.py", "v1/core/__init__.py"], ""),
            **{
                "config/__init__.py": "class VllmConfig: ...",
                "logger.py": logger,
                "platforms/__init__.py": "current_platform = None",
                "v1/request.py": "class Request: is_streaming = True",
            },
            **changes,
        )
        info = folder / "vllm-0.7.dist-info" / "METADATA"
        info.parent.mkdir()
        info.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.7\n")
        monkeypatch.syspath_prepend(folder)

    return install


def test_the_installed_vllm(installed: Callable[..., None]):
    installed()
    target = load(prepare("vllm"))
    assert (target.uri, target.version, target.surfaces) == ("vllm", "0.7", ("pack",))
    assert target.call("pack", {"ask": target.translate(SPECS["mla"])}, ASKED) is True


def test_an_installed_vllm_that_can_build_no_config(installed: Callable[..., None]):
    installed(**{"v1/core/kv_cache_planning.py": "def get_kv_cache_groups(config, specs): ..."})
    target = load(prepare("vllm"))  # to be asked to pack, which takes no config
    assert (config_of(target, "pack"), config_of(target, "groups")) == ("", "real")
    with pytest.raises(TargetError) as caught:
        load(prepare("vllm"), "groups")
    assert str(caught.value) == (
        "The installed vLLM can build no engine's config here, by which the surfaces groups and "
        "config are planned: ModuleNotFoundError: No module named 'vllm.engine'"
    )


def test_an_installed_vllm_that_cannot_be_imported(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(make(**{"__init__.py": "raise ImportError('no\\n  CUDA')"}))
    with pytest.raises(TargetError) as caught:
        load(prepare("vllm"))
    assert str(caught.value) == "The installed vLLM cannot be imported: ImportError: no CUDA"
