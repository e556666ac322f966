"""Rules over the buffers that a plan allocates."""

from __future__ import annotations

from kvfuzz.invariants.registry import Trial, Violation, groups_of, invariant, planned, ranks_of
from kvfuzz.outcomes import Place, Rank


class RanksOwnTheirLayersViolation(Violation):
    """A rank does not allocate its own layers, each once."""

    invariant = "ranks-own-their-layers"


@invariant(
    RanksOwnTheirLayersViolation,
    claim="Each rank has in its groups and buffers its own layers, each once, and no others.",
    source="A worker binds each of its layers to the one buffer that names it.",
    applies_to="plans for the ranks of a pipeline",
    surfaces=("config",),
    severity="silent wrong plan",
    applies=lambda trial: planned(trial) and bool(ranks_of(trial)),
)
def ranks_own_their_layers(trial: Trial) -> None:
    """Judge the layer names of each rank's groups and places."""
    scenario = trial.scenario
    ranks = scenario.ranks or (0,) * len(scenario)
    for number, rank in enumerate(ranks_of(trial)):
        own = sorted(
            name for (name, _), at in zip(scenario.mix, ranks, strict=True) if at == number
        )
        grouped = sorted(name for group in rank.groups for name in group)
        placed = sorted(place.layer for place in rank.places)
        for what, names in (("groups", grouped), ("buffers", placed)):
            if names != own:
                raise RanksOwnTheirLayersViolation(
                    symptom=f"{what} of other layers",
                    got=f"rank {number} with {', '.join(names) or 'nothing'} in its {what}",
                    expected=", ".join(own) or "nothing",
                    layers=tuple(own),
                    groups=groups_of(trial),
                )


class TensorsDisjointViolation(Violation):
    """Two pages that can be in use at once share bytes, or one is outside its buffer."""

    invariant = "tensors-disjoint"


@invariant(
    TensorsDisjointViolation,
    claim=(
        "Pages of one block of two layers of a group, and pages of two blocks of any layers, "
        "share no byte, and all are inside their buffers."
    ),
    source="A block id is owned by one group at a time; what overlaps otherwise is overwritten.",
    applies_to="plans with buffers and blocks",
    surfaces=("config",),
    severity="silent wrong plan",
    applies=lambda trial: planned(trial) and any(r.blocks and r.places for r in ranks_of(trial)),
)
def tensors_disjoint(trial: Trial) -> None:
    """Judge the pages of the first and last blocks, in order of their bytes."""
    pages = {
        name: page
        for group in groups_of(trial)
        for name, page in zip(group.layers, group.pages, strict=True)
    }
    for rank in ranks_of(trial):
        group_of = {name: i for i, group in enumerate(rank.groups) for name in group}
        for buffer, size in enumerate(rank.buffers):
            # Of layers of other ranks `ranks-own-their-layers` judges.
            places = [p for p in rank.places if p.buffer == buffer and p.layer in group_of]
            _judge(trial, rank, places, pages, group_of, size)


def _judge(
    trial: Trial,
    rank: Rank,
    places: list[Place],
    pages: dict[str, int],
    group_of: dict[str, int],
    size: int,
) -> None:
    # What repeats from block to block shows at the ends.
    blocks = sorted({b for b in (0, 1, rank.blocks - 2, rank.blocks - 1) if 0 <= b < rank.blocks})
    spans = sorted(
        (place.offset + block * place.stride, pages[place.layer], block, place.layer)
        for place in places
        for block in blocks
    )
    for start, page, block, layer in spans:
        if start < 0 or start + page > size:
            raise TensorsDisjointViolation(
                symptom="outside its buffer",
                got=f"block {block} of {layer} at bytes {start} to {start + page} of {size}",
                expected="pages inside the buffer",
                layers=(layer,),
                groups=groups_of(trial),
            )
    reach: list[tuple[int, int, int, str]] = []  # spans that reach beyond the one at hand
    for span in spans:
        start, page, block, layer = span
        reach = [other for other in reach if other[0] + other[1] > start]
        for _, _, other_block, other in reach:
            if block != other_block or group_of[layer] == group_of[other]:
                same = block == other_block
                raise TensorsDisjointViolation(
                    symptom="layers of a group overlap" if same else "blocks overlap",
                    got=f"block {block} of {layer} and block {other_block} of {other} share bytes",
                    expected="bytes of their own",
                    layers=(other, layer),
                    groups=groups_of(trial),
                )
        if page:
            reach.append(span)
