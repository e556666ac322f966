"""Public bugs of vLLM's planner, as mixes: what `bug_zoo.py` looks for.

Nothing of kvfuzz knows these: they only say which finding is which bug. Sources are vLLM's
public issues and pull requests, by number; those without one were met while others were tried.
"""

from __future__ import annotations

from typing import Any

import msgspec

Layer = dict[str, Any]


def full(block: int = 16, heads: int = 8, size: int = 128, **more: Any) -> Layer:
    return _attention("full_attention", block, heads, size, more)


def window(
    block: int = 16, tokens: int = 1024, heads: int = 8, size: int = 128, **more: Any
) -> Layer:
    return _attention("sliding_window", block, heads, size, {"sliding_window": tokens, **more})


def mla(size: int = 576, block: int = 64, **more: Any) -> Layer:
    return _attention("mla_attention", block, 1, size, more)


def mla_window(size: int = 576, block: int = 64, tokens: int = 128, **more: Any) -> Layer:
    return _attention("sliding_window_mla", block, 1, size, {"sliding_window": tokens, **more})


def hidden(layers: int, size: int = 4096, block: int = 16) -> Layer:
    return _attention("hidden_state_cache", block, layers, size, {})


def states(floats: int, block: int = 16, **more: Any) -> Layer:
    return {
        "kind": "mamba", "block_size": block, "shapes": [[floats]], "dtypes": ["float32"], **more
    }  # fmt: skip


def _attention(kind: str, block: int, heads: int, size: int, more: dict[str, Any]) -> Layer:
    own = {"block_size": block, "num_kv_heads": heads, "head_size": size, "dtype": "bfloat16"}
    return {"kind": kind, **own, **more}


def deepseek_v4() -> list[Layer]:
    """Layers of DeepSeek V4: two compress ratios, indexers and windows, all of bytes."""
    own = {"dtype": "uint8", "block": 256}
    by_4 = [mla(512, compress_ratio=4, **own), mla(132, compress_ratio=4, **own)]
    return [
        *3 * by_4,
        *3 * [mla(512, compress_ratio=128, **own)],
        *6 * [mla_window(512, dtype="uint8")],
    ]


class Bug(msgspec.Struct, frozen=True):
    """A bug.

    Attributes:
        id: Its name here.
        reference: Where upstream speaks of it; "" if nowhere.
        release: One that has it.
        surface: Where it shows.
        invariants: Rules any of which catches it.
        layers: The mix.
        scenario: What else the scenario holds.
        most: Layers that a shrunk finding may have; those of the mix if 0.
    """

    id: str
    reference: str
    release: str
    surface: str
    invariants: tuple[str, ...]
    layers: list[Layer]
    scenario: dict[str, Any] = {}
    most: int = 0


_OFF = {"config": {"hybrid_manager": False}}
_REFUSED = ("necessary-refusal", "refusal-says-why")
_CRASH = ("plan-or-refusal",)
_ACCOUNT = ("one-accounting",)
_WASTE = ("bounded-overhead",)

