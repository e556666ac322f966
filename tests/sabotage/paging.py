"""Spec classes as vLLM has them, small, whose page is right or wrong in one way each."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from math import prod
from types import ModuleType
from typing import Any

import torch

from kvfuzz.targets.base import Target
from kvfuzz.targets.eras import adapt


class Mode(Enum):
    NONE = auto()
    INT8_PER_TOKEN_HEAD = auto()


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    block_size: int
    page_size_padded: int | None = None

    @property
    def unpadded_page_size_bytes(self) -> int:
        raise NotImplementedError

    @property
    def page_size_bytes(self) -> int:
        return self.page_size_padded or self.unpadded_page_size_bytes

    def copy_with_new_block_size(self, block_size: int) -> Any:
        return dataclasses.replace(self, block_size=block_size)

    @classmethod
    def merge(cls, specs: list[Any]) -> Any:
        return copy.deepcopy(specs[0])


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(KVCacheSpec):
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    kv_quant_mode: Mode = Mode.NONE
    alignment: int | None = None
    cache_dtype_str: str | None = None
    sliding_window: int | None = None
    looked: int = field(default=0, compare=False)

    @property
    def unpadded_page_size_bytes(self) -> int:
        cells = self.block_size * self.num_kv_heads
        if self.cache_dtype_str == "fp8_ds_mla":
            return cells * 656
        scales = 8 if self.kv_quant_mode is Mode.INT8_PER_TOKEN_HEAD else 0
        return cells * (2 * self.head_size * self.dtype.itemsize + scales)

    @property
    def page_size_bytes(self) -> int:
        size = self.page_size_padded or self.unpadded_page_size_bytes
        multiple = self.alignment or 1
        return multiple * -(-size // multiple)


@dataclass(frozen=True, kw_only=True)
class MambaSpec(KVCacheSpec):
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    @property
    def unpadded_page_size_bytes(self) -> int:
        return sum(prod(s) * d.itemsize for s, d in zip(self.shapes, self.dtypes, strict=True))


@dataclass(frozen=True, kw_only=True)
class NarrowMambaSpec(MambaSpec):
    dtypes: tuple[torch.dtype]  # type: ignore[assignment]


Page = Callable[[Any], int]


def interface_of(page: Page | None = None, mamba: type = MambaSpec, **members: Any) -> ModuleType:
    """A module of these classes, of which the full one has a page by `page` and these members."""
    interface = ModuleType("interface")
    if page is not None:
        members["page_size_bytes"] = property(page)
    full = type("FullAttentionSpec", (FullAttentionSpec,), {"__doc__": None, **members})
    mamba = type("MambaSpec", (mamba,), {"__doc__": None})
    vars(interface).update(
        KVCacheSpec=KVCacheSpec, FullAttentionSpec=full, MambaSpec=mamba, Mode=Mode
    )
    return interface


def target_of(
    page: Page | None = None, mamba: type = MambaSpec, uri: str = "sabotaged", **members: Any
) -> Target:
    """A target with such a module."""
    return adapt(interface_of(page, mamba, **members), ModuleType("utils"), uri, "0")


def _right(spec: Any) -> int:
    return FullAttentionSpec.page_size_bytes.fget(spec)  # type: ignore[attr-defined, no-any-return]


def forgets_alignment(spec: Any) -> int:
    """Gives a page of the bytes of its data, wherever the next one may begin."""
    return int(spec.page_size_padded or spec.unpadded_page_size_bytes)


def cuts_records_from_whole_kilobytes(spec: Any) -> int:
    """Rounds up a page of records only, so that two blocks are less than twice one."""
    page = _right(spec)
    if spec.cache_dtype_str == "fp8_ds_mla" and not spec.page_size_padded and not spec.alignment:
        return 1024 * -(-page // 1024)
    return page


def shares_records_between_heads(spec: Any) -> int:
    """Counts on many heads to store their records together, and well."""
    data = int(FullAttentionSpec.unpadded_page_size_bytes.fget(spec))  # type: ignore[attr-defined]
    shared = spec.cache_dtype_str == "fp8_ds_mla" and spec.num_kv_heads > 2
    return data // spec.num_kv_heads if shared else data


def asserts_on_a_window(spec: Any) -> int:
    """Does not expect a full layer with a window."""
    assert spec.sliding_window is None
    return _right(spec)


def counts_its_readers(spec: Any) -> int:
    """Keeps in the spec how often it was asked."""
    if spec.sliding_window is not None:
        object.__setattr__(spec, "looked", spec.looked + 1)
    return _right(spec)


class _Fickle:
    calls = 0


def _fickle_data(spec: Any) -> int:
    """Tells a byte less of the data every other time."""
    _Fickle.calls += 1
    data = FullAttentionSpec.unpadded_page_size_bytes.fget(spec)  # type: ignore[attr-defined]
    return int(data) - (_Fickle.calls % 2 if spec.sliding_window is not None else 0)


def forgets_what_it_told() -> Target:
    """Tells other bytes of a layer's data from call to call."""

    class Data:
        """The bytes of the data: right for the page, and fickle for who asks for them."""

        def __get__(self, spec: Any, _: type) -> Any:
            return self if spec is None else _fickle_data(spec)

    def page(spec: Any) -> int:
        size = spec.page_size_padded or FullAttentionSpec.unpadded_page_size_bytes.fget(spec)  # type: ignore[attr-defined]
        multiple = spec.alignment or 1
        return int(multiple * -(-size // multiple))

    return target_of(page, unpadded_page_size_bytes=Data())


def _by_page(page: Page) -> Callable[[], Target]:
    return lambda: target_of(page)


#: What is wrong -> the target, and the invariant that alone must catch it.
SABOTAGED: dict[str, tuple[Callable[[], Target], str]] = {
    "forgets_alignment": (_by_page(forgets_alignment), "page-size-arithmetic"),
    "cuts_records": (_by_page(cuts_records_from_whole_kilobytes), "page-size-scales"),
    "shares_records": (
        lambda: target_of(unpadded_page_size_bytes=property(shares_records_between_heads)),
        "page-size-monotone",
    ),
    "types_a_state_too_few": (lambda: target_of(mamba=NarrowMambaSpec), "round-trip"),
    "asserts_on_a_window": (_by_page(asserts_on_a_window), "plan-or-refusal"),
    "counts_its_readers": (_by_page(counts_its_readers), "pure"),
    "forgets_what_it_told": (forgets_what_it_told, "deterministic"),
}
