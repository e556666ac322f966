"""Mixes in the shape of published models: each of them, each change, what a target lacks."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest

from kvfuzz.catalogue import Catalogue, FieldForm, KindForm, lacks
from kvfuzz.specs import DTYPE_BYTES, OpenSpec
from kvfuzz.strategies.architectures import ARCHITECTURES, DRAFTS, Form
from kvfuzz.strategies.choices import SeededChoices, replayed
from kvfuzz.strategies.models import Model, build_model

NAMES = [architecture.name for architecture in ARCHITECTURES]
#: Caches of a whole model: layers, or more where a layer has several.
CACHES = {
    "Qwen3": 36,
    "Mistral": 32,
    "Phi-3": 32,
    "GLM-4.5": 92,
    "DeepSeek V3": 61,
    "Kimi K2": 61,
    "gpt-oss": 36,
    "Gemma 3": 62,
    "Gemma 4": 60,
    "MiMo V2": 48,
    "Llama 4": 48,
    "Whisper": 2 * 32,
    "DeepSeek V3.2": 2 * 61,
    "GLM-5": 2 * 78,
    "MiniMax-01": 80,
    "Jamba": 32,
    "LFM2": 16,
    "Nemotron-H": 28,
    "Qwen3-Next": 48,
    "Qwen3.5": 60,
    "Kimi Linear": 27,
    "DeepSeek V4": 2 + 21 * 5 + 20 * 3,
}
#: Those that keep states, and how many of a whole model's layers do.
STATES = {
    "MiniMax-01": 70,
    "Jamba": 28,
    "LFM2": 10,
    "Nemotron-H": 24,
    "Qwen3-Next": 36,
    "Qwen3.5": 45,
    "Kimi Linear": 20,
}


def _kind(required: str, optional: str = "") -> KindForm:
    def form(name: str, *, required: bool) -> FieldForm:
        if name == "kv_quant_mode":
            return FieldForm(type="name", names=("none", "fp8_per_tensor"), enum="Mode")
        if name in ("dtype", "dtypes", "shapes"):
            return FieldForm(type=name, required=required)  # type: ignore[arg-type]
        return FieldForm(type="int", required=required)

    return KindForm(
        "Spec",
        {name: form(name, required=True) for name in required.split()}
        | {name: form(name, required=False) for name in optional.split()},
    )


_HEADS = "block_size num_kv_heads head_size dtype"
_MAY = "kv_quant_mode page_size_padded head_size_v"
_LATENT = f"{_MAY} alignment cache_dtype_str model_version"
SMALL: Catalogue = {
    "full_attention": _kind(_HEADS, f"{_MAY} sliding_window"),
    "sliding_window": _kind(f"{_HEADS} sliding_window", _MAY),
    "chunked_local_attention": _kind(f"{_HEADS} attention_chunk_size"),
    "mla_attention": _kind(_HEADS, f"{_LATENT} compress_ratio"),
    "sliding_window_mla": _kind(f"{_HEADS} sliding_window", f"{_LATENT} compress_ratio"),
    "mamba": _kind("block_size shapes dtypes", "page_size_padded mamba_cache_mode"),
    "cross_attention": _kind(_HEADS, "is_draft"),
    "hidden_state_cache": _kind(_HEADS, "is_draft"),
}


def _built(name: str, catalogue: Catalogue = SMALL, **answers: int) -> Model:
    """The model with all choices lowest but those.

    They are in order: c0 architecture, c1 layers, c2 ranks, c3 block size, c4
    dtype, c5 draft model; then of that, if there is one, its layers, else how
    states are padded.
    """
    recorded = [NAMES.index(name)] + 20 * [0]
    for choice, answer in answers.items():
        recorded[int(choice[1:])] = answer
    return build_model(replayed(recorded), catalogue=catalogue)


def _models(count: int, catalogue: Catalogue = SMALL, seed: int = 1) -> list[Model]:
    choices = SeededChoices(seed)
    return [build_model(choices.choose, catalogue=catalogue) for _ in range(count)]


def _page(spec: OpenSpec) -> int:
    if spec.kind == "mamba":
        sizes = zip(spec.shapes, spec.dtypes, strict=True)
        return spec.page_size_padded or sum(prod(shape) * DTYPE_BYTES[d] for shape, d in sizes)
    cell = spec.head_size * DTYPE_BYTES[spec.dtype]
    if spec.kind != "mla_attention":
        cell += (spec.head_size_v or spec.head_size) * DTYPE_BYTES[spec.dtype]
    return spec.block_size * spec.num_kv_heads * cell


def test_the_simplest_is_the_first_architecture_as_it_is():
    model = build_model(lambda low, _: low, catalogue=SMALL)
    assert (model.name, len(model.specs), model.drafts) == ("Qwen3", 2, 0)
    (spec,) = set(model.specs)
    assert spec.kind == "full_attention"
    assert spec.fields == (
        ("block_size", 16),
        ("dtype", "bfloat16"),
        ("head_size", 128),
        ("num_kv_heads", 8),
    )


def test_every_architecture_comes():
    assert {model.name for model in _models(1_000)} == set(NAMES) == set(CACHES)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=NAMES)
def test_counts_are_those_of_the_whole_model(architecture):
    forms: list[Form] = [
        *architecture.lead,
        *architecture.repeats * architecture.pattern,
        *architecture.tail,
    ]
    assert len(forms) == CACHES[architecture.name]
    assert sum(bool(form.states) for form in forms) == STATES.get(architecture.name, 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_model_has_whole_patterns(name):
    architecture = ARCHITECTURES[NAMES.index(name)]
    fixed = len(architecture.lead) + len(architecture.tail)
    lengths = [len(_built(name, c1=answer).specs) for answer in range(16)]
    assert lengths == sorted(lengths)
    assert lengths[0] == max(2, fixed + len(architecture.pattern))
    assert all((length - fixed) % len(architecture.pattern) == 0 for length in lengths)
    assert lengths[-1] <= min(58, CACHES[name])


def test_mixes_are_small():
    sizes = [len(model.specs) for model in _models(3_000)]
    assert min(sizes) == 2
    assert 50 < max(sizes) <= 64
    assert sum(size < 24 for size in sizes) > 0.75 * len(sizes)


def test_all_of_it_can_be_said():
    for model in _models(2_000):
        assert 0 <= model.drafts < len(model.specs)
        for spec in set(model.specs):
            assert lacks(SMALL, spec) is None
            given = dict(spec.fields)
            forms = SMALL[spec.kind].fields
            assert all(name in given for name, form in forms.items() if form.required)


def test_ranks_divide_heads_and_states():
    assert _built("Qwen3", c2=7).specs[0].num_kv_heads == 1
    assert _built("DeepSeek V3", c2=7) == _built("DeepSeek V3")
    assert _built("Qwen3-Next", c2=7).specs[-1].num_kv_heads == 1  # 2 heads, on 8 ranks twice
    assert _built("Qwen3-Next", c2=7).specs[0].shapes == ((1024, 3), (4, 128, 128))
    assert _built("Whisper", c2=7).specs[0].num_kv_heads == 5  # 20 heads, so 4 ranks
    sizes = {
        spec.num_kv_heads for model in _models(2_000) if not model.drafts for spec in model.specs
    }
    assert {1, 2, 4, 8, 16} <= sizes


def test_another_block_size_or_dtype_for_all():
    blocks = {_built("gpt-oss", c3=answer).specs[0].block_size for answer in range(8)}
    assert blocks == {16, 32, 64, 128}
    dtypes = [_built("gpt-oss", c4=answer).specs for answer in range(8)]
    assert {(specs[0].dtype, specs[0].kv_quant_mode) for specs in dtypes} == {
        ("bfloat16", None),
        ("float16", None),
        ("uint8", "fp8_per_tensor"),
        ("float8_e4m3fn", "fp8_per_tensor"),
    }
    assert all(len({(spec.dtype, spec.block_size) for spec in specs}) == 1 for specs in dtypes)
    # Where the model or its kernel decides, they stay.
    assert _built("DeepSeek V4", c3=7, c4=7) == _built("DeepSeek V4")
    assert _built("Jamba", c4=5).specs[0].dtypes == ("float16", "float16")


def test_a_draft_model_comes_last():
    seen = Counter()
    for answer in range(10):
        model = _built("gpt-oss", c5=answer)
        target = _built("gpt-oss").specs
        drafts = model.specs[len(target) :]
        assert model.specs[: len(target)] == target
        assert len(drafts) == model.drafts
        seen[tuple((spec.kind, spec.head_size, spec.sliding_window) for spec in drafts)] += 1
    assert seen == {
        (): 5,
        (("full_attention", 64, None),): 2,  # its own: as its last layer
        (("full_attention", 128, None),): 1,
        (("sliding_window", 128, 2048),): 1,
        (("hidden_state_cache", 4096, None),): 1,
    }
    assert {_built("gpt-oss", c5=5, c6=answer).drafts for answer in range(5)} == {1, 2, 3}
    assert _built("DeepSeek V3.2", c5=5).drafts == 2  # with its indexer
    assert _built("DeepSeek V4", c5=5).specs[-1] == _built("DeepSeek V4").specs[0]


@pytest.mark.parametrize("name", STATES)
def test_states_are_padded_to_the_page_of_attention(name):
    for answers in ({}, {"c2": 6}, {"c3": 5}, {"c4": 6}):
        specs = _built(name, **answers).specs
        assert len({_page(spec) for spec in specs}) == 1
        assert len({spec.block_size for spec in specs}) == 1
    ways = [_built(name, c6=answer).specs for answer in range(5)]
    states = [next(spec for spec in specs if spec.kind == "mamba") for specs in ways]
    assert [bool(spec.page_size_padded) for spec in states] == [True, True, True, True, False]
    assert states[3].block_size > states[0].block_size
    assert {spec.block_size for spec in ways[4]} == {16}


def test_one_layer_is_odd():
    ways: dict[str, set[object]] = {}
    for model in _models(6_000):
        if model.drafts:
            continue
        counts = Counter(model.specs)
        for spec, count in counts.items():
            if count > 1 or counts.most_common(1)[0][1] == 1:
                continue
            for other in counts:
                changed = dict(set(spec.fields) ^ set(other.fields))
                if other.kind == spec.kind and len(changed) == 1:
                    ways.setdefault(next(iter(changed)), set()).add(model.name)
    assert set(ways) >= {"head_size", "block_size", "sliding_window", "attention_chunk_size"}
    assert set(STATES) & ways["shapes"]


def test_what_a_target_lacks_is_left_out_or_called_otherwise():
    named = SMALL["mla_attention"].fields
    newer = {
        ("tokens_per_state" if name == "compress_ratio" else name): form
        for name, form in named.items()
    }
    old = _built("DeepSeek V4").specs
    new = _built("DeepSeek V4", SMALL | {"mla_attention": KindForm("Spec", newer)}).specs
    ratios = [spec.compress_ratio for spec in old if spec.kind == "mla_attention"]
    assert set(ratios) == {4, 128}
    assert [spec.tokens_per_state for spec in new if spec.kind == "mla_attention"] == ratios
    # No such kind, or one that wants to be told what no model knows.
    fewer = {"full_attention": SMALL["full_attention"], "mamba": _kind("block_size tomorrows")}
    kinds = {spec.kind for model in _models(500, fewer) for spec in model.specs}
    assert kinds == {"full_attention"}
    assert {model.name for model in _models(500, fewer)} < set(NAMES)
    assert _built("Mistral", fewer).name == "GLM-4.5"  # the next that can be said
    assert all(len(model.specs) >= 2 for model in _models(500, fewer))
    assert not _built("gpt-oss", fewer, c5=9).drafts
    with pytest.raises(ValueError, match="no kind of layer"):
        build_model(replayed([]), catalogue={"tomorrows": _kind("block_size")})


def test_other_drafts_are_of_kinds_that_vllm_has():
    assert {form.kind for form in DRAFTS.values()} <= set(SMALL)


def test_what_is_recorded_builds_the_same():
    choices = SeededChoices(6)
    for _ in range(300):
        choices.record()
        model = build_model(choices.choose, catalogue=SMALL)
        assert build_model(replayed(choices.recorded), catalogue=SMALL) == model
        assert len(choices.recorded) <= 12
