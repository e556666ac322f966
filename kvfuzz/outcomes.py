"""What came of asking a planner: a plan, a refusal, a crash, or not askable."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kvfuzz.specs import OpenSpec


class Merged(msgspec.Struct, frozen=True, gc=False):
    """One spec made of those of several layers, as the planner's own objects hold them.

    Attributes:
        given: The specs that went in, each once.
        made: The one that came out.
    """

    given: tuple[OpenSpec, ...]
    made: OpenSpec


class Group(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Layers that a planner put together, in its order.

    Attributes:
        layers: Names of the layers.
        pages: Page size in bytes of each of them in the plan.
        merged: What their specs were merged into, if the surface tells.
    """

    layers: tuple[str, ...]
    pages: tuple[int, ...]
    merged: Merged | None = None


class Plan(msgspec.Struct, frozen=True, tag="plan", gc=False):
    """The planner's answer; `groups` is None if it does not take the mix."""

    groups: tuple[Group, ...] | None

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
