"""Spec classes as vLLM has them, small, whose `merge` is right or wrong in one way each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from types import ModuleType
from typing import Any

import torch

from kvfuzz.targets.base import Target
from kvfuzz.targets.eras import adapt


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    block_size: int

    @property
    def page_size_bytes(self) -> int:
        return self.block_size

    @classmethod
    def merge(cls, specs: list[Any]) -> Any:
        if any(spec != specs[0] for spec in specs):
            raise ValueError("all layers of a group must be equal")
        return copy.deepcopy(specs[0])


class Mode(Enum):
    NONE = auto()
    HALF = auto()


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(KVCacheSpec):
    head_size: int
    dtype: torch.dtype
    mode: Mode = Mode.NONE
    window: int | None = None
    causal: bool = True
    role: str = "default"
    odd: dict[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class MambaSpec(KVCacheSpec):
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]


@dataclass(frozen=True, kw_only=True)
class WholeSpecs(KVCacheSpec):
    """Holds the specs of other layers, and so is none of a layer."""

    specs: dict[str, KVCacheSpec]


Merge = Callable[[type, list[Any]], Any]


def target_of(merge: Merge | None = None, uri: str = "sabotaged") -> Target:
    """A target with these classes, of which the full one merges by `merge`."""
    interface = ModuleType("interface")
    # As dataclass annotations are found in vLLM's module.
    full = type("FullAttentionSpec", (FullAttentionSpec,), {"__doc__": None})
    if merge is not None:
        full.merge = classmethod(merge)  # type: ignore[attr-defined]
    vars(interface).update(
        KVCacheSpec=KVCacheSpec,
        FullAttentionSpec=full,
        MambaSpec=MambaSpec,
        WholeSpecs=WholeSpecs,
        Mode=Mode,
    )
    return adapt(interface, ModuleType("utils"), uri, "0")


def _first(specs: list[Any], **fields: Any) -> Any:
    first = specs[0]
    kept = {name: value for name, value in vars(first).items() if name not in fields}
    return type(first)(**kept, **fields)


def forgets_a_field(_: type, specs: list[Any]) -> Any:
    """Builds the merged spec anew, and leaves out a field that came later."""
    return _first(specs, mode=Mode.NONE)


def asserts_on_three(_: type, specs: list[Any]) -> Any:
    """Does not expect a third layer with a window."""
    assert len(specs) < 3 or specs[0].window is None
    return _first(specs)


def writes_into_the_first(_: type, specs: list[Any]) -> Any:
    """Takes the first layer's spec to keep its own notes in, once it has a window."""
    if specs[0].window is not None:
        object.__setattr__(specs[0], "role", "merged")
    return _first(specs)


class _Fickle:
    calls = 0


def refuses_every_other_time(_: type, specs: list[Any]) -> Any:
    """Refuses what it took before."""
    _Fickle.calls += 1
    if specs[0].window is not None and _Fickle.calls % 2:
        raise ValueError("this group cannot be merged now")
    return _first(specs)


#: Merge -> the invariant that alone must catch it.
SABOTAGED: dict[Merge, str] = {
    forgets_a_field: "nothing-lost",
    asserts_on_three: "plan-or-refusal",
    writes_into_the_first: "pure",
    refuses_every_other_time: "deterministic",
}
