"""What two answers differ in, and what they may differ in without a difference."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvfuzz.catalogue import Catalogue, FieldForm, KindForm
from kvfuzz.engine.differences import ASPECTS, Difference, differences
from kvfuzz.engine.replies import Replier, Reply, crash_reply
from kvfuzz.outcomes import Crash, Group, NotExpressible, Outcome, Place, Plan, Rank, Refusal, Terms
from kvfuzz.specs import OpenSpec, Scenario, open_spec

_CATALOGUE: Catalogue = {
    "full": KindForm("Full", {"size": FieldForm(type="int"), "role": FieldForm(type="text")}),
    "window": KindForm("Window", {"size": FieldForm(type="int", default=0)}),
}
_FULL = open_spec("full", {"size": 1})
_WINDOW = open_spec("window", {"size": 1})
_MIX = Scenario(tuple(zip("abcd", (_FULL, _FULL, _WINDOW, _WINDOW), strict=True)))
_NAMES = ("old", "new")


def _group(names: str, pages: int = 8, drafts: bool = False, **planned: OpenSpec) -> Group:
    """A group of layers as they were given, but for those that are planned otherwise."""
    given = tuple(_MIX.specs()[name] for name in names)
    specs = tuple(planned.get(name, spec) for name, spec in zip(names, given, strict=True))
    terms = Terms(given=given, planned=specs, drafts=drafts)
    return Group(tuple(names), (pages,) * len(names), terms)


def _plan(*groups: Group, blocks: int = 10, needed: int = 4, length: int = 100) -> Plan:
    places = (Place("a", 0, 0, 8),)
    rank = Rank((), blocks, (8 * blocks,), places, 1 << 20, (needed - 1, 1), needed)
    return Plan(groups, (rank,), length, facts=("zeroed", "of_one_alone"))


_PLAIN = (_group("ab"), _group("cd"))


def _reply(outcome: Outcome, scenario: Scenario = _MIX, **own: Any) -> Reply:
    reply = Replier(_CATALOGUE, {**_CATALOGUE, **own}, ("zeroed",)).reply(scenario, outcome)
    assert reply is not None
    return reply


def _differ(one: Outcome, other: Outcome) -> tuple[Difference, ...]:
    return differences(_reply(one), _reply(other), _NAMES)


_REFUSAL = Refusal("ValueError", "layer a has 'x' of 3 and 4 bytes")

DIFFERENCES: dict[str, tuple[Outcome, Difference]] = {
    "a refusal": (
        _REFUSAL,
        Difference(
            "refusal", "refused by new: ValueError: layer <layer> has <name> of # and # bytes"
        ),
    ),
    "a crash": (
        Crash("exception", "KeyError", "pack", "'b'"),
        Difference("refusal", "crashes in new: KeyError in pack: <name>"),
    ),
    "a death": (Crash("died", "SIGSEGV"), Difference("refusal", "crashes in new: died by SIGSEGV")),
    "a hang": (Crash("time-out"), Difference("refusal", "crashes in new: time-out")),
    "more groups": (
        _plan(_group("a"), _group("b"), _group("cd")),
        Difference("groups", "more groups in new", ("full",)),
    ),
    "fewer groups": (
        _plan(_group("abcd")),
        Difference("groups", "more groups in old", ("full", "window")),
    ),
    "other groups": (
        _plan(_group("ac"), _group("bd")),
        Difference("groups", "other groups", ("full", "window")),
    ),
    "no groups": (Plan(None), Difference("groups", "packed by old only", ("full", "window"))),
    "another kind": (
        _plan(_group("ab"), _group("cd", c=_FULL, d=_FULL)),
        Difference("kinds", "planned as window -> full", ("window",)),
    ),
    "another field": (
        _plan(_group("ab", a=open_spec("full", {"size": 2})), _group("cd")),
        Difference("geometry", "another size", ("full",)),
    ),
    "larger pages": (
        _plan(_group("ab"), _group("cd", pages=9)),
        Difference("pages", "larger pages in new", ("window",)),
    ),
    "smaller pages": (
        _plan(_group("ab", pages=7), _group("cd")),
        Difference("pages", "larger pages in old", ("full",)),
    ),
    "marks": (
        _plan(_group("ab"), _group("cd", drafts=True)),
        Difference("drafts", "more groups marked in new"),
    ),
    "need": (
        _plan(*_PLAIN, needed=3),
        Difference("need", "more bytes in old", ("full", "window")),
    ),
    "blocks": (
        _plan(*_PLAIN, blocks=11),
        Difference("capacity", "more blocks in new", ("full", "window")),
    ),
    "length": (
        _plan(*_PLAIN, length=99),
        Difference("capacity", "longer requests in old", ("full", "window")),
    ),
    "a fact": (
        msgspec.structs.replace(_plan(*_PLAIN), facts=()),
        Difference("facts", "zeroed in old"),
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_what_differs(name: str):
    outcome, difference = DIFFERENCES[name]
    assert _differ(_plan(*_PLAIN), outcome) == (difference,)


def test_every_aspect_is_among_them():
    assert {difference.aspect for _, difference in DIFFERENCES.values()} == set(ASPECTS)


def test_a_refusal_names_who_refuses():
    (difference,) = _differ(_REFUSAL, _plan(*_PLAIN))
    assert difference.how.startswith("refused by old: ValueError: ")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_plan(*_PLAIN), _plan(_group("dc"), _group("ba"))),  # in another order
        (_plan(_group("ac"), _group("bd")), _plan(_group("bc"), _group("ad"))),  # of alike layers
        (_REFUSAL, Crash("died", "SIGSEGV")),  # neither plans
        (Plan(None), Plan(None)),
    ],
)
def test_what_does_not_matter(one: Outcome, other: Outcome):
    assert _differ(one, other) == ()


def test_the_same_plan_has_the_same_bytes():
    one, other = _plan(*_PLAIN), _plan(_group("dc"), _group("ba"))
    moved = tuple(msgspec.structs.replace(rank, places=()) for rank in other.ranks)
    other = msgspec.structs.replace(other, ranks=moved)
    assert msgspec.json.encode(_reply(one)) == msgspec.json.encode(_reply(other))


def test_drafts_and_ranks_tell_alike_layers_apart():
    drafting = msgspec.structs.replace(_MIX, drafts=1)  # the last window
    one, other = _plan(_group("ac"), _group("bd")), _plan(_group("ad"), _group("bc"))
    replies = _reply(one, drafting), _reply(other, drafting)
    assert differences(*replies, _NAMES) == ()
    ranked = msgspec.structs.replace(drafting, ranks=(0, 1, 0, 1))
    replies = _reply(one, ranked), _reply(other, ranked)
    assert differences(*replies, _NAMES) == (
        Difference("groups", "other groups", ("full", "window")),
    )


def test_what_follows_is_not_told():
    other = _plan(_group("abcd", pages=9), needed=9)
    assert [d.aspect for d in _differ(_plan(*_PLAIN), other)] == ["groups"]


def test_several_kinds_are_told_one_by_one():
    other = _plan(_group("ab", pages=9), _group("cd", pages=7))
    assert _differ(_plan(*_PLAIN), other) == (
        Difference("pages", "larger pages in new", ("full",)),
        Difference("pages", "larger pages in old", ("window",)),
    )


def test_a_default_is_the_same_said_or_not():
    # The other target's own default is 5, and it says only what is not at it.
    own = {"window": KindForm("Window", {"size": FieldForm(type="int", default=5)})}
    spec = open_spec("window", {})
    plan = _plan(_group("ab"), _group("cd", c=spec, d=spec))
    said = open_spec("window", {"size": 5})
    alike = _plan(_group("ab"), _group("cd", c=said, d=said))
    assert differences(_reply(alike), _reply(plan, **own), _NAMES) == ()
    assert differences(_reply(plan), _reply(plan, **own), _NAMES) == (
        Difference("geometry", "another size", ("window",)),
    )


def test_fields_that_one_target_has_are_not_compared():
    spec = open_spec("full", {"size": 1, "later": 7})
    plan = _plan(_group("ab", a=spec, b=spec), _group("cd"))
    assert _differ(_plan(*_PLAIN), plan) == ()


def test_a_layer_that_nobody_asked_about():
    plan = Plan((*_PLAIN, Group(("z",), (8,))), _plan().ranks, 100)
    assert _differ(_plan(*_PLAIN), plan) == (Difference("groups", "more groups in new", ("",)),)


def test_what_was_not_asked_has_no_reply():
    assert Replier(_CATALOGUE, _CATALOGUE).reply(_MIX, NotExpressible("no such kind")) is None


def test_which_replies_are_of_a_process_that_ended():
    assert crash_reply(Crash("died", "SIGSEGV"), _MIX).passing
    assert crash_reply(Crash("time-out"), _MIX).passing
    assert not crash_reply(Crash("exception", "KeyError"), _MIX).passing
    assert not _reply(_REFUSAL).passing


def test_which_difference_shows_which():
    wide = Difference("groups", "more groups in new", ("full", "window"))
    narrow = Difference("groups", "more groups in new", ("full",))
    assert wide.shows(narrow)
    assert not narrow.shows(wide)
    assert not wide.shows(Difference("groups", "more groups in old", ("full",)))
