"""What a target's name means, and what `prepare` and `load` make of each form."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from kvfuzz import __version__
from kvfuzz.errors import TargetError, UsageError
from kvfuzz.outcomes import Group, Plan
from kvfuzz.specs import MLAAttentionSpec, Scenario
from kvfuzz.targets import load as loading
from kvfuzz.targets.load import Prepared, load, prepare, source_version
from kvfuzz.targets.uri import (
    Checkout,
    Factory,
    Installed,
    Latest,
    Reference,
    Release,
    default_target,
    parse,
    vllm_is_installed,
)

#: What is asked of surfaces that read nothing of it.
ASKED = Scenario(())

SPEC = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype="uint8")


@pytest.mark.parametrize(
    ("uri", "meaning"),
    [
        ("reference", Reference()),
        ("vllm", Installed()),
        ("vllm==0.28.0", Release("0.28.0")),
        ("vllm==v0.28.0RC1", Release("0.28.0rc1")),
        ("vllm==latest", Latest()),
        ("vllm@/src/vllm", Checkout("/src/vllm")),
        ("vllm@a b:c", Checkout("a b:c")),
        ("my.plugin:make.planner", Factory("my.plugin", "make.planner")),
        ("vllm:planner", Factory("vllm", "planner")),
    ],
)
def test_forms(uri: str, meaning: object):
    assert parse(uri) == meaning


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "'' is no target: a target is reference, vllm, vllm==X, vllm@PATH or module:factory."),
        ("0.28.0", "'0.28.0' is no target"),
        ("vllm=0.28.0", "'vllm=0.28.0' is no target"),
        ("vllm-fork:x", "'vllm-fork:x' is no target"),
        ("a.py:", "'a.py:' is no target"),
        ("a:b:c", "'a:b:c' is no target"),
        ("\x1b[31m", r"'\x1b[31m' is no target"),
        ("vllm==", "'' in the target 'vllm==' is no version; write, say, vllm==0.28.0."),
        ("vllm==../x", "'../x' in the target 'vllm==../x' is no version"),
        ("vllm==0.28.*", "'0.28.*' in the target"),
        ("vllm@", "The target 'vllm@' names no folder; write vllm@PATH."),
    ],
)
def test_bad_forms_are_usage_errors(uri: str, message: str):
    with pytest.raises(UsageError) as caught:
        parse(uri)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("origin", "default"), [("/site/vllm/__init__.py", "vllm"), (None, "reference")]
)
def test_default_is_the_installed_vllm(
    monkeypatch: pytest.MonkeyPatch, origin: str | None, default: str
):
    module = types.ModuleType("vllm")
    module.__spec__ = ModuleSpec("vllm", None, origin=origin)
    monkeypatch.setitem(sys.modules, "vllm", module)
    assert default_target() == default


def test_a_module_without_a_spec_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    assert not vllm_is_installed()


def test_installed_vllm_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loading, "vllm_is_installed", lambda: False)
    with pytest.raises(TargetError, match="vLLM is not installed here"):
        prepare("vllm")


def test_wrong_path(tmp_path: Path):
    with pytest.raises(TargetError) as caught:
        prepare(f"vllm@{tmp_path}")
    assert str(caught.value) == (
        f"'{tmp_path}' is no checkout of vLLM: it has no vllm/v1/kv_cache_interface.py."
    )
    assert caught.value.exit_code == 3


def test_checkout_is_found_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "vllm" / "v1" / "kv_cache_interface.py"
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.chdir(tmp_path)
    assert prepare("vllm@.") == Prepared("vllm@.", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("__version__ = version = '0.28.0'\n", "0.28.0"),
        ('version: str\n__version__: str = "1.0.dev3+g12"\n', "1.0.dev3+g12"),
        ("__version__: str\n__version__ = '2'", "2"),
        ("raise SystemExit\n", "unknown"),
        (None, "unknown"),
    ],
)
def test_version_is_read_not_run(tmp_path: Path, text: str | None, version: str):
    (tmp_path / "vllm").mkdir()
    if text is not None:
        (tmp_path / "vllm" / "_version.py").write_text(text)
    assert source_version(tmp_path) == version


def test_reference_needs_no_torch():
    code = (
        "import sys; from kvfuzz.targets.load import load, prepare; "
        "target = load(prepare('reference')); "
        "print(target.version, target.surfaces, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{__version__} ('pack',) False\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that writes a module into the working directory and loads a factory of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"planner_of_{tmp_path.name}"

    def made(text: str, factory: str = "make") -> Any:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return load(prepare(f"{name}:{factory}"))

    return made


def test_factory_of_a_neutral_planner(module: Any):
    target = module("__version__ = '7'\ndef make(): return lambda specs: [list(specs)]\n")
    specs = {"a": target.translate(SPEC)}
    answer = target.call("pack", specs, ASKED)
    assert target.normalise("pack", answer, specs, {}) == Plan((Group(("a",), (1024,)),))
    assert (target.version, target.surfaces) == ("7", ("pack",))


def test_factory_of_a_whole_target(module: Any):
    target = module(
        "from kvfuzz.targets.base import NeutralTarget\n"
        "class Holder:\n"
        "    @staticmethod\n"
        "    def make(): return NeutralTarget('mine', lambda specs: None, '3')\n",
        "Holder.make",
    )
    assert (target.uri, target.version) == ("mine", "3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no function: .* has no callable make"),
        ("make = 3", "names no function"),
        ("def make(): return 3", "made neither a target nor a function of a mix, but int"),
        ("def make(): return 1 / 0", "failed: ZeroDivisionError: division by zero"),
        ("raise SystemExit('no')", "cannot be imported: SystemExit: no"),
        ("def make(:", "cannot be imported: SyntaxError"),
        ("import no_such_package", "cannot be imported: ModuleNotFoundError: No module named"),
        (
            "class T:\n    translate = page_size = another = state = call = normalise = print\n"
            "def make(): return T()",
            "made a target without a dialect, a version or surfaces",
        ),
    ],
)
def test_bad_factories(module: Any, text: str, message: str):
    with pytest.raises(TargetError, match=message) as caught:
        module(text)
    assert "\n" not in str(caught.value)


def test_no_such_module():
    with pytest.raises(TargetError, match=r"The target no\.such:thing names no module: No module"):
        load(Prepared("no.such:thing"))
