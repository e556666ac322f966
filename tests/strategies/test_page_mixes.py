"""One layer of any class: every field comes, and what is drawn is sound."""

from __future__ import annotations

from itertools import islice
from math import prod

from kvfuzz.pages import FULL_DIALECT
from kvfuzz.specs import DTYPE_BYTES, OpenSpec, Scenario
from kvfuzz.strategies.choices import SeededChoices, replayed
from kvfuzz.strategies.page_mixes import build_page
from kvfuzz.strategies.spaces import Space, space_of
from tests.sabotage import paging

TARGET = paging.target_of()
CATALOGUE = TARGET.dialect.catalogue


def _specs(count: int) -> list[OpenSpec]:
    found = []
    for _, mix in islice(_space().stream(SeededChoices(1)), count):
        ((name, spec),) = mix
        assert name == "layers.0"
        assert isinstance(spec, OpenSpec)
        found.append(spec)
    return found


def _space() -> Space:
    return space_of("page", TARGET.dialect)


def test_every_class_and_field_comes():
    specs = _specs(2_000)
    assert {spec.kind for spec in specs} == set(CATALOGUE)
    for kind, form in CATALOGUE.items():
        seen = {name for spec in specs if spec.kind == kind for name, _ in spec.fields}
        assert seen == set(form.fields)
    changed = {
        sum(not CATALOGUE[spec.kind].fields[name].required for name, _ in spec.fields)
        for spec in specs
    }
    assert changed == {0, 1, 2, 3}


def test_a_padded_page_holds_what_is_padded():
    padded = [spec for spec in _specs(4_000) if spec.page_size_padded]
    assert len(padded) > 300
    for spec in padded:
        native = TARGET.translate(spec)
        assert spec.page_size_padded >= native.unpadded_page_size_bytes
        assert spec.page_size_padded % (spec.alignment or 1) == 0


def test_a_state_has_a_dtype_each():
    mambas = [spec for spec in _specs(2_000) if spec.kind == "mamba"]
    assert {len(spec.shapes) for spec in mambas} == {1, 2, 3}
    assert all(len(spec.shapes) == len(spec.dtypes) for spec in mambas)
    assert len({dtype for spec in mambas for dtype in spec.dtypes}) > 3
    sizes = {
        sum(prod(s) * DTYPE_BYTES[d] for s, d in zip(spec.shapes, spec.dtypes, strict=True))
        for spec in mambas
    }
    assert len(sizes) > 10


def test_a_block_holds_whole_states():
    forms = {**CATALOGUE["full_attention"].fields}
    forms["tokens_per_state"] = forms["alignment"]
    catalogue = {"full_attention": type(CATALOGUE["full_attention"])("FullAttentionSpec", forms)}
    choices = SeededChoices(3)
    seen = set()
    for _ in range(2_000):
        ((_, spec),) = build_page(choices.choose, catalogue=catalogue)
        per_state = spec.tokens_per_state or 1
        seen.add(per_state)
        assert spec.block_size % per_state == 0
    assert seen == {1, 2, 4, 128}


def test_the_simplest_is_one_plain_layer():
    mix = build_page(lambda low, _: low, catalogue=CATALOGUE)
    ((_, spec),) = mix
    plain = {"block_size": 16, "num_kv_heads": 1, "head_size": 64, "dtype": "float32"}
    assert (spec.kind, dict(spec.fields)) == ("full_attention", plain)


def test_what_the_stream_records_builds_the_same_mix():
    space = _space()
    recorded = space.stream(SeededChoices(6), record=True)
    plain = space.stream(SeededChoices(6))
    for (choices, mix), (none, same) in islice(zip(recorded, plain, strict=True), 300):
        assert space.build(replayed(choices)) == mix == same
        assert none == []


def test_the_space_is_named_and_bounded():
    assert _space().never_set == ()
    assert isinstance(space_of("page", FULL_DIALECT), type(_space()))
    mixes = [mix for _, mix in islice(_space().stream(SeededChoices(2)), 50)]
    assert all(type(mix) is Scenario and len(mix) == 1 for mix in mixes)
