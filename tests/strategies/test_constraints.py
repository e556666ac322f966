"""The table of what makes a spec valid."""

from __future__ import annotations

from typing import Any

import pytest

from kvfuzz.pages import FULL_DIALECT, Dialect
from kvfuzz.specs import KINDS, LayerSpec
from kvfuzz.strategies.constraints import CONSTRAINTS, FORMAT_DTYPES, MODE_DTYPES, broken
from tests.strategies.common import BARE_DIALECT, OLD_DIALECT


def _spec(kind: str = "mla_attention", **fields: Any) -> LayerSpec:
    base: dict[str, Any] = {
        "block_size": 16,
        "num_kv_heads": 1,
        "head_size": 64,
        "dtype": "uint8",
    }
    if kind == "sliding_window_mla":
        base["sliding_window"] = 128
    return KINDS[kind](**{**base, **fields})


def test_every_row_says_what_holds_and_where_that_comes_from() -> None:
    assert len({row.name for row in CONSTRAINTS}) == len(CONSTRAINTS)
    for row in CONSTRAINTS:
        assert row.claim.endswith("."), row.name
        assert row.source, row.name


@pytest.mark.parametrize(
    ("fields", "dialect", "expected"),
    [
        ({}, FULL_DIALECT, []),
        ({"block_size": 0}, FULL_DIALECT, ["counts"]),
        ({"compress_ratio": 4}, FULL_DIALECT, []),
        ({"compress_ratio": 3}, FULL_DIALECT, ["whole-states"]),
        ({"compress_ratio": 2, "model_version": "deepseek_v4"}, FULL_DIALECT, ["v4-ratio"]),
        ({"model_version": "deepseek_v3"}, FULL_DIALECT, ["model-version"]),
        ({"cache_dtype_str": "fp8_ds_mla"}, FULL_DIALECT, []),
        ({"cache_dtype_str": "fp8_ds_mla", "dtype": "int8"}, FULL_DIALECT, ["cache-format"]),
        ({"kv_quant_mode": "int8_per_token_head"}, FULL_DIALECT, ["quant-dtype"]),
        ({"kv_quant_mode": "int4_per_token_head", "head_size": 3}, FULL_DIALECT, ["int4-pairs"]),
        ({"sliding_window": 1, "attention_chunk_size": 1}, FULL_DIALECT, ["one-window"]),
        ({"page_size_padded": 1024}, FULL_DIALECT, []),
        ({"page_size_padded": 1023}, FULL_DIALECT, ["padding-holds"]),
        # 1,024 bytes of data, aligned to 1,100; the scales take 128 more.
        (
            {"kv_quant_mode": "fp8_per_token_head", "alignment": 1100},
            OLD_DIALECT,
            ["alignment-holds"],
        ),
        ({"kv_quant_mode": "fp8_per_token_head", "alignment": 1152}, OLD_DIALECT, []),
        ({"kv_quant_mode": "fp8_per_token_head", "alignment": 1100}, FULL_DIALECT, []),
        ({"alignment": 16}, BARE_DIALECT, ["expressible"]),
        ({"kv_quant_mode": "nvfp4"}, BARE_DIALECT, ["expressible"]),
    ],
)
def test_broken_names_the_rows(
    fields: dict[str, Any], dialect: Dialect, expected: list[str]
) -> None:
    assert broken(_spec(**fields), dialect) == expected


def test_tables_of_formats_and_modes_agree() -> None:
    # A mode that is a cache format of its own allows the same dtypes.
    for mode in MODE_DTYPES.keys() & FORMAT_DTYPES.keys():
        assert FORMAT_DTYPES[mode] == frozenset(MODE_DTYPES[mode])
