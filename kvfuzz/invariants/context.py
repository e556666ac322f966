"""Rules over the blocks that layers take, by how much of their context they keep."""

from __future__ import annotations

from collections.abc import Iterator

from kvfuzz.invariants.registry import Trial, Violation, groups_of, invariant, planned, ranks_of
from kvfuzz.outcomes import Plan
from kvfuzz.specs import OpenSpec

#: Kinds of layers that keep something else than the tokens of a request: an encoder's, or a ring.
_OTHER_CONTEXT = ("cross_attention", "encoder_only_attention", "circular_buffer", "kpool_tail")


class BoundedNeverDearerViolation(Violation):
    """A layer that keeps a part of its context takes more blocks than one that keeps all."""

    invariant = "bounded-never-dearer"


@invariant(
    BoundedNeverDearerViolation,
    claim="A layer with a window or chunks takes no more blocks than keeping every token would.",
    source="A window is there to save memory; one longer than the request has nothing to free.",
    applies_to="plans that say what each layer takes, without context parallelism",
    surfaces=("groups",),
    severity="waste",
    applies=lambda trial: (
        planned(trial) and trial.scenario.config.decode_context_parallel_size == 1
    ),
)
def bounded_never_dearer(trial: Trial) -> None:
    """Judge each layer's own account."""
    length = trial.scenario.config.max_model_len
    judged: set[int] = set()
    for layer, given, tokens, blocks in _alone(trial):
        # Most layers share a spec with one before them.
        if id(given) in judged:
            continue
        judged.add(id(given))
        if not tokens or not (given.sliding_window or given.attention_chunk_size):
            continue
        whole = -(-length // tokens)
        if blocks > whole:
            raise BoundedNeverDearerViolation(
                symptom=given.kind,
                got=f"{blocks} blocks of {tokens} tokens for {layer}",
                expected=f"at most {whole}, which hold all {length} tokens",
                layers=(layer,),
                groups=groups_of(trial),
            )


class KeptContextFitsViolation(Violation):
    """A layer has fewer blocks than the tokens take that it keeps."""

    invariant = "kept-context-fits"


@invariant(
    KeptContextFitsViolation,
    claim=(
        "A layer takes at least the blocks that hold what it keeps of one longest request: all "
        "tokens, or a window or chunk with those of a step, or its states."
    ),
    source="An engine that counts on fewer accepts a request that then waits for blocks.",
    applies_to="plans that say what each layer takes, without context parallelism",
    surfaces=("groups", "config"),
    severity="silent wrong plan",
    applies=lambda trial: (
        planned(trial) and trial.scenario.config.decode_context_parallel_size == 1
    ),
)
def kept_context_fits(trial: Trial) -> None:
    """Judge what each layer takes by itself; of ranks, what its group takes."""
    judged: set[tuple[int, int, int]] = set()
    for layer, given, tokens, blocks in (_grouped if ranks_of(trial) else _alone)(trial):
        if (key := (id(given), tokens, blocks)) in judged or not tokens:
            continue
        judged.add(key)
        kept = _kept(trial, given, tokens)
        if blocks * tokens < kept:
            raise KeptContextFitsViolation(
                symptom=given.kind,
                got=f"{blocks} blocks of {tokens} tokens for {layer}",
                expected=f"at least {-(-kept // tokens)}, for {kept} tokens",
                layers=(layer,),
                groups=groups_of(trial),
            )


def _alone(trial: Trial) -> Iterator[tuple[str, OpenSpec, int, int]]:
    """A layer, the spec that it had, tokens of its block, and blocks that it takes by itself."""
    for group in groups_of(trial):
        if group.terms is not None:
            for layer, given, blocks in zip(
                group.layers, group.terms.given, group.terms.own_blocks, strict=True
            ):
                yield layer, given, given.block_size or 0, blocks


def _grouped(trial: Trial) -> Iterator[tuple[str, OpenSpec, int, int]]:
    """A rank's layer, the spec that it had, tokens of its planned block, and its group's blocks."""
    specs = {
        layer: (given, made.block_size or 0)
        for group in groups_of(trial)
        if group.terms is not None
        for layer, given, made in zip(
            group.layers, group.terms.given, group.terms.planned, strict=True
        )
    }
    for rank in ranks_of(trial):
        for layers, blocks in zip(rank.groups, rank.needed, strict=True):
            for layer in layers:
                if layer in specs:
                    yield layer, *specs[layer], blocks


def _kept(trial: Trial, given: OpenSpec, block: int) -> int:
    """Tokens that a layer must have blocks for at one time, at least; a block has `block`.

    Of states there is one a block: the running one, and in mode `align` also that at the last
    block's edge.
    """
    config = trial.scenario.config
    length = config.max_model_len
    if ranks_of(trial) and isinstance(trial.outcome, Plan):
        length = trial.outcome.max_model_len  # it may have been fitted
    if given.kind in _OTHER_CONTEXT:
        return 0
    if given.shapes:
        return min({"none": 1, "align": block + 1, "all": length}[config.mamba_cache_mode], length)
    bound: int | None = given.sliding_window or given.attention_chunk_size
    return length if bound is None else min(bound - 1 + config.max_num_batched_tokens, length)
