"""The layers of published models, as the caches that they keep.

A model's layers are a short pattern of forms that repeats. The numbers are
those of the `config.json` that it was published with, under the names that
these files have for them; what an engine decides is not here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kvfuzz.specs import Value

#: States as (dtype, what ranks divide, then what they do not); "model" is the model's own dtype.
States = tuple[tuple[str | int, ...], ...]


class Form(msgspec.Struct, frozen=True):
    """A layer's cache on one rank of one: its kind, and the fields that the model decides.

    Attributes:
        kind: As a catalogue names it.
        fields: (name, value); a block size or dtype that is among them holds as it is.
        states: What a recurrent layer keeps instead of keys and values.
    """

    kind: str
    fields: tuple[tuple[str, Value], ...] = ()
    states: States = ()


class Architecture(msgspec.Struct, frozen=True):
    """A model's caches: `lead`, then `pattern` so many times, then `tail`.

    Attributes:
        name: The model's.
        pattern: Forms that repeat, in order; a layer may have more caches than one.
        repeats: How often, as published.
        lead: What comes before.
        tail: What comes after.
        draft: The caches of its own draft layer; empty if it is like the last that attends.
    """

    name: str
    pattern: tuple[Form, ...]
    repeats: int
    lead: tuple[Form, ...] = ()
    tail: tuple[Form, ...] = ()
    draft: tuple[Form, ...] = ()


def _form(kind: str, /, **fields: Value) -> Form:
    return Form(kind, tuple(fields.items()))


def _full(heads: int, head_size: int, /, **own: Value) -> Form:
    return _form("full_attention", num_kv_heads=heads, head_size=head_size, **own)


def _window(tokens: int, heads: int, head_size: int, /, **own: Value) -> Form:
    sizes: dict[str, Value] = {"num_kv_heads": heads, "head_size": head_size}
    return _form("sliding_window", sliding_window=tokens, **sizes, **own)


def _mla(head_size: int, kind: str = "mla_attention", /, **own: Value) -> Form:
    return _form(kind, num_kv_heads=1, head_size=head_size, max_tp_shards=1, **own)


def _state(*states: tuple[str | int, ...]) -> Form:
    return Form("mamba", states=states)


# MLA keeps kv_lora_rank 512 and qk_rope_head_dim 64 of a token.
_LATENT: Final = _mla(576)
# With sparse attention: a record of 656 bytes (512 fp8, 4 scales of 4, 64 rotary of 2), and the
# indexer's key, index_head_dim 128 in fp8 and one scale of 4.
_RECORD: Final[dict[str, Value]] = {"dtype": "uint8", "kv_quant_mode": "fp8_per_tensor"}
_SPARSE: Final = _mla(
    576, block_size=64, cache_dtype_str="fp8_ds_mla", state_content_bytes=656, **_RECORD
)
_INDEX: Final[dict[str, Value]] = {"dtype": "uint8", "cache_role": "indexer"}
_INDEXER: Final = _mla(132, **_INDEX)
_SPARSE_INDEXER: Final = _mla(132, block_size=64, **_INDEX)

# DeepSeek V4: head_dim 512 as records of 584 bytes, window 128, compress_ratios 4 and 128, an
# indexer where it is 4, and the compressors' running states in float32; see `deepseek`.
_V4: Final[dict[str, Value]] = {
    "cache_dtype_str": "fp8_ds_mla",
    "state_content_bytes": 584,
    "model_version": "deepseek_v4",
    "alignment": 576,
    **_RECORD,
}


def _v4_state(window: int, block: int, size: int) -> Form:
    own: dict[str, Value] = {"sliding_window": window, "block_size": block, "dtype": "float32"}
    return _mla(size, "sliding_window_mla", alignment=576, **own)


_V4_WINDOW: Final = _mla(512, "sliding_window_mla", block_size=64, sliding_window=128, **_V4)
_V4_INDEX: Final[dict[str, Value]] = {"block_size": 256, "dtype": "uint8", "alignment": 576}
_V4_BY_4: Final = (
    _V4_WINDOW,
    _mla(512, block_size=256, compress_ratio=4, **_V4),
    _v4_state(8, 4, 2048),
    _mla(132, compress_ratio=4, **_V4_INDEX),
    _v4_state(8, 4, 512),
)
_V4_BY_128: Final = (
    _V4_WINDOW,
    _mla(512, block_size=256, compress_ratio=128, **_V4),
    _v4_state(128, 8, 1024),
)

_GROUPED: Final = _full(8, 128)
_CHUNKED: Final = _form(
    "chunked_local_attention", num_kv_heads=8, head_size=128, attention_chunk_size=8192
)
_MIMO_FULL: Final = _full(4, 192, head_size_v=128)
_MIMO_WINDOW: Final = _window(128, 8, 192, head_size_v=128)
# Mamba-2 of 128 heads of 64, ssm_state_size 128, 8 groups: x, B and C pass the convolution of 4.
_MAMBA2: Final = _state(("model", 10240, 3), ("float32", 128, 64, 128))
# Mamba-1: hidden_size 4096, expand 2, d_state 16, d_conv 4.
_MAMBA1: Final = _state(("model", 8192, 3), ("model", 8192, 16))
# Lightning attention: 64 heads of 128, a state of key by value each.
_LIGHTNING: Final = _state(("model", 64, 128, 128))
# Gated delta nets: 16 key heads and 32 or 64 value heads, all of 128, convolution of 4.
_DELTA: Final = _state(("model", 8192, 3), ("model", 32, 128, 128))
_LARGE_DELTA: Final = _state(("model", 12288, 3), ("float32", 64, 128, 128))
# Kimi delta attention: 32 heads of 128 for query, key and value, convolution of 4.
_KIMI_DELTA: Final = _state(("model", 12288, 3), ("float32", 32, 128, 128))
# A convolution of 3 alone (conv_L_cache) over hidden_size 2048.
_CONV: Final = _state(("model", 2048, 2))

#: Simplest first: of one form, of several, with states.
ARCHITECTURES: Final = (
    # Qwen3-8B: 36 layers.
    Architecture("Qwen3", (_GROUPED,), 36),
    # Mistral-7B-v0.1: sliding_window 4096 in all 32.
    Architecture("Mistral", (_window(4096, 8, 128),), 32),
    # Phi-3-mini-4k: 32 heads of 3072 / 32, none shared, and a window that no block divides.
    Architecture("Phi-3", (_window(2047, 32, 96),), 32),
    # GLM-4.5: 92 layers, num_nextn_predict_layers 1.
    Architecture("GLM-4.5", (_GROUPED,), 92),
    # DeepSeek-V3 and Kimi-K2: 61 layers; they differ in what is not cached.
    Architecture("DeepSeek V3", (_LATENT,), 61),
    Architecture("Kimi K2", (_LATENT,), 61),
    # gpt-oss-120b: 36 layers in turn, the one with sliding_window 128 first.
    Architecture("gpt-oss", (_window(128, 8, 64), _full(8, 64)), 18),
    # Gemma-3-27b: five with sliding_window 1024, then one without; 62 = 10 * 6 + 2.
    Architecture(
        "Gemma 3",
        5 * (_window(1024, 16, 128),) + (_full(16, 128),),
        10,
        tail=2 * (_window(1024, 16, 128),),
    ),
    # Gemma-4-31B: the same over 60, but 4 heads of global_head_dim 512 where there is no window.
    Architecture("Gemma 4", 5 * (_window(1024, 16, 256),) + (_full(4, 512),), 10),
    # MiMo-V2-Flash: 48 layers, full at 0, 5, 11, 17 ...; heads of 192 whose values have 128, 4 of
    # them or 8 with a window; its draft layers have the window.
    Architecture(
        "MiMo V2",
        5 * (_MIMO_WINDOW,) + (_MIMO_FULL,),
        7,
        lead=(_MIMO_FULL, *4 * (_MIMO_WINDOW,), _MIMO_FULL),
        draft=(_MIMO_WINDOW,),
    ),
    # Llama-4-Scout: 48 layers, three with attention_chunk_size 8192, then one that sees all.
    Architecture("Llama 4", 3 * (_CHUNKED,) + (_GROUPED,), 12),
    # Whisper-large-v3: 32 decoder layers of 20 heads, each with the encoder's keys beside its own.
    Architecture(
        "Whisper", (_full(20, 64), _form("cross_attention", num_kv_heads=20, head_size=64)), 32
    ),
    # DeepSeek-V3.2: 61 layers, GLM-5: 78; index_head_dim 128. GLM-5 here in the model's dtype.
    Architecture("DeepSeek V3.2", (_SPARSE, _SPARSE_INDEXER), 61, draft=(_SPARSE, _SPARSE_INDEXER)),
    Architecture("GLM-5", (_LATENT, _INDEXER), 78, draft=(_LATENT, _INDEXER)),
    # MiniMax-Text-01: attn_type_list is seven times 0, then 1, over 80 layers.
    Architecture("MiniMax-01", 7 * (_LIGHTNING,) + (_GROUPED,), 10),
    # Jamba-v0.1: attn_layer_period 8, attn_layer_offset 4, over 32 layers.
    Architecture("Jamba", 4 * (_MAMBA1,) + (_GROUPED,) + 3 * (_MAMBA1,), 4),
    # LFM2-1.2B: 16 layers, full_attn_idxs 2, 5, 8, 10, 12, 14.
    Architecture(
        "LFM2",
        (_CONV, _full(8, 64)),
        3,
        lead=3 * (_CONV, _CONV, _full(8, 64)),
        tail=(_CONV,),
    ),
    # Nemotron-H-8B: hybrid_override_pattern without what has no cache: 24 mixers, 4 attentions.
    Architecture(
        "Nemotron-H",
        5 * (_MAMBA2,) + (_GROUPED,),
        3,
        lead=4 * (_MAMBA2,) + (_GROUPED,),
        tail=5 * (_MAMBA2,),
    ),
    # Qwen3-Next-80B-A3B: full_attention_interval 4 over 48 layers; Qwen3.5-397B-A17B: over 60.
    Architecture("Qwen3-Next", 3 * (_DELTA,) + (_full(2, 256),), 12),
    Architecture("Qwen3.5", 3 * (_LARGE_DELTA,) + (_full(2, 256),), 15),
    # Kimi-Linear-48B-A3B: 27 layers, MLA in 4, 8 ... 24 and 27, counted from 1.
    Architecture(
        "Kimi Linear",
        3 * (_KIMI_DELTA,) + (_LATENT,),
        6,
        tail=2 * (_KIMI_DELTA,) + (_LATENT,),
    ),
    # DeepSeek-V4-Flash: compress_ratios 0, 0, then 4 and 128 in turn, 43 layers, and 0 for MTP.
    Architecture(
        "DeepSeek V4",
        _V4_BY_4 + _V4_BY_128,
        20,
        lead=2 * (_V4_WINDOW,),
        tail=_V4_BY_4,
        draft=(_V4_WINDOW,),
    ),
)

#: Draft models that are not a model's own, by what they keep: all tokens (as Eagle's layer of
#: Llama), a window, or the target's hidden states, here those of three layers with 4096.
DRAFTS: Final = {
    "full": _GROUPED,
    "window": _window(2048, 8, 128),
    "hidden": _form("hidden_state_cache", num_kv_heads=3, head_size=4096),
}
