"""Rules over what a plan says of the layers' own specs."""

from __future__ import annotations

from collections.abc import Iterator

from kvfuzz.invariants.registry import Trial, Violation, groups_of, invariant, planned
from kvfuzz.outcomes import Group, Terms
from kvfuzz.specs import OpenSpec, Value

#: What a planner is there to change: how many tokens a block has, and what its page is padded to.
_PLANNED = frozenset({"block_size", "page_size_padded"})
#: Fields that bound what a layer keeps of its context. A layer that has one
#: may be promoted to a kind that has none, and then keeps everything.
_BOUNDS = ("sliding_window", "attention_chunk_size")
_UNSET = object()


def _told(trial: Trial) -> bool:
    return planned(trial) and all(group.terms is not None for group in groups_of(trial))


def _terms(trial: Trial) -> Iterator[tuple[Group, Terms]]:
    for group in groups_of(trial):
        assert group.terms is not None
        yield group, group.terms


def _said(spec: OpenSpec, name: str) -> Value:
    return dict(spec.fields).get(name, "its default")


def _changed(given: OpenSpec, made: OpenSpec, exempt: frozenset[str]) -> list[str]:
    """Names of the fields that differ."""
    before, after = dict(given.fields), dict(made.fields)
    return sorted(
        name
        for name in before.keys() | after.keys()
        if name not in exempt and before.get(name, _UNSET) != after.get(name, _UNSET)
    )


class NothingLostViolation(Violation):
    """A layer's spec in the plan is not the one that it had."""

    invariant = "nothing-lost"


@invariant(
    NothingLostViolation,
    claim=(
        "A layer's spec in the plan is the one that it had, but for its block size, padding and "
        "a promotion that makes it keep its whole context."
    ),
    source="The planned spec stands for the layer: allocators and backends read it.",
    applies_to="plans that say what became of each spec",
    surfaces=("merge", "groups"),
    severity="silent wrong plan",
    applies=_told,
)
def nothing_lost(trial: Trial) -> None:
    """Judge each layer's spec, field by field, where all layers of the group agree."""
    # Nothing may differ where specs are merged as they are.
    exempt = frozenset() if trial.surface == "merge" else _PLANNED
    for group, terms in _terms(trial):
        if terms.given == terms.planned:
            continue
        alike = len(set(terms.given)) == 1
        for layer, given, made, page in zip(
            group.layers, terms.given, terms.planned, group.pages, strict=True
        ):
            if given is made or (terms.shared is not None and not alike):
                continue  # of one spec for layers that differ `group-attributes-true` judges
            found = _lost(given, made, exempt)
            if found is None:
                continue
            symptom, got, expected = found
            # What a reader wants to know first: whether memory is at stake.
            before = trial.pages.get(layer, page)
            if (not exempt or given.block_size == made.block_size) and before != page:
                got += f", and a page of {page} bytes"
                expected += f", and a page of {before} bytes"
            raise NothingLostViolation(
                symptom=symptom,
                got=got,
                expected=expected,
                layers=(layer,) if terms.shared is None else group.layers,
                groups=groups_of(trial),
            )


def _lost(given: OpenSpec, made: OpenSpec, exempt: frozenset[str]) -> tuple[str, str, str] | None:
    """Symptom, got and expected of the first thing that became other."""
    if given.kind != made.kind:
        before, after = dict(given.fields), dict(made.fields)
        if not exempt or not any(name in before for name in _BOUNDS):
            return (
                f"{given.kind} becomes {made.kind}",
                f"a spec of kind {made.kind}",
                f"one of kind {given.kind}",
            )
        # Promoted: what both kinds have must be the same.
        exempt = exempt | (before.keys() - after.keys()) | (after.keys() - before.keys())
    # One field tells one root: a spec that loses two loses each.
    names = _changed(given, made, exempt)
    if not names:
        return None
    name = names[0]
    return (
        f"{given.kind} changes {name}",
        f"{name}={_said(made, name)} in the planned {made.kind} spec",
        f"{name}={_said(given, name)}, as in the layer's own spec",
    )


class GroupAttributesTrueViolation(Violation):
    """What a group says of itself is not so of a layer of it."""

    invariant = "group-attributes-true"


def _differing(trial: Trial) -> bool:
    return _told(trial) and any(len(set(terms.given)) > 1 for _, terms in _terms(trial))


@invariant(
    GroupAttributesTrueViolation,
    claim="What the one spec of a group says is so of each of its layers.",
    source="Backends and connectors ask the group, not the layer, for window, causality and mode.",
    applies_to="plans with a group whose layers had several specs",
    surfaces=("groups",),
    severity="silent wrong plan",
    applies=_differing,
)
def group_attributes_true(trial: Trial) -> None:
    """Judge the fields that the group's spec sets against those of each layer's own."""
    for group, terms in _terms(trial):
        if terms.kind == "unknown":
            kinds = " and ".join(sorted({spec.kind for spec in terms.planned}))
            bounded = all(any(name in dict(s.fields) for name in _BOUNDS) for s in terms.planned)
            raise GroupAttributesTrueViolation(
                symptom="windows of no kind" if bounded else "of no kind",
                got=f"a group of {kinds} layers whose kind is unknown",
                expected="a kind that its layers have",
                layers=group.layers,
                groups=groups_of(trial),
            )
        shared = terms.shared
        if shared is None or (shared is terms.given[0] and len(set(map(id, terms.given))) == 1):
            continue
        for layer, given in zip(group.layers, terms.given, strict=True):
            name = _untrue(given, shared)
            if name is None:
                continue
            if name == "kind":
                said, own = shared.kind, given.kind
            else:
                said, own = str(_said(shared, name)), str(_said(given, name))
            raise GroupAttributesTrueViolation(
                symptom=f"{shared.kind} says {name}",
                got=f"a group whose spec says {name}={said}",
                expected=f"{name}={own}, as {layer} has it, or a group of its own",
                layers=group.layers,
                groups=groups_of(trial),
            )


def _untrue(given: OpenSpec, shared: OpenSpec) -> str | None:
    """The first field in which the shared spec is not the layer's own."""
    if given.kind != shared.kind:
        return "kind" if not any(name in dict(given.fields) for name in _BOUNDS) else None
    names = _changed(given, shared, _PLANNED)
    return names[0] if names else None
