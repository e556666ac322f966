"""What every mix promises, whatever the shape, dialect and source."""

from __future__ import annotations

from hashlib import sha256
from itertools import combinations, groupby, islice

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from kvfuzz.pages import FULL_DIALECT, Dialect
from kvfuzz.specs import (
    KINDS,
    QUANT_MODES,
    LayerSpec,
    MLAAttentionSpec,
    Scenario,
    SlidingWindowMLASpec,
    scenario_to_json,
)
from kvfuzz.strategies import SHAPES, Shape, builders, spec_mixes
from kvfuzz.strategies.builders import build_mix, draw_classes, stream
from kvfuzz.strategies.choices import SeededChoices, replayed
from kvfuzz.strategies.classes import build_spec
from kvfuzz.strategies.constraints import broken
from kvfuzz.strategies.deepseek import V4_FORMATS, has_v4, v4_specs
from tests.strategies.common import (
    BARE_DIALECT,
    DIALECTS,
    OLD_DIALECT,
    both_kinds,
    mixes,
    near_miss,
    page_sizes,
)

_CASES = [
    pytest.param(shape, dialect, id=f"{shape}-{name}")
    for name, dialect in DIALECTS.items()
    for shape in SHAPES
    if shape != "deepseek-v4" or has_v4(dialect)
]


def _check(scenario: Scenario, shape: Shape, dialect: Dialect, most: int) -> None:
    assert 1 <= len(scenario) <= most
    assert [name for name, _ in scenario] == [f"layers.{i}" for i in range(len(scenario))]
    for spec in {spec for _, spec in scenario}:
        assert broken(spec, dialect) == [], spec
        assert dialect.lacks(spec) is None, spec
    sizes = page_sizes(scenario, dialect)  # raises for an invalid page
    if shape == "uniform":
        assert len(sizes) == 1
        assert both_kinds(scenario)
    if shape in ("mixed", "near-miss"):
        assert len(sizes) > 1
        assert both_kinds(scenario)


@pytest.mark.parametrize(("shape", "dialect"), _CASES)
@pytest.mark.parametrize("most", [64, 3])
def test_what_the_fast_source_builds_is_valid_and_keeps_its_shape(
    shape: Shape, dialect: Dialect, most: int
) -> None:
    for scenario in mixes(1000, seed=most, shape=shape, dialect=dialect, max_layers=most):
        _check(scenario, shape, dialect, most)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dialect", [FULL_DIALECT, OLD_DIALECT], ids=["full", "old"])
def test_what_hypothesis_draws_is_valid_and_keeps_its_shape(shape: Shape, dialect: Dialect) -> None:
    @settings(
        max_examples=60,
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(spec_mixes(shape=shape, dialect=dialect))
    def every_mix(scenario: Scenario) -> None:
        _check(scenario, shape, dialect, 64)

    every_mix()


def test_specs_survive_the_bounds_of_case_files() -> None:
    decoder = msgspec.json.Decoder(Scenario)
    for scenario in mixes(1000):
        assert decoder.decode(msgspec.json.encode(scenario)) == scenario


def test_the_simplest_mix_is_small_and_readable() -> None:
    simplest = build_mix(lambda low, _: low)
    assert scenario_to_json(simplest)["mix"] == [
        {
            "name": "layers.0",
            "kind": "mla_attention",
            "block_size": 16,
            "num_kv_heads": 1,
            "head_size": 64,
            "dtype": "float32",
        },
        {
            "name": "layers.1",
            "kind": "sliding_window_mla",
            "block_size": 16,
            "num_kv_heads": 1,
            "head_size": 64,
            "dtype": "float32",
            "sliding_window": 128,
        },
    ]


def test_the_stream_of_a_seed_is_pinned() -> None:
    # A place in the stream (seed, chunk, index) names a mix in logs and
    # resumed runs. A change of a builder that moves the stream is allowed, but
    # it must be meant: update the digest and say so in the changelog.
    digest = sha256()
    for scenario in mixes(200):
        digest.update(msgspec.json.encode(scenario))
    assert digest.hexdigest()[:16] == "4365aff2df8e1acf"


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_what_the_stream_records_builds_the_same_mix(dialect: Dialect) -> None:
    recorded = stream(SeededChoices(6), dialect=dialect, record=True)
    plain = stream(SeededChoices(6), dialect=dialect)
    for (choices, scenario), (none, same) in islice(zip(recorded, plain, strict=True), 500):
        assert build_mix(replayed(choices), dialect=dialect) == scenario == same
        assert none == []


def test_layouts_of_one_drawing_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "POOL", 1)  # layouts of one drawing follow each other
    made = (mix for _, mix in stream(SeededChoices(0), shape="mixed", layouts=4))
    several = [
        list(group)
        for _, group in groupby(islice(made, 1000), lambda m: {id(spec) for _, spec in m})
    ]
    assert max(map(len, several)) == 4
    assert sum(map(len, several)) / len(several) > 3
    for group in several:
        assert len(set(group)) == len(group)


