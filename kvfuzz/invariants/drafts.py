"""Rules over where the layers of a draft model go."""

from __future__ import annotations

from kvfuzz.invariants.registry import Trial, Violation, groups_of, invariant, planned
from kvfuzz.outcomes import Group


def _holders(trial: Trial) -> list[Group]:
    """The groups with draft layers."""
    drafts = set(trial.scenario.draft_names())
    return [group for group in groups_of(trial) if not drafts.isdisjoint(group.layers)]


class DraftsTogetherViolation(Violation):
    """Draft layers of one spec are in several groups."""

    invariant = "drafts-together"


def _drafts_alike(trial: Trial) -> bool:
    scenario = trial.scenario
    if scenario.drafts < 2 or not planned(trial):
        return False
    return len({spec for _, spec in scenario.mix[-scenario.drafts :]}) == 1


@invariant(
    DraftsTogetherViolation,
    claim="Draft layers that have one spec are in one group.",
    source="A proposer drafts with one block table; layers of other groups would need their own.",
    applies_to="plans for two draft layers or more that have one spec",
    surfaces=("groups",),
    severity="silent wrong plan",
    applies=_drafts_alike,
)
def drafts_together(trial: Trial) -> None:
    """Judge the groups that hold draft layers."""
    holders = _holders(trial)
    if len(holders) > 1:
        raise DraftsTogetherViolation(
            symptom="scattered",
            got=f"draft layers in {len(holders)} groups",
            expected="one group",
            layers=trial.scenario.draft_names(),
            groups=groups_of(trial),
        )


class DraftsMarkedViolation(Violation):
    """A group with draft layers is not marked as one, or one without is."""

    invariant = "drafts-marked"


@invariant(
    DraftsMarkedViolation,
    claim="A group is marked as a draft model's if, and only if, it holds a layer of it.",
    source="The last block of a marked group is dropped from prefix hits, since drafts rewrite it.",
    applies_to="plans for an engine that drafts with hidden states",
    surfaces=("config",),
    severity="silent wrong plan",
    applies=lambda trial: (
        planned(trial)
        and trial.scenario.drafts > 0
        and trial.scenario.config.speculative_method is not None
    ),
)
def drafts_marked(trial: Trial) -> None:
    """Judge the mark of each group."""
    holders = _holders(trial)
    for group in groups_of(trial):
        marked = group.terms is not None and group.terms.drafts
        if marked != (group in holders):
            raise DraftsMarkedViolation(
                symptom="marks others" if marked else "not marked",
                got=f"a group of {', '.join(group.layers)} {'' if marked else 'not '}marked",
                expected="the groups with draft layers marked, and no others",
                layers=trial.scenario.draft_names(),
                groups=groups_of(trial),
            )
