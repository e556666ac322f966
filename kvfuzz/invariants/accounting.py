"""Rules over what a plan says it needs, and what it is given.

The arithmetic here is an independent small model: what a block takes is read
from the buffers that are allocated, what a request needs is the sum of its
groups' blocks, and one block is the null block that no request gets.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from kvfuzz.invariants.registry import Trial, Violation, groups_of, invariant, planned, ranks_of
from kvfuzz.outcomes import Group, Plan, Rank, Refusal
from kvfuzz.specs import OpenSpec

#: The block that stands for "none" in block tables.
_NULL_BLOCKS = 1
#: A plan may take so many times what its layers take by themselves.
_OVERHEAD = 4
#: And so many times what it takes if all groups have the best number of layers.
_WIDER = 1.25
#: And so many groups for each distinct spec.
_GROUPS_A_SPEC = 8


def _allocated(trial: Trial) -> bool:
    return planned(trial) and any(rank.buffers for rank in ranks_of(trial))


class OneAccountingViolation(Violation):
    """What is needed, what is allocated and what was given do not agree."""

    invariant = "one-accounting"


@invariant(
    OneAccountingViolation,
    claim=(
        "A plan that is accepted has, on every rank, as many blocks beside the null block as one "
        "longest request takes, and takes no more memory than there is."
    ),
    source="A request that needs more blocks than there can ever be waits without end.",
    applies_to="plans with buffers",
    surfaces=("config",),
    severity="silent wrong plan",
    applies=_allocated,
)
def one_accounting(trial: Trial) -> None:
    """Judge each rank's blocks and bytes."""
    assert isinstance(trial.outcome, Plan)
    config = trial.scenario.config
    override = config.num_gpu_blocks_override
    counts = {rank.blocks for rank in ranks_of(trial)}
    if len(counts) > 1:
        raise _wrong(trial, "ranks differ", f"{sorted(counts)} blocks", "as many on each rank")
    for rank in ranks_of(trial):
        usable = rank.blocks - _NULL_BLOCKS
        needed = sum(rank.needed)
        if needed > usable:
            raise _wrong(
                trial,
                "accepts what cannot be served",
                f"{rank.blocks} blocks, of which {usable} can be used, accepted for a request of "
                f"{trial.outcome.max_model_len} tokens, which takes {needed}",
                "a refusal, or a shorter request",
            )
        if override is not None and rank.blocks != override:
            raise _wrong(
                trial, "override ignored", f"{rank.blocks} blocks", f"{override}, as was set"
            )
        if override is None and sum(rank.buffers) > rank.memory:
            raise _wrong(
                trial,
                "more memory than there is",
                f"buffers of {sum(rank.buffers)} bytes",
                f"at most {rank.memory} bytes",
            )
    if override is None and not any(map(_is_full, ranks_of(trial))):
        raise _wrong(trial, "memory left", "a block less than fits on every rank", "all that fit")
    length = trial.outcome.max_model_len
    if length < config.max_model_len and all(
        rank.needed_longer <= rank.blocks - _NULL_BLOCKS for rank in ranks_of(trial)
    ):
        raise _wrong(
            trial,
            "shortened too far",
            f"a longest request of {length} tokens",
            f"{length + 1} tokens, which fit, too",
        )


def _wrong(trial: Trial, symptom: str, got: str, expected: str) -> OneAccountingViolation:
    return OneAccountingViolation(
        symptom=symptom,
        got=got,
        expected=expected,
        layers=tuple(trial.pages),
        groups=groups_of(trial),
    )


def _is_full(rank: Rank) -> bool:
    """Whether no further block would fit."""
    if not rank.blocks or not rank.buffers:
        return True
    return sum(rank.buffers) + _block(rank) > rank.memory


class AcceptsWhatFitsViolation(Violation):
    """A plan that fits was refused."""

    invariant = "accepts-what-fits"


def _refused_at_an_edge(trial: Trial) -> bool:
    config = trial.scenario.config
    return (
        type(trial.outcome) is Refusal
        and config.spare_blocks is not None
        and config.num_gpu_blocks_override is None
        and (config.auto_fit or _enough(trial))
    )


def _enough(trial: Trial) -> bool:
    config = trial.scenario.config
    return (config.spare_blocks or 0) >= 0 and config.spare_bytes >= 0


@invariant(
    AcceptsWhatFitsViolation,
    claim=(
        "Memory for the blocks of one longest request and the null block is enough; where its "
        "length is to be fitted, memory for a request of one token is."
    ),
    source="An engine that could serve the model does not start.",
    applies_to="refusals where there is that much memory",
    surfaces=("config",),
    severity="needless refusal",
    applies=_refused_at_an_edge,
    calls_again=True,
)
def accepts_what_fits(trial: Trial) -> None:
    """Judge a refusal by the plan that there is if memory is in plenty."""
    config = trial.scenario.config
    plenty = _in_plenty(trial, config.max_model_len)
    if plenty is None:
        return
    if _enough(trial):
        raise _refused(
            trial,
            "refused",
            "a plan: by the blocks that its groups take and the bytes that a block takes when "
            "memory is in plenty, there is enough",
        )
    shortest = _in_plenty(trial, 1)
    if shortest is None:
        return
    for rank, least in zip(plenty.ranks, shortest.ranks, strict=True):
        memory = config.memory(sum(rank.needed), _block(rank))
        if (sum(least.needed) + _NULL_BLOCKS) * _block(least) > memory:
            return
    raise _refused(trial, "not shortened", "a plan for a shorter request: one token fits")


