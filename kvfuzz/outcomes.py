"""What came of asking a planner: a plan, a refusal, a crash, or not askable."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kvfuzz.specs import OpenSpec


class Misfit(msgspec.Struct, frozen=True, gc=False):
    """A field whose value is none that the field's own annotation allows.

    Attributes:
        field: Its name.
        says: The annotation.
        value: What it holds, as text.
    """

    field: str
    says: str
    value: str


class Account(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a planner's own class tells of a spec, beside the size of its page.

    Attributes:
        data: Bytes of a page before any padding; None if it does not say.
        tensor: Bytes of a page as it is viewed: head slots by states by the
            content of a state; None if it does not say.
        doubled: Bytes of a page of its copy with twice the block size; 0 if
            that has no page; None if the class makes no such copy.
        misfits: Fields that do not fit their annotations.
        unlike: The ways of copying it as it is that give another spec.
    """

    data: int | None = None
    tensor: int | None = None
    doubled: int | None = None
    misfits: tuple[Misfit, ...] = ()
    unlike: tuple[str, ...] = ()


class Terms(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a plan says of the layers of a group, as the planner's own objects hold it.

    Attributes:
        given: The spec that each layer had.
        planned: The spec that each has in the plan.
        shared: The one spec that stands for the whole group; None if the
            group keeps a spec for each layer.
        kind: What the planner calls the group's kind, "" if it does not say.
        drafts: Whether it is marked as a draft model's.
        own_blocks: Blocks that one longest request takes by the spec that each
            layer had, by the planner's account.
        account: What its class tells of the spec, if the surface asks that.
    """

    given: tuple[OpenSpec, ...]
    planned: tuple[OpenSpec, ...]
    shared: OpenSpec | None = None
    kind: str = ""
    drafts: bool = False
    own_blocks: tuple[int, ...] = ()
    account: Account | None = None


class Group(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Layers that a planner put together, in its order.

    Attributes:
        layers: Names of the layers.
        pages: Page size in bytes of each of them in the plan.
        terms: What the plan says of their specs, if the surface tells.
    """

    layers: tuple[str, ...]
    pages: tuple[int, ...]
    terms: Terms | None = None


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a layer's pages are: that of block b begins at `offset + b * stride` of a buffer.

    Attributes:
        layer: The layer's name.
        buffer: Which of the rank's buffers.
        offset: Bytes.
        stride: Bytes from one block's page to the next block's.
    """

    layer: str
    buffer: int
    offset: int
    stride: int


class Row(msgspec.Struct, frozen=True, gc=False):
    """How many blocks the table of a group has room for, for one longest request.

    Attributes:
        group: By the group's own spec; None if that does not know one number.
        layers: By the spec that each of its layers had, with blocks as in the plan.
    """

    group: int | None
    layers: tuple[int, ...]


class Rank(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What one pipeline rank allocates.

    Attributes:
        groups: Layers of each group that are on this rank.
        blocks: Blocks that it has, the null block included.
        buffers: Bytes of each buffer.
        places: Where the layers' pages are.
        memory: Bytes that it was told it may take.
        needed: Blocks that one longest request takes of each group, by the
            planner's account.
        needed_longer: The same of all groups if the longest request were a
            token longer.
        rows: Of each group's block table, if the planner's specs tell.
    """

    groups: tuple[tuple[str, ...], ...]
    blocks: int
    buffers: tuple[int, ...]
    places: tuple[Place, ...]
    memory: int
    needed: tuple[int, ...]
    needed_longer: int
    rows: tuple[Row, ...] = ()


class Plan(msgspec.Struct, frozen=True, tag="plan", gc=False, omit_defaults=True):
    """The planner's answer.

    Attributes:
        groups: The groups; None if the planner does not take the mix.
        ranks: What each rank allocates, if the surface plans that.
        max_model_len: Tokens of the longest request that it plans for, if
            the surface says.
        facts: What the plan says of itself by yes or no, and is so on any rank.
    """

    groups: tuple[Group, ...] | None
    ranks: tuple[Rank, ...] = ()
    max_model_len: int = 0
    facts: tuple[str, ...] = ()

    @property
    def partition(self) -> frozenset[frozenset[str]] | None:
        """The groups as sets of names: equal for plans that differ in order only."""
        if self.groups is None:
            return None
        return frozenset(frozenset(group.layers) for group in self.groups)


class Refusal(msgspec.Struct, frozen=True, tag="refusal", gc=False):
    """A documented error (ValueError or NotImplementedError) that says what is wrong."""

    exception: str
    message: str


class Crash(msgspec.Struct, frozen=True, tag="crash", gc=False):
    """Anything else: another exception, a time-out, or a dead process.

    Attributes:
        symptom: How it ended.
        exception: Name of the exception's type, or of the signal; "" if none.
        function: Name of the function that raised, "" if unknown.
        message: The exception's message; for a bare assertion the text of
            the condition that failed.
    """

    symptom: Literal["exception", "time-out", "died", "memory"]
    exception: str = ""
    function: str = ""
    message: str = ""


class NotExpressible(msgspec.Struct, frozen=True, tag="not-expressible"):
    """The target has no such kind, field or value; nothing was asked."""

    reason: str


Outcome: TypeAlias = Plan | Refusal | Crash | NotExpressible

#: The names under which outcomes are counted, in the order of reports.
OUTCOME_NAMES = ("plan", "none", "refusal", "crash", "not-expressible")

_NAMES: dict[type, str] = {Refusal: "refusal", Crash: "crash", NotExpressible: "not-expressible"}


def outcome_name(outcome: Outcome) -> str:
    """The name in OUTCOME_NAMES under which `outcome` is counted."""
    if type(outcome) is Plan:
        return "none" if outcome.groups is None else "plan"
    return _NAMES[type(outcome)]
