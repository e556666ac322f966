"""Neutral cache specs, mixes and scenarios: what every other part speaks.

Nothing here knows a planner, a release or torch. A spec states what one
layer's KV cache needs, with the field names and meanings that vLLM's spec
classes have had between 0.20 and 0.28; how many bytes a page of it takes is
`kvfuzz.pages`' business, since releases differ in that.

The two kinds that a packer of MLA mixes plans for have a type each, with
every field typed; a spec of any other kind, and of those two on surfaces that
are asked about any class, is an open spec, whose fields are found out.

All types are frozen msgspec structs, so they hash, compare and round-trip
through JSON. Bounds are checked when JSON is decoded (`kvfuzz.cases`), not
when Python code builds a struct: strategies build what is valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

import msgspec

from kvfuzz.planner_config import PLAIN_CONFIG, PlannerConfig

#: Bytes per element of every dtype a spec may have, by torch's name for it.
DTYPE_BYTES: dict[str, int] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint8": 1,
    "int8": 1,
}

DType = Literal["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "uint8", "int8"]

QuantMode = Literal[
    "none",
    "fp8_per_tensor",
    "int8_per_token_head",
    "fp8_per_token_head",
    "int4_per_token_head",
    "nvfp4",
    "turboquant",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
]

#: Every name of a quantisation mode, simplest first.
QUANT_MODES: tuple[str, ...] = get_args(QuantMode)

# Far above what a model has, far below what would make arithmetic slow.
Count = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**24)]
ShortText = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[\x20-\x7e]*\Z")]

#: A layer's name: printable, on one line, so that it can be shown as it is.
LayerName = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=200,
        pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069]+\Z",
    ),
]


class AttentionSpec(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    # They hold no cycles, and a search looks them up again and again.
    gc=False,
    cache_hash=True,
):
    """Fields that both MLA kinds share.

    Attributes:
        block_size: Tokens in a block.
        num_kv_heads: KV heads of the layer on this rank.
        head_size: Elements of one latent vector.
        dtype: torch's name for the element type.
        head_size_v: Elements of a value vector; None is the release's own
            default (MLA stores one latent vector, so it counts for nothing).
        kv_quant_mode: Name of the quantisation mode, in lower case.
        page_size_padded: Bytes that a page is padded to, or None.
        indexes_kv_by_block_stride: Whether the backend finds a block by stride.
        num_head_slots: Head slots of a packed page, or None for one a KV head.
        state_content_bytes: Bytes of one (head slot, state) cell when packed.
        cache_dtype_str: Name of the cache format, such as "fp8_ds_mla".
        alignment: Bytes that a page is rounded up to a multiple of, or None.
        compress_ratio: Tokens that one stored state stands for.
        model_version: None or "deepseek_v4".
    """

    block_size: Count
    num_kv_heads: Count
    head_size: Count
    dtype: DType
    head_size_v: Natural | None = None
    kv_quant_mode: QuantMode = "none"
    page_size_padded: Bytes | None = None
    indexes_kv_by_block_stride: bool = False
    num_head_slots: Count | None = None
    state_content_bytes: Bytes | None = None
    cache_dtype_str: ShortText | None = None
    alignment: Count | None = None
    compress_ratio: Count = 1
    model_version: ShortText | None = None

    #: Which kind of layer this is; the JSON tag, too.
    kind: ClassVar[str]


class MLAAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag="mla_attention"):
    """A layer of multi-head latent attention over the whole context.

    Attributes:
        sliding_window: Window in tokens of a layer that computes with a
            window but keeps every token, or None.
        attention_chunk_size: Chunk in tokens, likewise.
        non_causal: Whether the layer attends to later tokens.
        non_causal_multi_token_decode: Marks draft layers that decode a
            non-causal block of queries.
    """

    kind = "mla_attention"

    sliding_window: Count | None = None
    attention_chunk_size: Count | None = None
    non_causal: bool = False
    non_causal_multi_token_decode: bool = False


class SlidingWindowMLASpec(AttentionSpec, frozen=True, kw_only=True, tag="sliding_window_mla"):
    """A layer of multi-head latent attention that keeps a window of tokens.

    Attributes:
        sliding_window: Window in tokens.
        extra_retained_tokens: Tokens kept below the window, not attended.
    """

    kind = "sliding_window_mla"

    sliding_window: Count
    extra_retained_tokens: Natural = 0


Whole = Annotated[int, msgspec.Meta(ge=-(2**40), le=2**40)]
_FEW = msgspec.Meta(max_length=64)
Shape = Annotated[tuple[Whole, ...], _FEW]

#: What a field of an open spec holds. Tuples are shapes, or dtypes by name.
Value: TypeAlias = (
    bool | Whole | ShortText | Annotated[tuple[Whole | ShortText | Shape, ...], _FEW] | None
)


class OpenSpec(
    msgspec.Struct, frozen=True, gc=False, cache_hash=True, tag_field="kind", tag="open"
):
    """A layer's spec of any kind that a planner has, with any of its fields.

    The fields are those that a target's own class was found to have
    (`kvfuzz.catalogue`), so that a class or field of tomorrow's release can be
    stated. What is not given is at the planner's own default.

    Attributes:
        named: The kind: the class name without "Spec", in lower case with underscores.
        fields: (name, value) of each field that is given, in order of name.
    """

    named: str
    fields: tuple[tuple[str, Value], ...]

    @property
    def kind(self) -> str:
        """Which kind of layer this is."""
        return self.named

    def __getattr__(self, name: str) -> Any:
        """The value of a field; None if it is not given."""
        if name.startswith("_"):
            raise AttributeError(name)
        # They are few, and this is asked of each layer.
        for field, value in self.fields:
            if field == name:
                return value
        return None


def open_spec(kind: str, fields: Mapping[str, Value]) -> OpenSpec:
    """The open spec of that kind with these fields."""
    return OpenSpec(kind, tuple(sorted(fields.items())))


#: The kinds that a packer of MLA mixes plans for, each with fields of its own.
PackedSpec: TypeAlias = MLAAttentionSpec | SlidingWindowMLASpec
LayerSpec: TypeAlias = PackedSpec | OpenSpec

#: Kind name -> spec class, in the order in which they are listed to people.
KINDS: dict[str, type[PackedSpec]] = {
    "mla_attention": MLAAttentionSpec,
    "sliding_window_mla": SlidingWindowMLASpec,
}


class Scenario(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a planner is asked to plan: a mix, as ordered (layer name, spec), and for what engine.

    Layer names are unique; `cases` checks that of what it reads.

    Attributes:
        mix: The layers.
        config: What the engine is configured with; surfaces that take no
            config are asked without.
        drafts: How many of the last layers are a draft model's.
        ranks: Pipeline rank of each layer, from 0; empty if there is one.
    """

    mix: tuple[tuple[str, LayerSpec], ...]
    config: PlannerConfig = PLAIN_CONFIG
    drafts: int = 0
    ranks: tuple[int, ...] = ()

    def specs(self) -> dict[str, LayerSpec]:
        """The mix as a new dict, in order."""
        return dict(self.mix)

    def draft_names(self) -> tuple[str, ...]:
        """Names of the draft model's layers."""
        return tuple(name for name, _ in self.mix[len(self.mix) - self.drafts :])

    def taking(self, places: Sequence[int]) -> Scenario:
        """The scenario of the layers at these places only, in this order.

        The draft layers among them are moved to the end, where they belong.
        """
        first_draft = len(self.mix) - self.drafts
        places = sorted(places, key=lambda place: place >= first_draft)
        return msgspec.structs.replace(
            self,
            mix=tuple(self.mix[place] for place in places),
            drafts=sum(place >= first_draft for place in places),
            ranks=tuple(self.ranks[place] for place in places) if self.ranks else (),
        )

    def renamed(self) -> Scenario:
        """The scenario with its layers named by their places."""
        mix = tuple((f"layers.{i}", spec) for i, (_, spec) in enumerate(self.mix))
        return msgspec.structs.replace(self, mix=mix)

    def respecced(self, specs: Sequence[LayerSpec]) -> Scenario:
        """The scenario with a spec each for its layers, in order."""
        mix = tuple((name, spec) for (name, _), spec in zip(self.mix, specs, strict=True))
        return msgspec.structs.replace(self, mix=mix)

    def __iter__(self) -> Iterator[tuple[str, LayerSpec]]:
        return iter(self.mix)

    def __len__(self) -> int:
        return len(self.mix)


