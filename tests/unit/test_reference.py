"""The reference planner: the three seed tests, and the mixes that upstream stumbles over."""

from __future__ import annotations

from kvfuzz.reference import group_and_unify_kv_cache_specs as pack
from kvfuzz.specs import MLAAttentionSpec, SlidingWindowMLASpec


def mla(head_size: int = 576, block_size: int = 16) -> MLAAttentionSpec:
    return MLAAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=head_size, dtype="float32"
    )


def window(
    head_size: int = 576, block_size: int = 16, sliding_window: int = 128
) -> SlidingWindowMLASpec:
    return SlidingWindowMLASpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=head_size,
        dtype="float32",
        sliding_window=sliding_window,
    )


def test_no_sliding_window_layer_is_none():
    assert pack({"a": mla(), "b": mla(1024)}) is None


def test_one_page_size_is_none():
    assert pack({"a": mla(), "b": window()}) is None


def test_two_page_sizes_are_two_groups():
    assert pack({"a": mla(), "b": mla(), "c": window(1024)}) == [["a", "b"], ["c"]]


def test_nothing_is_none():
    assert pack({}) is None


def test_no_full_layer():
    assert pack({"a": window(), "b": window(1024), "c": window()}) == [["a", "c"], ["b"]]


def test_several_block_sizes_of_full_layers():
    mix = {"a": mla(), "b": mla(block_size=32), "c": window()}
    assert pack(mix) == [["a"], ["b"], ["c"]]


def test_several_page_sizes_of_full_layers():
    assert pack({"a": mla(), "b": mla(64), "c": window()}) == [["a"], ["b"], ["c"]]


def test_windows_and_block_sizes_are_kept_apart():
    mix = {
        "a": mla(),
        "b": window(64, sliding_window=8),
        "c": window(64, sliding_window=4),
        "d": window(32, block_size=32, sliding_window=8),
    }
    assert pack(mix) == [["a"], ["b"], ["c"], ["d"]]


def test_groups_come_in_order_of_first_appearance():
    mix = {"a": window(64), "b": mla(), "c": window(64), "d": mla()}
    assert pack(mix) == [["a", "c"], ["b", "d"]]