def test_the_first_mixes_of_a_stream_share_no_spec_object() -> None:
    scenarios = list(mixes(builders.POOL, shape="mixed"))
    specs = [{id(spec) for _, spec in scenario} for scenario in scenarios]
    assert len(set().union(*specs)) == sum(map(len, specs))


def test_a_mix_is_a_drawing_and_then_a_layout() -> None:
    one, two = SeededChoices(9), SeededChoices(9)
    for _ in range(100):
        drawing = draw_classes(one.choose)
        scenario = drawing.lay_out(one.choose)
        assert scenario == build_mix(two.choose)
        if drawing.disturb is None:  # else its last layer may be odd
            assert {spec for _, spec in scenario} == set(drawing.specs)


def test_a_near_miss_is_mostly_near() -> None:
    near = sum(near_miss(scenario) for scenario in mixes(1000, shape="near-miss"))
    assert near > 700  # the rest differ by a whole head, slot or set of scales


def test_layers_share_spec_objects() -> None:
    # What makes it worth a target's while to translate each spec once.
    for scenario in mixes(300):
        assert len({id(spec) for _, spec in scenario}) <= 8


def test_deepseek_v4_is_what_the_model_publishes() -> None:
    old = v4_specs(OLD_DIALECT, "fp8_ds_mla")
    new = v4_specs(FULL_DIALECT, "fp8_ds_mla")
    for specs, dialect in ((old, OLD_DIALECT), (new, FULL_DIALECT)):
        scenario = Scenario(tuple((str(i), spec) for i, spec in enumerate(specs)))
        assert [next(iter(page_sizes(Scenario((layer,)), dialect))) for layer in scenario] == [
            37440,  # 64 records of 584 bytes, aligned to 576
            37440,
            1728,  # 2 records
            32832,  # 4 states of 2,048 float32
            8640,  # 64 indexer keys of 132 bytes
            32832,  # 8 states of 1,024 float32
            8640,  # 4 states of 512 float32
        ]
    assert {spec.state_content_bytes for spec in old} == {None}
    assert {spec.state_content_bytes for spec in new} == {None, 584}
    assert {len(v4_specs(FULL_DIALECT, name)) for name in V4_FORMATS} == {7}
    with pytest.raises(ValueError, match="no fields for DeepSeek V4"):
        v4_specs(BARE_DIALECT, "bfloat16")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": "square"}, "no shape 'square'"),
        ({"max_layers": 0}, "max_layers must be from 1 to 64"),
        ({"max_layers": 65}, "max_layers must be from 1 to 64"),
        ({"shape": "uniform", "max_layers": 1}, "at least 2 layers"),
        ({"shape": "deepseek-v4", "dialect": BARE_DIALECT}, "no fields for DeepSeek V4"),
    ],
)
def test_what_cannot_be_built_is_said(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_mix(SeededChoices(0).choose, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_dialect_may_have_one_kind_only(kind: str) -> None:
    dialect = msgspec.structs.replace(FULL_DIALECT, fields={kind: FULL_DIALECT.fields[kind]})
    for scenario in mixes(200, dialect=dialect):
        assert {spec.kind for _, spec in scenario} == {kind}
    with pytest.raises(ValueError, match="lacks one"):
        build_mix(SeededChoices(0).choose, shape="mixed", dialect=dialect)


def _set_fields(spec: LayerSpec) -> frozenset[str]:
    """Names of the fields beyond the plain ones that are not at their defaults."""
    plain = {"block_size", "num_kv_heads", "head_size", "dtype"}
    if isinstance(spec, SlidingWindowMLASpec):
        plain.add("sliding_window")
    fields = msgspec.structs.fields(spec)
    return frozenset(
        f.name for f in fields if f.name not in plain and getattr(spec, f.name) != f.default
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_kind_is_set_alone_and_every_mode_comes(kind: str) -> None:
    choose = SeededChoices(1).choose
    specs = {build_spec(choose, kind) for _ in range(6000)}
    sets = {_set_fields(spec) for spec in specs}
    names = frozenset(KINDS[kind].__struct_fields__)
    beyond = names - {"block_size", "num_kv_heads", "head_size", "dtype"}
    if kind == "sliding_window_mla":
        beyond -= {"sliding_window"}
    assert {name for fields in sets if len(fields) == 1 for name in fields} == beyond
    assert {spec.kv_quant_mode for spec in specs} == set(QUANT_MODES)
    pairs = {frozenset(pair) for fields in sets for pair in combinations(sorted(fields), 2)}
    every = {frozenset(pair) for pair in combinations(sorted(beyond), 2)}
    every.discard(frozenset({"sliding_window", "attention_chunk_size"}))  # never both
    assert pairs <= every
    assert len(pairs) > 0.8 * len(every)


def test_kinds_are_the_classes() -> None:
    assert isinstance(build_spec(SeededChoices(0).choose, "mla_attention"), MLAAttentionSpec)
    spec = build_spec(SeededChoices(0).choose, "sliding_window_mla")
    assert isinstance(spec, SlidingWindowMLASpec)
