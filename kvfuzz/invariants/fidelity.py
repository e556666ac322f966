"""Rules over what a plan says of the layers' own specs."""

from __future__ import annotations

from kvfuzz.invariants.registry import Trial, Violation, answered, groups_of, invariant
from kvfuzz.specs import OpenSpec, Value


class NothingLostViolation(Violation):
    """A merged spec is not the one that every layer had."""

    invariant = "nothing-lost"


def _merged_alike(trial: Trial) -> bool:
    if not answered(trial):
        return False
    merges = [group.merged for group in groups_of(trial)]
    return all(merged is not None and len(merged.given) == 1 for merged in merges)


@invariant(
    NothingLostViolation,
    claim="Specs that are all equal merge into a spec that equals them in class and every field.",
    source="The merged spec stands for each layer of its group: allocators and backends read it.",
    applies_to="merges of equal specs that gave a spec",
    surfaces=("merge",),
    applies=_merged_alike,
)
def nothing_lost(trial: Trial) -> None:
    """Judge what came out against what went in, field by field."""
    for group in groups_of(trial):
        assert group.merged is not None
        (given,), made = group.merged.given, group.merged.made
        if given == made:
            continue
        if given.kind != made.kind:
            symptom = f"{given.kind} becomes {made.kind}"
            got, expected = f"a spec of kind {made.kind}", f"one of kind {given.kind}"
        else:
            # One field tells one root: a spec that loses two loses each.
            name = _changed(given, made)[0]
            symptom = f"{given.kind} changes {name}"
            got = f"{name}={_said(made, name)} in the merged {made.kind} spec"
            expected = f"{name}={_said(given, name)}, as in each layer's spec"
        # What a reader wants to know first: whether memory is at stake.
        if (page := trial.pages[group.layers[0]]) != group.pages[0]:
            got += f", and a page of {group.pages[0]} bytes"
            expected += f", and a page of {page} bytes"
        raise NothingLostViolation(
            symptom=symptom,
            got=got,
            expected=expected,
            layers=group.layers,
            groups=groups_of(trial),
        )


def _changed(given: OpenSpec, made: OpenSpec) -> list[str]:
    before, after = dict(given.fields), dict(made.fields)
    unset = object()
    return sorted(
        name
        for name in before.keys() | after.keys()
        if before.get(name, unset) != after.get(name, unset)
    )


def _said(spec: OpenSpec, name: str) -> Value:
    return dict(spec.fields).get(name, "its default")
