"""Calls as under `python -O`, and the rule that compares them with those that are not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType

import pytest

from kvfuzz.engine.session import Session
from kvfuzz.specs import Scenario, open_spec
from kvfuzz.targets.eras import VllmTarget, adapt
from kvfuzz.targets.optimized import WithoutAssertions, modules_of
from tests.unit import engine_planner

FULL = open_spec("full_attention", {"block_size": 16, "head_size": 4, "dtype": "float32"})
SHORT = open_spec("full_attention", {"block_size": 8, "head_size": 4, "dtype": "float32"})
TWO = Scenario((("layers.0", FULL), ("layers.1", SHORT)))


def plain(number: int) -> int:
    assert number > 0, "too small"
    return number


@cache
def cached(number: int) -> int:
    assert number > 0
    return number


class Kept:
    number = -1

    @property
    def prop(self) -> int:
        assert self.number > 0
        return self.number

    @cached_property
    def once(self) -> int:
        assert self.number > 0
        return self.number

    @staticmethod
    def static(number: int) -> int:
        assert number > 0
        return number

    @classmethod
    def of_class(cls) -> int:
        assert cls.number > 0
        return cls.number

    def bound(self) -> int:
        def inner() -> int:
            assert self.number > 0
            return self.number

        return inner()


KEPT = Kept()
CALLS: dict[str, Callable[[], int]] = {
    "function": lambda: plain(-1),
    "cache": lambda: cached.__wrapped__(-1),
    "property": lambda: Kept().prop,
    "cached property": lambda: Kept().once,
    "static method": lambda: Kept.static(-1),
    "class method": Kept.of_class,
    "method, and a function in it": lambda: Kept().bound(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_assertions_are_left_out_within_it_alone(call: Callable[[], int]):
    without = WithoutAssertions([sys.modules[__name__]])
    with without():
        assert call() == -1
    with pytest.raises(AssertionError):
        call()


def test_what_a_bound_method_is_bound_to_is_reached():
    module = ModuleType("patched")
    module.call = KEPT.bound  # type: ignore[attr-defined]
    with WithoutAssertions([module])():
        assert (KEPT.prop, KEPT.bound()) == (-1, -1)


def test_a_failure_within_it_brings_the_assertions_back():
    without = WithoutAssertions([sys.modules[__name__]])
    with pytest.raises(ZeroDivisionError), without():
        plain(0 // 0)
    with pytest.raises(AssertionError, match="too small"):
        plain(0)


def test_functions_without_a_source_stay_as_they_are():
    module = ModuleType("made")
    exec("def call():\n    assert False\n    return 1\n", vars(module))
    with WithoutAssertions([module])(), pytest.raises(AssertionError):
        module.call()


def test_modules_are_taken_once_and_as_loaded():
    here = sys.modules[__name__]
    assert modules_of(here, None, named=["sys", __name__, "not.loaded"]) == (here, sys)


# The rule.


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VllmTarget]:
    """A planner that decides by an assertion, in a package of its own."""
    engine_planner.install(tmp_path, "asserts")
    monkeypatch.syspath_prepend(tmp_path)
    names = ("vllm.v1.kv_cache_interface", "vllm.v1.core.kv_cache_utils")
    yield adapt(*map(importlib.import_module, names), "vllm", "1")
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.mark.parametrize("surface", ["groups", "config"])
def test_a_decision_by_an_assertion_is_found(installed: VllmTarget, surface: str):
    (violation,) = Session(installed, surface).judge(TWO, only="optimized-agrees")
    assert violation.symptom == "planned otherwise"
    assert violation.got == "groups {layers.0} {layers.1}; under -O groups {layers.1} {layers.0}"


def test_who_has_no_source_is_not_judged(installed: VllmTarget):
    del installed.optimized
    assert Session(installed, "groups").judge(TWO) == []
