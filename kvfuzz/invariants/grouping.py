"""Rules over the groups of a plan: the three founding invariants."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from kvfuzz.invariants.registry import (
    Trial,
    Violation,
    answered,
    groups_of,
    invariant,
    planned,
)


def _uniform(trial: Trial) -> bool:
    return answered(trial) and len(set(trial.pages.values())) <= 1


class UniformIsNoneViolation(Violation):
    """Groups were made although there is one page size only."""

    invariant = "uniform-is-none"


@invariant(
    UniformIsNoneViolation,
    claim="If all layers have one page size, the packer returns None.",
    source="vLLM pull request 48256 (in 0.26.0): packing is for layers of different page sizes.",
    applies_to="mixes with at most one distinct page size that the packer answered",
    surfaces=("pack",),
    severity="silent wrong plan",
    applies=_uniform,
)
def uniform_is_none(trial: Trial) -> None:
    """Judge a mix of one page size."""
    if planned(trial):
        groups = groups_of(trial)
        page = next(iter(trial.pages.values()), 0)
        raise UniformIsNoneViolation(
            symptom="groups",
            got=f"{len(groups)} groups",
            expected=f"None, since every page is {page} bytes",
            layers=tuple(trial.pages),
            groups=groups,
        )


class PartitionViolation(Violation):
    """A layer is in no group, in several, or was never asked for."""

    invariant = "partition"


@invariant(
    PartitionViolation,
    claim="If a planner takes a mix, every layer of it is in exactly one group.",
    source="get_kv_cache_configs stops on a layer without a group; a tensor has one owner.",
    applies_to="plans with groups",
    surfaces=("pack", "groups", "config"),
    severity="silent wrong plan",
    applies=planned,
)
def partition(trial: Trial) -> None:
    """Judge that groups partition the layers: none lost, none twice, none foreign, none empty."""
    groups = groups_of(trial)
    parts = [group.layers for group in groups]
    names = [*chain.from_iterable(parts)]
    if len(names) == len(trial.pages) and trial.pages.keys() == set(names):
        if () not in parts:
            return
        raise PartitionViolation(
            symptom="empty group", got="a group without layers", expected="none", groups=groups
        )
    counts = Counter(names)
    lost = tuple(name for name in trial.pages if name not in counts)
    foreign = tuple(name for name in counts if name not in trial.pages)
    twice = tuple(name for name, count in counts.items() if count > 1)
    for symptom, layers in (("lost", lost), ("foreign", foreign), ("repeated", twice)):
        if layers:
            raise PartitionViolation(
                symptom=symptom,
                got=f"{symptom} layers: {', '.join(layers)}",
                expected="each layer of the mix in one group",
                layers=layers,
                groups=groups,
            )


class SinglePageSizeViolation(Violation):
    """One group holds layers of several page sizes."""

    invariant = "single-page-size"


@invariant(
    SinglePageSizeViolation,
    claim="No group mixes page sizes.",
    source="A block of a group is one page of each of its layers, and a pool has one page size.",
    applies_to="plans with groups",
    surfaces=("pack",),
    severity="silent wrong plan",
    applies=planned,
)
def single_page_size(trial: Trial) -> None:
    """Judge each group by the page sizes that the plan gives its layers."""
    groups = groups_of(trial)
    for group in groups:
        if len(set(group.pages)) > 1:
            # A layer that is none of the mix's is `partition`'s business.
            members = zip(group.layers, group.pages, strict=True)
            own = {name: page for name, page in members if name in trial.pages}
            pages = dict.fromkeys(own.values())
            if len(pages) <= 1:
                continue
            kinds = sorted({spec.kind for name, spec in trial.scenario.mix if name in own})
            sizes = ", ".join(map(str, pages))
            raise SinglePageSizeViolation(
                # Which kinds a mixed group holds tells one bug from another.
                symptom=f"group of {' and '.join(kinds)}",
                got=f"a group of {' and '.join(kinds)} layers with pages of {sizes} bytes",
                expected="one page size in each group",
                layers=group.layers,
                groups=groups,
            )
