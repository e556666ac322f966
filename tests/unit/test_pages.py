"""Page-size arithmetic by hand, rule by rule; live tests compare it with real classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvfuzz.pages import FULL_DIALECT, Dialect, PageRules, mix_page_sizes, page_size_bytes
from kvfuzz.specs import (
    DTYPE_BYTES,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    scenario_of,
)

NEW = PageRules()
OLD = PageRules(
    value_head=False, ds_mla_records=True, v4_windows_are_records=True, per_token_head_scales=True
)


def mla(**fields: Any) -> MLAAttentionSpec:
    plain = {"block_size": 16, "num_kv_heads": 1, "head_size": 576, "dtype": "bfloat16"}
    return MLAAttentionSpec(**(plain | fields))


def window(**fields: Any) -> SlidingWindowMLASpec:
    plain = {
        "block_size": 16,
        "num_kv_heads": 1,
        "head_size": 576,
        "dtype": "bfloat16",
        "sliding_window": 128,
    }
    return SlidingWindowMLASpec(**(plain | fields))


@pytest.mark.parametrize("name", DTYPE_BYTES)
def test_dtype_table_agrees_with_torch(name: str):
    assert torch.empty(0, dtype=getattr(torch, name)).element_size() == DTYPE_BYTES[name]


@pytest.mark.parametrize(
    ("fields", "new", "old"),
    [
        ({}, 16 * 576 * 2, 16 * 576 * 2),
        ({"num_kv_heads": 3}, 3 * 16 * 576 * 2, 3 * 16 * 576 * 2),
        ({"dtype": "uint8"}, 16 * 576, 16 * 576),
        ({"compress_ratio": 4}, 4 * 576 * 2, 4 * 576 * 2),
        ({"page_size_padded": 20_000}, 20_000, 20_000),
        ({"alignment": 1000}, 19_000, 19_000),
        ({"alignment": 576}, 16 * 576 * 2, 16 * 576 * 2),
        ({"head_size_v": 64}, 16 * 640 * 2, 16 * 576 * 2),
        ({"kv_quant_mode": "int8_per_token_head"}, 16 * 576 * 2, 16 * 576 * 2 + 2 * 16 * 4),
        ({"num_head_slots": 2}, 2 * 16 * 576 * 2, None),
        ({"state_content_bytes": 656}, 16 * 656, None),
    ],
)
@pytest.mark.parametrize("make", [mla, window])
def test_both_kinds(make: Any, fields: dict[str, Any], new: int, old: int | None):
    assert page_size_bytes(make(**fields), NEW) == new
    if old is not None:
        assert page_size_bytes(make(**fields), OLD) == old


def test_deepseek_records():
    v3 = {"cache_dtype_str": "fp8_ds_mla", "dtype": "uint8"}
    v4 = v3 | {"model_version": "deepseek_v4", "compress_ratio": 4, "block_size": 256}
    assert page_size_bytes(mla(**v3), OLD) == 16 * 656
    assert page_size_bytes(mla(**v4), OLD) == 64 * 584
    assert page_size_bytes(mla(**v4, alignment=576), OLD) == 37_440
    assert page_size_bytes(window(**v4), OLD) == 64 * 584
    # A window has no V3 record, and since 0.28 the backend says what it packs.
    assert page_size_bytes(window(**v3), OLD) == 16 * 576
    assert page_size_bytes(mla(**v3), NEW) == 16 * 576


def test_v4_windows_had_records_whatever_their_format():
    spec = window(model_version="deepseek_v4")
    assert page_size_bytes(spec, OLD) == 16 * 584
    assert page_size_bytes(spec, PageRules(ds_mla_records=True)) == 16 * 576 * 2


def test_int4_packed_full_layers_only():
    rules = PageRules(int4_packs_mla=True, value_head=False)
    mode = {"kv_quant_mode": "int4_per_token_head", "dtype": "uint8"}
    assert page_size_bytes(mla(**mode), rules) == 16 * 288
    assert page_size_bytes(window(**mode), rules) == 16 * 576


def test_padding_below_the_data_is_refused():
    with pytest.raises(ValueError, match="padded to 100 bytes cannot hold its 18432 bytes"):
        page_size_bytes(mla(page_size_padded=100), NEW)


def test_mix_page_sizes_are_in_order():
    mix = scenario_of({"b": mla(), "a": window(head_size=64)})
    assert list(mix_page_sizes(mix, NEW).items()) == [("b", 18_432), ("a", 2_048)]


def test_dialect_says_what_it_lacks():
    dialect = Dialect(
        rules=OLD,
        fields={"mla_attention": frozenset({"block_size", "num_kv_heads", "head_size", "dtype"})},
        quant_modes=frozenset({"none"}),
    )
    assert dialect.lacks(mla()) is None
    assert (
        dialect.lacks(mla(alignment=4)) == "no field alignment in the spec class of mla_attention"
    )
    assert dialect.lacks(window()) == "no spec class for the kind sliding_window_mla"
    assert FULL_DIALECT.lacks(window(kv_quant_mode="turboquant")) is None


def test_dialect_knows_its_quantisation_modes():
    fields = {"mla_attention": FULL_DIALECT.fields["mla_attention"]}
    dialect = Dialect(rules=OLD, fields=fields, quant_modes=frozenset({"none"}))
    assert dialect.lacks(mla(kv_quant_mode="nvfp4")) == "no quantisation mode nvfp4"
