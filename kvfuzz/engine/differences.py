"""What the replies of two targets to one scenario differ in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import msgspec

from kvfuzz.engine.replies import Gathered, Part, Reply

#: Aspect -> what it is, in the order in which they are compared: those that
#: follow are compared only if those before are alike, as most would follow from it.
ASPECTS: Final = {
    "refusal": "one plans, the other refuses or crashes",
    "groups": "which layers share a group, or how many groups there are",
    "kinds": "the kind of a layer's spec in the plan",
    "geometry": "another field of that spec: block size, padding",
    "pages": "bytes of a layer's page",
    "drafts": "which groups are marked as a draft model's",
    "need": "bytes of one longest request, all ranks together",
    "capacity": "blocks of a rank, or the longest request planned for",
    "facts": "what the plan says of itself by yes or no, as whether new blocks must be zeroed",
}


class Difference(msgspec.Struct, frozen=True):
    """What tells a difference from others.

    Attributes:
        aspect: Of ASPECTS.
        how: In which way, in a few fixed words.
        kinds: The kinds of layers concerned, in order.
    """

    aspect: str
    how: str
    kinds: tuple[str, ...] = ()

    def shows(self, other: Difference) -> bool:
        """Whether a scenario with this difference shows the other one, of no more kinds, too."""
        alike = self.aspect == other.aspect and self.how == other.how
        return alike and set(other.kinds) <= set(self.kinds)


#: What the two targets are called.
Names: TypeAlias = tuple[str, str]
#: The parts of a group without what is planned for them.
_Shape: TypeAlias = tuple[tuple[int, int], ...]


def differences(one: Reply, other: Reply, names: Names) -> tuple[Difference, ...]:
    """The differences of the first aspect in which two replies differ.

    Args:
        one: What one target answered.
        other: What the other did.
        names: What they are called.
    """
    if one.planned != other.planned:
        return (_refusal(one, other, names),)
    if not one.planned:
        return ()
    for compare in (_groups, _kinds, _geometry, _pages, _drafts, _need, _capacity, _facts):
        if found := tuple(dict.fromkeys(compare(one, other, names))):
            return found
    return ()


def _refusal(one: Reply, other: Reply, names: Names) -> Difference:
    refused, name = (other, names[1]) if one.planned else (one, names[0])
    verb = "refused by" if refused.outcome == "refusal" else "crashes in"
    return Difference("refusal", f"{verb} {name}: {refused.why}")


def _groups(one: Reply, other: Reply, names: Names) -> Iterator[Difference]:
    if one.outcome != other.outcome:
        who = names[one.outcome == "none"]
        yield Difference("groups", f"packed by {who} only", _all_kinds(one, other))
        return
    mine, theirs = _shapes(one.groups), _shapes(other.groups)
    if mine != theirs:
        given = {part.layer: part.given for part in _parts((*one.groups, *other.groups))}
        apart = (mine - theirs) + (theirs - mine)
        kinds = {given[layer] for shape in apart for layer, _ in shape}
        how = _more("more", "groups", mine.total(), theirs.total(), names)
        yield Difference("groups", how, tuple(sorted(kinds)))


def _shape(group: Gathered) -> _Shape:
    counts: Counter[int] = Counter()
    for part in group.parts:
        counts[part.layer] += part.count
    return tuple(sorted(counts.items()))


def _shapes(groups: Iterable[Gathered]) -> Counter[_Shape]:
    shapes: Counter[_Shape] = Counter()
    for group in groups:
        shapes[_shape(group)] += group.times
    return shapes


def _parts(groups: Iterable[Gathered]) -> Iterator[Part]:
    return (part for group in groups for part in group.parts)


def _all_kinds(*replies: Reply) -> tuple[str, ...]:
    return tuple(sorted({part.given for reply in replies for part in _parts(reply.groups)}))


def _looks(reply: Reply, look: Callable[[Part], Any]) -> dict[tuple[int, str], Counter[Any]]:
    """Layer, with the kind that it was given with -> how many that are like it look how."""
    looks: dict[tuple[int, str], Counter[Any]] = {}
    for group in reply.groups:
        for part in group.parts:
            counts = looks.setdefault((part.layer, part.given), Counter())
            counts[look(part)] += group.times * part.count
    return looks


def _otherwise(
    one: Reply, other: Reply, look: Callable[[Part], Any]
) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Of each layer that does not look alike: its kind, and how it looks to one only, to the other.

    The groups are alike, so that both have the same layers.
    """
    mine, theirs = _looks(one, look), _looks(other, look)
    for layer, kind in mine:
        here, there = mine[layer, kind], theirs[layer, kind]
        if here != there:
            yield kind, list(here - there), list(there - here)


def _kinds(one: Reply, other: Reply, names: Names) -> Iterator[Difference]:
    for kind, here, there in _otherwise(one, other, lambda part: part.kind):
        before, after = (" and ".join(sorted(kinds)) for kinds in (here, there))
        yield Difference("kinds", f"planned as {before} -> {after}", (kind,))


def _geometry(one: Reply, other: Reply, names: Names) -> Iterator[Difference]:
    for kind, here, there in _otherwise(one, other, lambda part: part.fields):
        held = [set(fields) for fields in (*here, *there)]
        for name in sorted({name for name, _ in set.union(*held) - set.intersection(*held)}):
            yield Difference("geometry", f"another {name}", (kind,))


def _pages(one: Reply, other: Reply, names: Names) -> Iterator[Difference]:
    for kind, here, there in _otherwise(one, other, lambda part: part.page):
        yield Difference("pages", _more("larger", "pages", sum(here), sum(there), names), (kind,))


def _drafts(one: Reply, other: Reply, names: Names) -> Iterator[Difference]:
    mine, theirs = (_shapes(g for g in reply.groups if g.drafts) for reply in (one, other))
    if mine != theirs:
        how = _more("more", "groups marked", mine.total(), theirs.total(), names)
        yield Difference("drafts", how)  # of whatever kind: a mark is made by place


def _need(one: Reply, other: Reply, names: Names) -> Iterator[Difference]:
    mine, theirs = (sum(rank.needed * rank.block for rank in r.ranks) for r in (one, other))
    if mine != theirs:
        yield Difference("need", _more("more", "bytes", mine, theirs, names), _all_kinds(one))


def _capacity(one: Reply, other: Reply, names: Names) -> Iterator[Difference]:
    if one.max_model_len != other.max_model_len:
        how = _more("longer", "requests", one.max_model_len, other.max_model_len, names)
        yield Difference("capacity", how, _all_kinds(one))
        return
    mine, theirs = ([rank.blocks for rank in reply.ranks] for reply in (one, other))
    if mine != theirs:
        how = _more("more", "blocks", sum(mine), sum(theirs), names)
        yield Difference("capacity", how, _all_kinds(one))


def _facts(one: Reply, other: Reply, names: Names) -> Iterator[Difference]:
    for fact in sorted(set(one.facts) ^ set(other.facts)):
        # Of whatever kinds: it follows from what the plan has in common or not.
        yield Difference("facts", f"{fact} in {names[fact in other.facts]}")


def _more(more: str, what: str, mine: int, theirs: int, names: Names) -> str:
    """`more blocks in T`, where T is the target that has more."""
    if mine == theirs:
        return f"other {what}"
    return f"{more} {what} in {names[theirs > mine]}"