def scenario_of(specs: Mapping[str, LayerSpec]) -> Scenario:
    """The scenario whose mix is `specs`, in the mapping's order."""
    return Scenario(mix=tuple(specs.items()))


def scenario_to_json(scenario: Scenario) -> dict[str, Any]:
    """The scenario as JSON-able data: `{"mix": [{"name", "kind", fields...}]}`.

    Of `config`, `drafts` and `ranks` stands there what is not at its default.
    """
    data: dict[str, Any] = {
        "mix": [
            {"name": name, "kind": spec.kind, **spec_fields(spec)} for name, spec in scenario.mix
        ]
    }
    if scenario.config != PLAIN_CONFIG:
        data["config"] = {
            name: value
            for name in scenario.config.__struct_fields__
            if (value := getattr(scenario.config, name)) != getattr(PLAIN_CONFIG, name)
        }
    if scenario.drafts:
        data["drafts"] = scenario.drafts
    if scenario.ranks:
        data["ranks"] = list(scenario.ranks)
    return data


def spec_fields(spec: LayerSpec) -> dict[str, Any]:
    """The fields of a spec that are not at their default, by name; JSON-able."""
    if isinstance(spec, OpenSpec):
        fields: dict[str, Any] = msgspec.to_builtins(dict(spec.fields))
    else:
        fields = msgspec.to_builtins(spec)
        del fields["kind"]
    return fields