def _in_plenty(trial: Trial, length: int) -> Plan | None:
    """The plan for a longest request of that many tokens if memory is in plenty."""
    config = trial.scenario.config.in_plenty()
    config = msgspec.structs.replace(config, auto_fit=False, max_model_len=length)
    plan = trial.again(msgspec.structs.replace(trial.scenario, config=config))
    return plan if type(plan) is Plan and all(rank.blocks for rank in plan.ranks) else None


def _block(rank: Rank) -> int:
    """Bytes that a block takes of all buffers."""
    return sum(rank.buffers) // rank.blocks


def _refused(trial: Trial, symptom: str, expected: str) -> AcceptsWhatFitsViolation:
    assert isinstance(trial.outcome, Refusal)
    return AcceptsWhatFitsViolation(
        symptom=symptom,
        got=f"{trial.outcome.exception}: {trial.outcome.message[:200]}",
        expected=expected,
        layers=tuple(trial.pages),
    )


class BoundedOverheadViolation(Violation):
    """A plan takes far more than its layers take by themselves."""

    invariant = "bounded-overhead"


@invariant(
    BoundedOverheadViolation,
    claim=(
        f"A plan takes at most {_OVERHEAD} times the memory that its layers take by themselves "
        f"and {_WIDER} times that of the best width of groups, and makes at most {_GROUPS_A_SPEC} "
        "groups for each distinct spec."
    ),
    source="Memory that a grouping wastes is context or concurrency that an engine lacks.",
    applies_to="plans for one rank of an engine that lets windows free their blocks",
    surfaces=("config",),
    severity="waste",
    applies=lambda trial: (
        _allocated(trial) and len(ranks_of(trial)) == 1 and trial.scenario.config.hybrid_manager
    ),
)
def bounded_overhead(trial: Trial) -> None:
    """Judge need and number of groups."""
    groups = groups_of(trial)
    specs = {spec for _, spec in trial.scenario.mix}
    if len(groups) > _GROUPS_A_SPEC * len(specs):
        raise BoundedOverheadViolation(
            symptom="many groups",
            got=f"{len(groups)} groups",
            expected=f"at most {_GROUPS_A_SPEC * len(specs)} for {len(specs)} distinct specs",
            layers=tuple(trial.pages),
            groups=groups,
        )
    (rank,) = ranks_of(trial)
    if not rank.blocks:
        return
    block = _block(rank)
    need = sum(rank.needed) * block
    own = sum(
        blocks * trial.pages.get(layer, 0)
        for group in groups
        if group.terms is not None
        for layer, blocks in zip(group.layers, group.terms.own_blocks, strict=True)
    )
    # A group takes one block at least, however small its layers are.
    if need > _OVERHEAD * own + len(groups) * block:
        raise BoundedOverheadViolation(
            symptom="beyond the layers' own needs",
            got=f"{sum(rank.needed)} blocks of {block} bytes for one longest request",
            expected=f"at most {_OVERHEAD} times the {own} bytes that its layers take alone",
            layers=tuple(trial.pages),
            groups=groups,
        )
    width, least = _best_width(
        groups,
        rank.needed,
        most_groups=_GROUPS_A_SPEC * len(specs),
        least_width=max(1, trial.scenario.drafts),
    )
    if width and need > _WIDER * least:
        raise BoundedOverheadViolation(
            symptom="another width",
            got=f"{need} bytes for one longest request",
            expected=f"about {least}, as with {width} layers a group",
            layers=tuple(trial.pages),
            groups=groups,
        )


def _best_width(
    groups: tuple[Group, ...], needed: tuple[int, ...], *, most_groups: int, least_width: int
) -> tuple[int, int]:
    """The number of layers a group that takes the fewest bytes, and these; (0, 0) if unknown.

    Known of groups of one spec and one page size each: any number of layers of a
    spec can share a group, and a block has room for the widest group. Draft
    layers are to share one, and not every number makes few enough groups.
    """
    if len({page for group in groups for page in group.pages}) != 1:
        return 0, 0
    layers: Counter[OpenSpec] = Counter()
    blocks: dict[OpenSpec, int] = {}
    for group, taken in zip(groups, needed, strict=True):
        if group.terms is None or group.terms.shared is None:
            return 0, 0
        layers[group.terms.shared] += len(group.layers)
        blocks[group.terms.shared] = taken
    page = groups[0].pages[0]
    widths = sorted({-(-n // k) for n in layers.values() for k in range(1, n + 1)})
    costs = (
        (page * width * sum(-(-n // width) * blocks[spec] for spec, n in layers.items()), width)
        for width in widths
        if width >= least_width and sum(-(-n // width) for n in layers.values()) <= most_groups
    )
    least, width = min(costs, default=(0, 0))
    return width, least
