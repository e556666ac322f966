"""Mixes of one open spec: every class, and every field alone and in pairs, off its default."""

from __future__ import annotations

from functools import partial
from itertools import combinations, islice

from kvfuzz.catalogue import FieldForm, KindForm
from kvfuzz.specs import OpenSpec, Scenario
from kvfuzz.strategies.choices import SeededChoices, drawn, replayed
from kvfuzz.strategies.open_mixes import build_copies, changes_of
from tests.sabotage import merging

CATALOGUE = merging.target_of().dialect.catalogue


def _mixes(count: int, **catalogue: KindForm) -> list[Scenario]:
    stream = drawn(SeededChoices(1), partial(build_copies, catalogue=catalogue or CATALOGUE))
    return [mix for _, mix in islice(stream, count)]


def _spec(mix: Scenario) -> OpenSpec:
    (spec,) = {spec for _, spec in mix}
    assert isinstance(spec, OpenSpec)
    return spec


def test_every_class_field_and_pair_comes():
    changed: set[frozenset[str]] = set()
    kinds, layers = set(), set()
    for mix in _mixes(3_000):
        spec = _spec(mix)
        kinds.add(spec.kind)
        layers.add(len(mix))
        forms = CATALOGUE[spec.kind].fields
        changed.add(frozenset(name for name, _ in spec.fields if not forms[name].required))
        for name, value in spec.fields:
            assert forms[name].required or value != forms[name].default
    assert kinds == set(CATALOGUE)
    assert layers == {1, 2, 3}
    free = ("mode", "window", "causal", "role")  # `odd` is of no known type
    alone = {frozenset({name}) for name in free}
    pairs = {frozenset(pair) for pair in combinations(free, 2)}
    assert changed == {frozenset(), *alone, *pairs}


def test_a_field_that_nobody_knows_is_set():
    fields = {
        "tomorrows": FieldForm(type="int", default=1),
        "flag": FieldForm(type="bool", default=False),
        "way": FieldForm(type="name", default="a", names=("a", "b")),
    }
    assert dict(changes_of(fields)) == {
        "tomorrows": (2, 4, 16, 64, 256, 1024),
        "flag": (True,),
        "way": ("b",),
    }
    mixes = _mixes(300, new=KindForm("NewSpec", fields))
    seen = {name for mix in mixes for name, _ in _spec(mix).fields}
    assert seen == set(fields)


def test_a_state_has_a_dtype_each():
    mambas = [_spec(mix) for mix in _mixes(500) if _spec(mix).kind == "mamba"]
    assert {len(spec.shapes) for spec in mambas} == {1, 2}
    assert all(len(spec.shapes) == len(spec.dtypes) for spec in mambas)


def test_the_simplest_is_one_plain_layer():
    mix = build_copies(lambda low, _: low, catalogue=CATALOGUE)
    assert [name for name, _ in mix] == ["layers.0"]
    assert _spec(mix).fields == (("block_size", 16), ("dtype", "float32"), ("head_size", 64))


def test_what_the_stream_records_builds_the_same_mix():
    recorded = drawn(SeededChoices(6), partial(build_copies, catalogue=CATALOGUE), record=True)
    plain = drawn(SeededChoices(6), partial(build_copies, catalogue=CATALOGUE))
    for (choices, mix), (none, same) in islice(zip(recorded, plain, strict=True), 300):
        assert build_copies(replayed(choices), catalogue=CATALOGUE) == mix == same
        assert none == []
