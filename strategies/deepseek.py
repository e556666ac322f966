"""The caches of DeepSeek V4, the model that packing was made for.

One decoder layer of it has up to five caches: the compressed main cache, the
sliding window beside it, the indexer's keys, and the running states of the
compressors, which are small-block sliding windows in float32. Source:
`vllm/models/deepseek_v4/{attention,compressor}.py` and
`vllm/v1/attention/backends/mla/sparse_swa.py`, vLLM 0.25 and 0.28.
"""

from __future__ import annotations

from typing import Any, Final

from kvfuzz.pages import DS_V4_RECORD_BYTES, Dialect
from kvfuzz.specs import KINDS, LayerSpec

_MLA: Final = "mla_attention"
_WINDOW: Final = "sliding_window_mla"

#: Cache formats that the model is served in, simplest first.
V4_FORMATS: Final = ("fp8_ds_mla", "bfloat16")

#: Fields without which a dialect cannot tell V4's caches from plain ones.
_NEEDED: Final = frozenset({"alignment", "cache_dtype_str", "compress_ratio", "model_version"})


def has_v4(dialect: Dialect) -> bool:
    """Whether the caches of DeepSeek V4 can be expressed in `dialect`."""
    return all(_NEEDED.issubset(dialect.fields.get(kind, ())) for kind in (_MLA, _WINDOW))


def v4_specs(dialect: Dialect, cache_format: str) -> tuple[LayerSpec, ...]:
    """The seven distinct caches of the model in one of `V4_FORMATS`.

    Their order makes nearly every run of neighbours a mix worth asking about:
    the first two share a page size and the third has another.

    Raises:
        ValueError: The dialect cannot express them.
    """
    if not has_v4(dialect):
        raise ValueError("the dialect has no fields for DeepSeek V4's caches")
    records = cache_format == "fp8_ds_mla"
    aligned: dict[str, Any] = {"num_kv_heads": 1, "alignment": 576 if records else 512}

    def main(kind: str, **own: Any) -> LayerSpec:
        fields = {
            **aligned,
            "head_size": 512,
            "dtype": "uint8" if records else "bfloat16",
            "cache_dtype_str": cache_format,
            "model_version": "deepseek_v4",
            **own,
        }
        if records and "fp8_per_tensor" in dialect.quant_modes:
            fields["kv_quant_mode"] = "fp8_per_tensor"
        if records and "state_content_bytes" in dialect.fields[kind]:
            fields["state_content_bytes"] = DS_V4_RECORD_BYTES
        return KINDS[kind](**fields)

    def state(ratio: int, block: int, head: int) -> LayerSpec:
        # Ratio 4 overlaps its neighbours, and so keeps twice the state for
        # twice the window: key-value and score states of both.
        overlap = 2 if ratio == 4 else 1
        return KINDS[_WINDOW](
            **aligned,
            block_size=block,
            head_size=2 * overlap * head,
            dtype="float32",
            sliding_window=overlap * ratio,
        )

    return (
        main(_MLA, block_size=256, compress_ratio=4),
        main(_WINDOW, block_size=64, sliding_window=128),
        main(_MLA, block_size=256, compress_ratio=128),
        state(4, 4, 512),
        # The indexer's keys: 128 bytes and one scale of 4.
        KINDS[_MLA](**aligned, block_size=256, head_size=132, dtype="uint8", compress_ratio=4),
        state(128, 8, 512),
        state(4, 4, 128),
    )
