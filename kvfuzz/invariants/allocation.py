"""Rules over the buffers that a plan allocates, and the tables that lead there."""

from __future__ import annotations

from kvfuzz.invariants.registry import Trial, Violation, groups_of, invariant, planned, ranks_of
from kvfuzz.outcomes import Place, Rank, Row
from kvfuzz.specs import OpenSpec


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
            spec = trial.scenario.specs().get(layer)
            raise TensorsDisjointViolation(
                symptom=f"{spec.kind if spec is not None else 'layer'} outside its buffer",
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
            within = group_of[layer] == group_of[other]
            if block != other_block or within:
                whose = "a layer" if layer == other else "a group" if within else "several groups"
                raise TensorsDisjointViolation(
                    symptom=f"{'layers' if block == other_block else 'blocks'} of {whose} overlap",
                    got=f"block {block} of {layer} and block {other_block} of {other} share bytes",
                    expected="bytes of their own",
                    layers=(other, layer),
                    groups=groups_of(trial),
                )
        if page:
            reach.append(span)


class TableWidthViolation(Violation):
    """A group's block table has not the room that its layers count on."""

    invariant = "table-width"


@invariant(
    TableWidthViolation,
    claim=(
        "A row of a group's block table has as many entries as each of its layers would have by "
        "itself, and room for the blocks of one longest request."
    ),
    source="Kernels step through a table by the width that a layer's own spec tells.",
    applies_to="plans whose specs tell how long a row is",
    surfaces=("config",),
    severity="silent wrong plan",
    applies=lambda trial: planned(trial) and any(rank.rows for rank in ranks_of(trial)),
)
def table_width(trial: Trial) -> None:
    """Judge the row of each rank's groups by the layers', then by what the group takes."""
    had = {
        name: given
        for group in groups_of(trial)
        if group.terms is not None
        for name, given in zip(group.layers, group.terms.given, strict=True)
    }
    for rank in ranks_of(trial):
        for names, row, taken in zip(rank.groups, rank.rows, rank.needed, strict=True):
            as_billed = all(_as_billed(trial, had[name]) for name in names if name in had)
            found = _unfit(row, taken if as_billed else 0)
            if found is not None:
                symptom, got, expected = found
                raise TableWidthViolation(
                    symptom=symptom,
                    got=got,
                    expected=expected,
                    layers=names,
                    groups=groups_of(trial),
                )


def _unfit(row: Row, least: int) -> tuple[str, str, str] | None:
    """Symptom, got and expected of a row, which must have `least` entries; None if it fits."""
    if not row.layers:
        return None
    widths = sorted(set(row.layers))
    if row.group is None or len(widths) > 1:
        got = f"layers whose rows have {', '.join(map(str, widths))} entries"
        return "layers differ", got, "one number for all layers of a group"
    got = f"a row of {row.group} entries"
    if row.group != widths[0]:
        return "not as its layers", got, f"{widths[0]}, as each layer has by itself"
    if row.group < least:
        return "less than it takes", got, f"at least the {least} blocks of one longest request"
    return None


def _as_billed(trial: Trial, spec: OpenSpec) -> bool:
    """Whether a layer's blocks are those of its request's tokens, each at its place in the row.

    A window or chunk can be billed too much, as `bounded-never-dearer` says, and so can states at
    block edges, two of which are billed however short the request is; cross attention keeps an
    encoder's tokens, of which a length says nothing.
    """
    if spec.kind == "cross_attention" or spec.sliding_window or spec.attention_chunk_size:
        return False
    return not (spec.shapes and trial.scenario.config.mamba_cache_mode == "align")