BUGS = (
    Bug(
        "uniform MLA packed",
        "#48256",
        "0.25.1",
        "pack",
        ("uniform-is-none",),
        [mla(), mla(), mla_window(), mla_window()],
    ),
    Bug("state page scaled", "#43626", "0.20.0", "groups", _CRASH, [full(), states(8192)]),
    Bug("pages do not divide", "#41153", "0.20.0", "groups", _REFUSED, [full(), window(size=96)]),
    Bug(
        "MLA beside a larger state",
        "ascend #14575",
        "0.33.0",
        "groups",
        _REFUSED,
        [mla(), states(100_000)],
    ),
    Bug(
        "MLA with a window draft",
        "ascend #13213",
        "0.25.1",
        "groups",
        _REFUSED,
        [mla(), mla(), window(64)],
    ),
    Bug(
        "unlike blocks, manager off",
        "#48817",
        "0.25.1",
        "groups",
        _REFUSED,
        [full(64), window(16)],
        _OFF,
    ),
    Bug(
        "states, manager off",
        "#42911",
        "0.33.0",
        "groups",
        _REFUSED,
        [full(), states(16_384)],
        _OFF,
    ),
    Bug(
        "window of MLA loses its mode",
        "",
        "0.33.0",
        "merge",
        ("nothing-lost",),
        2 * [mla_window(kv_quant_mode="fp8_per_tensor")],
    ),
    Bug(
        "promotion loses the mode",
        "",
        "0.25.1",
        "groups",
        ("nothing-lost", "group-attributes-true"),
        # The window first: a group has the mode of its first layer.
        [mla_window(kv_quant_mode="fp8_per_tensor"), mla(kv_quant_mode="fp8_per_tensor")],
        _OFF,
    ),
    Bug(
        "hidden states among MLA",
        "#53243",
        "0.25.1",
        "config",
        _WASTE,
        [*deepseek_v4(), hidden(4, block=256)],
    ),
    Bug(
        "row larger than a page",
        "#51016",
        "0.25.1",
        "groups",
        _CRASH,
        [*2 * [full(16, 1, 64)], *2 * [window(16, heads=1, size=64)], hidden(3)],
    ),
    Bug(
        "hidden states billed as the widest",
        "#56774",
        "0.33.0",
        "config",
        _WASTE,
        [*24 * [mla()], *48 * [states(18_432)], hidden(3)],
        {"config": {"max_model_len": 65536}},
    ),
    Bug(
        "rank billed for the whole model",
        "#43755",
        "0.25.1",
        "config",
        ("accepts-what-fits",),
        deepseek_v4(),
        {"config": {"max_model_len": 65536, "spare_blocks": 0}, "ranks": 7 * [0] + 8 * [1]},
    ),
    Bug(
        "null block not reserved",
        "#35541",
        "0.28.0",
        "config",
        _ACCOUNT,
        [full()],
        {"config": {"max_model_len": 256, "spare_blocks": -1}},
    ),
    Bug(
        "null block not reserved, auto-fit",
        "#48724",
        "0.28.0",
        "config",
        _ACCOUNT,
        [full()],
        {"config": {"max_model_len": 512, "auto_fit": True, "spare_blocks": -17}},
    ),
    Bug(
        "override not checked",
        "#27181",
        "0.20.0",
        "config",
        _ACCOUNT,
        [full()],
        {"config": {"num_gpu_blocks_override": 4}},
    ),
    Bug(
        "override of no blocks",
        "#41069",
        "0.20.0",
        "config",
        _CRASH,
        [full()],
        {"config": {"num_gpu_blocks_override": 0}},
    ),
    Bug(
        "pages padded in frozen specs",
        "#48993",
        "0.25.1",
        "groups",
        ("pure",),
        [*2 * [mla(compress_ratio=4)], *2 * [mla_window(100)]],
    ),
    Bug(
        "one odd layer, many groups",
        "#51742",
        "0.33.0",
        "config",
        _WASTE,
        [*30 * [states(16_384)], *10 * [full()], *5 * [window()], full(32, 4)],
    ),
    Bug(
        "growing layers split",
        "",
        "0.33.0",
        "config",
        _WASTE,
        [*11 * [full()], *33 * [states(16_384)], *5 * [window()]],
        {"config": {"max_model_len": 131072}},
    ),
    Bug(
        "drafts scattered",
        "#35062",
        "0.33.0",
        "groups",
        ("drafts-together",),
        [*10 * [full()], *33 * [window()]],
        {"drafts": 3},
    ),
    Bug(
        "draft group not marked",
        "#55390",
        "0.30.0",
        "config",
        ("drafts-marked",),
        [*3 * [states(16_384)], *2 * [full()]],
        {"drafts": 1, "config": {"speculative_method": "mtp"}},
    ),
    Bug(
        "window of some claimed of all",
        "#51756",
        "0.33.0",
        "groups",
        ("group-attributes-true",),
        [full(), full(sliding_window=1024)],
    ),
    Bug(
        "causality of some claimed of all",
        "",
        "0.28.0",
        "groups",
        ("group-attributes-true",),
        [mla(), mla(non_causal_multi_token_decode=True)],
    ),
    Bug(
        "group of no kind",
        "#51218",
        "0.27.1",
        "groups",
        ("group-attributes-true",),
        [full(64), mla(132)],
    ),
    Bug(
        "two states typed as one",
        "#36797",
        "0.28.0",
        "page",
        ("round-trip",),
        [{"kind": "mamba", "block_size": 16, "shapes": [[16], [16]], "dtypes": 2 * ["float32"]}],
    ),
    Bug(
        "a state layer lost", "", "0.28.0", "groups", ("partition",), [*deepseek_v4(), states(8192)]
    ),
    Bug(
        "windows of two pages",
        "",
        "0.28.0",
        "groups",
        _CRASH,
        [
            *deepseek_v4()[:-6],
            *3 * [mla_window(512, dtype="uint8")],
            mla_window(256, dtype="uint8"),
        ],
    ),
    Bug("merge is not itself", "", "0.33.0", "merge", ("nothing-lost",), 2 * [mla(alignment=576)]),
    Bug(
        "hidden states taken for MLA",
        "",
        "0.33.0",
        "groups",
        ("group-attributes-true",),
        [mla(256, 16), hidden(1, 256)],
    ),
    Bug(
        "window dearer than all",
        "",
        "0.33.0",
        "groups",
        ("bounded-never-dearer",),
        [window(), full()],
        {"config": {"max_model_len": 128}},
    ),
    Bug(
        "windows of MLA alone",
        "",
        "0.28.0",
        "groups",
        _CRASH,
        [mla_window(), mla_window(288, tokens=256)],
    ),
    Bug("caller's dict rewritten", "", "0.33.0", "groups", ("pure",), [full(), window()], _OFF),
)

#: Confirmed bugs that are a difference of two releases: what `kvfuzz diff` of these shows.
BY_DIFF = {
    "mixed precision counted anew (#49696)": (
        "0.26.0",
        "0.27.1",
        "config",
        "needs_kv_cache_zeroing",
    ),
    "MLA's mix refused, layers outermost": (
        "0.28.0",
        "0.29.0",
        "groups",
        "refused by vllm==0.29.0",
    ),
}

#: Confirmed bugs that no surface of kvfuzz reaches, and why.
OUT_OF_REACH = {
    "ranks list other layouts (#54710)": "resolve_kv_cache_layout is no surface",
    "tiny windows billed for a whole batch (#54703)": "the bill is what a batch in flight can hold",
    "shapes given as lists": "against the field's own annotation",
}
