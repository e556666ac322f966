"""Rules over the pages of a plan for a whole engine."""

from __future__ import annotations

from math import gcd

from kvfuzz.invariants.registry import Trial, Violation, groups_of, invariant, planned
from kvfuzz.outcomes import Group


class PagesCompatibleViolation(Violation):
    """A page of the plan does not hold its data, or does not fit the pool."""

    invariant = "pages-compatible"


def block_outermost(trial: Trial) -> bool:
    """Whether a block of the pool holds pages of any sizes side by side."""
    return (trial.scenario.config.layout or "").startswith("B")


@invariant(
    PagesCompatibleViolation,
    claim=(
        "A page of the plan holds as many bytes a token as the layer's own page, and groups that "
        "share a pool of pages have one page size."
    ),
    source="A block id stands for one page of each layer of whichever group has taken it.",
    applies_to="plans with groups",
    surfaces=("groups",),
    severity="silent wrong plan",
    applies=planned,
)
def pages_compatible(trial: Trial) -> None:
    """Judge each layer's page by its own, then the groups' pages by each other."""
    groups = groups_of(trial)
    for group in groups:
        assert group.terms is not None
        members = zip(
            group.layers, group.pages, group.terms.given, group.terms.planned, strict=True
        )
        judged: set[int] = set()
        for layer, page, given, made in members:
            if given is made or id(given) in judged:
                continue
            judged.add(id(given))
            own = trial.pages.get(layer)
            if own is None or not given.kind:
                continue  # a foreign layer is `partition`'s business, a removed one `pure`'s
            if given.page_size_padded or given.alignment:
                continue  # what its data takes is not known
            # A state takes what it takes; other pages hold something of each token.
            before, after = (1, 1) if given.shapes else (given.block_size, made.block_size)
            if page * before < own * after:
                raise PagesCompatibleViolation(
                    symptom=f"{given.kind} page too small",
                    got=f"a page of {page} bytes for {made.block_size} tokens of {layer}",
                    expected=f"at least its own {own} bytes for {given.block_size} tokens",
                    layers=(layer,),
                    groups=groups,
                )
    if block_outermost(trial):
        return
    pools = {group.pages[0] for group in groups if group.terms and group.terms.shared}
    if len(pools) > 1 and all(group.terms and group.terms.shared for group in groups):
        raise PagesCompatibleViolation(
            symptom="groups of several page sizes",
            got=f"groups of one spec each with pages of {', '.join(map(str, sorted(pools)))} bytes",
            expected="one page size",
            groups=groups,
        )


class BlocksDivideViolation(Violation):
    """Blocks of a plan have less in common than the layers' own."""

    invariant = "blocks-divide"


@invariant(
    BlocksDivideViolation,
    claim=(
        "The greatest common divisor of a plan's block sizes is no less than that of the layers' "
        "own, or than the smallest block of the plan."
    ),
    source="Prefixes are hashed by a block that divides all: the finer, the more hashes.",
    applies_to="plans with groups, some layer of which has another block size than its own",
    surfaces=("groups",),
    severity="waste",
    applies=lambda trial: planned(trial) and any(_rescaled(group) for group in groups_of(trial)),
)
def blocks_divide(trial: Trial) -> None:
    """Judge the greatest common divisor of the planned block sizes."""
    given: set[int] = set()
    made: set[int] = set()
    for group in groups_of(trial):
        if group.terms is not None:
            given.update(spec.block_size or 0 for spec in group.terms.given)
            made.update(spec.block_size or 0 for spec in group.terms.planned)
    made.discard(0)
    least = min(gcd(*given), min(made, default=0))
    if gcd(*made) < least:
        raise BlocksDivideViolation(
            symptom="finer blocks",
            got=f"blocks of {', '.join(map(str, sorted(made)))} tokens, hashed by {gcd(*made)}",
            expected=f"blocks that {least} tokens divide",
            layers=tuple(trial.pages),
            groups=groups_of(trial),
        )


def _rescaled(group: Group) -> bool:
    terms = group.terms
    return terms is not None and any(
        made is not given and made.block_size != given.block_size
        for given, made in zip(terms.given, terms.planned, strict=True)
    )
