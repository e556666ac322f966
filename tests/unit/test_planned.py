"""What planners of an engine answer becomes neutral, whatever form it has; with exact values."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kvfuzz.engine.session import Session
from kvfuzz.outcomes import Crash, NotExpressible, Outcome, Place, Plan, Rank, Refusal, Row, Terms
from kvfuzz.planner_config import PlannerConfig
from kvfuzz.specs import OpenSpec, Scenario, open_spec
from kvfuzz.targets.base import Target
from kvfuzz.targets.eras import adapt
from tests.sabotage import engine
from tests.sabotage.engine import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, SharedTensor
from tests.sabotage.engine_planner import OlderPlanner, Planner, target_of

_HEADS: dict[str, Any] = {"num_kv_heads": 1, "head_size": 8, "dtype": "uint8"}
#: Pages of 256 bytes: 16 tokens of a key and a value of 8 bytes each.
FULL = open_spec("full_attention", {"block_size": 16, **_HEADS})
#: Pages of 128 bytes; with 16 tokens in flight it keeps 16.
WINDOW = open_spec("sliding_window", {"block_size": 8, "sliding_window": 1, **_HEADS})
#: Pages of 40 bytes.
STATE = open_spec("mamba", {"block_size": 16, "shapes": ((40,),), "dtypes": ("uint8",)})
#: Seven blocks of full attention.
LENGTH: dict[str, Any] = {"max_model_len": 112, "max_num_batched_tokens": 16}


def _scenario(*specs: OpenSpec, ranks: tuple[int, ...] = (), drafts: int = 0, **config: Any):
    mix = tuple((f"layers.{i}", spec) for i, spec in enumerate(specs))
    return Scenario(mix, PlannerConfig(**{**LENGTH, **config}), drafts, ranks)


def _asked(scenario: Scenario, surface: str = "config", target: Target | None = None) -> Outcome:
    return Session(target or target_of(), surface).ask(scenario)[0].outcome


def _plan(scenario: Scenario, surface: str = "config", target: Target | None = None) -> Plan:
    outcome = _asked(scenario, surface, target)
    assert isinstance(outcome, Plan), outcome
    return outcome


def _answering(answer: Callable[..., Any], surface: str = "config") -> Target:
    """A target whose planner answers so."""
    utils = ModuleType("utils")
    name = {"groups": "get_kv_cache_groups", "config": "get_kv_cache_configs"}[surface]
    setattr(utils, name, answer)
    return adapt(Planner().interface(), utils, "answering", "0")


def _made(*tensors: Any, blocks: int = 10, group: list[str] | None = None) -> Callable[..., Any]:
    def answer(config: Any, ranks: list[dict[str, Any]], memory: list[int]) -> Any:
        names = [*ranks[0]] if group is None else group
        groups = [KVCacheGroupSpec(names, next(iter(ranks[0].values())))]
        return [KVCacheConfig(blocks, list(tensors), groups)]

    return answer


def test_surfaces_are_the_functions_that_there_are():
    assert {"groups", "config"} <= {*target_of().surfaces}
    assert {"groups", "config"} & {*_answering(_made()).surfaces} == {"config"}
    assert {"groups", "config"} & {*_answering(_made(), "groups").surfaces} == {"groups"}


# Groups.


def test_groups_say_what_became_of_each_spec():
    plan = _plan(_scenario(FULL, WINDOW, FULL, WINDOW), "groups")
    assert plan.ranks == ()
    assert plan.max_model_len == 0
    grown = open_spec(WINDOW.kind, {**dict(WINDOW.fields), "block_size": 16})
    full, window = plan.groups or ()
    assert (full.layers, full.pages) == (("layers.0", "layers.2"), (256, 256))
    assert full.terms == Terms((FULL, FULL), (FULL, FULL), FULL, "full", own_blocks=(7, 7))
    assert (window.layers, window.pages) == (("layers.1", "layers.3"), (256, 256))
    # By its own spec it takes 2 blocks of 8 tokens for the 16 that it keeps, and one.
    assert window.terms == Terms((WINDOW,) * 2, (grown,) * 2, grown, "window", own_blocks=(3, 3))


def test_a_group_may_keep_a_spec_for_each_layer():
    def answer(config: Any, specs: dict[str, Any]) -> Any:
        mixed = engine.MixedSpecs(block_size=1, kv_cache_specs=dict(specs))
        return [KVCacheGroupSpec([*specs], mixed, is_eagle_group=True)]

    (group,) = _plan(_scenario(FULL, STATE), "groups", _answering(answer, "groups")).groups or ()
    assert group.pages == (256, 40)
    assert group.terms == Terms(
        (FULL, STATE), (FULL, STATE), kind="mixed", drafts=True, own_blocks=(7, 1)
    )


def test_a_layer_that_nobody_asked_about_is_in_the_plan():
    def answer(config: Any, specs: dict[str, Any]) -> Any:
        return [KVCacheGroupSpec(["layers.0", "new\udc80"], specs["layers.0"])]

    (group,) = _plan(_scenario(FULL), "groups", _answering(answer, "groups")).groups or ()
    assert group.layers == ("layers.0", "new\\udc80")
    assert group.terms is not None
    assert group.terms.given == (FULL, OpenSpec("", ()))
    assert group.terms.own_blocks == (7, 0)


def test_draft_layers_are_marked_where_there_is_a_mark():
    seen = []

    def answer(config: Any, specs: dict[str, Any]) -> Any:
        seen.append([spec.is_draft for spec in specs.values()])
        return Planner().groups(config, specs)

    target = _answering(answer, "groups")
    session = Session(target, "groups")
    for drafts in (0, 2):
        answered = session.ask(_scenario(FULL, FULL, WINDOW, drafts=drafts))[0]
        assert answered.changed is None
    assert seen == [[False, False, False], [False, True, True]]
    # The mark is no part of what a spec is.
    assert "is_draft" not in dict(FULL.fields)
    assert target.dialect.catalogue["full_attention"].fields["is_draft"].mark


# Ranks, in both forms of tensors.


def _two_groups(planner: Callable[[], Planner] = Planner, **config: Any) -> Plan:
    """Full layers and windows on two ranks: 7 + 2 blocks of one page on each."""
    scenario = _scenario(FULL, WINDOW, FULL, WINDOW, ranks=(0, 0, 1, 1), **config)
    return _plan(scenario, target=target_of(planner))


@pytest.mark.parametrize("planner", [Planner, OlderPlanner])
def test_both_forms_of_tensors_become_the_same_places(planner: Callable[[], Planner]):
    plan = _two_groups(planner, spare_blocks=2, spare_bytes=3)
    assert plan.ranks == tuple(
        Rank(
            groups=((full,), (window,)),
            blocks=12,
            buffers=(12 * 256,),
            places=(Place(full, 0, 0, 256), Place(window, 0, 0, 256)),
            memory=12 * 256 + 3,
            needed=(7, 2),
            needed_longer=10,
            rows=(Row(7, (7,)), Row(7, (7,))),
        )
        for full, window in (("layers.0", "layers.1"), ("layers.2", "layers.3"))
    )
    assert plan.max_model_len == 112


def test_groups_of_ranks_are_joined():
    full, window = _two_groups().groups or ()
    assert (full.layers, full.pages) == (("layers.0", "layers.2"), (256, 256))
    assert full.terms == Terms((FULL, FULL), (FULL, FULL), FULL, "full", own_blocks=(7, 7))
    assert window.layers == ("layers.1", "layers.3")
    assert _two_groups().groups == _plan(_scenario(FULL, WINDOW, FULL, WINDOW)).groups


def test_a_rank_without_layers():
    plan = _plan(_scenario(FULL, FULL, ranks=(0, 2)))
    assert [rank.groups for rank in plan.ranks] == [(("layers.0",),), ((),), (("layers.1",),)]
    assert plan.ranks[1].buffers == ()
    assert [rank.blocks for rank in plan.ranks] == [(1 << 60) // 256] * 3


@pytest.mark.parametrize(
    ("layout", "offsets", "stride"),
    [("BLHNC", [0, 256], 512), ("LBHNC", [0, 256 * 10], 256), (None, [0, 256 * 10], 256)],
)
def test_where_pages_are_by_layout(layout: str | None, offsets: list[int], stride: int):
    plan = _plan(_scenario(FULL, FULL, layout=layout, spare_blocks=2))
    assert plan.ranks[0].buffers == (512 * 10,)
    assert [place.offset for place in plan.ranks[0].places] == offsets
    assert {place.stride for place in plan.ranks[0].places} == {stride}


def test_newer_tensors_by_number():
    tensors = (
        KVCacheTensor(size=5000, layers=["a", "b"], layer_stride=7, block_stride=300, offset=11),
        KVCacheTensor(size=5000, layers=["c"], layer_stride=0, block_stride=400, offset=1),
    )
    (rank,) = _plan(_scenario(FULL), target=_answering(_made(*tensors))).ranks
    assert rank.buffers == (5000,)
    assert rank.places == (
        Place("a", 0, 11, 300),
        Place("b", 0, 18, 300),
        Place("c", 0, 1, 400),
    )


def test_older_tensors_by_number():
    class Packed(SharedTensor):
        block_stride = 96
        offset = 32

    tensors = (SharedTensor(2560, ["a", "b"]), Packed(960, ["c"]), SharedTensor(70, ["d"]))
    (rank,) = _plan(_scenario(FULL), target=_answering(_made(*tensors))).ranks
    assert rank.buffers == (2560, 960, 70)
    assert rank.places == (
        Place("a", 0, 0, 256),
        Place("b", 0, 0, 256),
        Place("c", 1, 32, 96),
        Place("d", 2, 0, 7),
    )


# Memory.


@pytest.mark.parametrize(
    ("spare", "blocks"),
    [((0, 0), 8), ((1, 0), 9), ((0, 1), 8), ((100, -1), 107), ((0, 255), 8), ((0, 256), 9)],
)
def test_memory_is_what_so_many_blocks_take(spare: tuple[int, int], blocks: int):
    (rank,) = _plan(_scenario(FULL, spare_blocks=spare[0], spare_bytes=spare[1])).ranks
    # Seven for a request and the null block.
    assert rank.memory == (8 + spare[0]) * 256 + spare[1]
    assert rank.blocks == blocks
    assert (rank.needed, rank.needed_longer) == ((7,), 8)


@pytest.mark.parametrize("spare", [(-1, 0), (0, -1), (-100, 0)])
def test_too_little_memory_is_refused(spare: tuple[int, int]):
    outcome = _asked(_scenario(FULL, spare_blocks=spare[0], spare_bytes=spare[1]))
    assert outcome == Refusal("ValueError", "too little memory: decrease max_model_len")


@pytest.mark.parametrize(("spare", "length"), [(0, 112), (-1, 96), (-3, 64), (-6, 16)])
def test_a_request_is_shortened_to_what_fits(spare: int, length: int):
    plan = _plan(_scenario(FULL, spare_blocks=spare, auto_fit=True))
    assert plan.max_model_len == length
    assert sum(plan.ranks[0].needed) == 7 + spare
    assert plan.ranks[0].needed_longer == 8 + spare
    # What its layers take by themselves is of the shorter request.
    assert plan.groups is not None
    assert plan.groups[0].terms is not None
    assert plan.groups[0].terms.own_blocks == (7 + spare,)


def test_blocks_that_are_set():
    (rank,) = _plan(_scenario(FULL, num_gpu_blocks_override=1000)).ranks
    assert (rank.blocks, rank.memory) == (1000, 1 << 60)
    # What a block takes is seen from a plan without them.
    (rank,) = _plan(_scenario(FULL, num_gpu_blocks_override=50, spare_blocks=0)).ranks
    assert (rank.blocks, rank.memory) == (50, 8 * 256)


def test_groups_that_are_planned_beforehand_are_handed_over():
    planner = Planner()
    planning, utils = ModuleType("planning"), ModuleType("utils")
    handed = []

    def global_groups(config: Any, ranks: list[dict[str, Any]]) -> Any:
        return planner.groups(config, {n: s for specs in ranks for n, s in specs.items()})

    def configs(config: Any, ranks: Any, memory: Any, groups: Any) -> Any:
        handed.append([group.layer_names for group in groups])
        return planner.configs(config, ranks, memory)

    vars(planning).update(get_kv_cache_configs=configs, get_global_kv_cache_groups=global_groups)
    # The module of planning counts where both have the function.
    vars(utils).update(planner.utils().__dict__)
    target = adapt(planner.interface(), utils, "split", "0", planning=planning)
    scenario = _scenario(FULL, FULL, ranks=(0, 1))
    assert _plan(scenario, target=target) == _plan(scenario)
    assert handed == [[["layers.0", "layers.1"]]]


# What is no answer, and what cannot be asked.


@pytest.mark.parametrize(
    ("surface", "answer", "message"),
    [
        ("groups", 3, "returned Planned: the groups must be a list, got int"),
        ("groups", None, "returned Planned: the groups must be a list, got NoneType"),
        (
            "groups",
            [KVCacheGroupSpec([3], None)],  # type: ignore[list-item, arg-type]
            "returned Planned: a group must name its layers by strings",
        ),
        ("config", {}, "returned Planned: the configs must be a list, got dict"),
        ("groups", [3], "returned Planned: 'int' object has no attribute 'layer_names'"),
        (
            "groups",
            [KVCacheGroupSpec(["layers.0"], SharedTensor(1, []))],  # type: ignore[arg-type]
            "returned Planned: a layer cannot have a SharedTensor",
        ),
    ],
)
def test_an_answer_that_is_none_is_said_so(surface: str, answer: Any, message: str):
    target = _answering(lambda *_: answer, surface)
    crash = _asked(_scenario(FULL), surface, target)
    assert crash == Crash("exception", "UnusableAnswer", "", message)


def test_ranks_of_other_groups_are_no_answer():
    def answer(config: Any, ranks: list[dict[str, Any]], memory: list[int]) -> Any:
        groups = [KVCacheGroupSpec([name], spec) for name, spec in ranks[0].items()]
        return [KVCacheConfig(1, [], groups), KVCacheConfig(1, [], [])]

    crash = _asked(_scenario(FULL, FULL, ranks=(0, 1)), "config", _answering(answer))
    assert isinstance(crash, Crash)
    assert crash.exception == "UnusableAnswer"
    assert crash.message == "returned Planned: all ranks must have the same number of groups"


def test_a_layout_that_a_target_lacks():
    assert _asked(_scenario(FULL, layout="LHBNC")) == NotExpressible("no layout LHBNC")
    assert _asked(_scenario(FULL, layout="NO"), "groups") == NotExpressible("no layout NO")
    plain = Planner().interface()
    del plain.KVCacheLayout
    target = adapt(plain, Planner().utils(), "plain", "0")
    assert target.dialect.layouts == ()
    assert _asked(_scenario(FULL, layout="LBHNC"), target=target) == NotExpressible(
        "no layout LBHNC"
    )


@pytest.mark.parametrize("surface", ["groups", "config"])
def test_a_page_of_no_bytes(surface: str):
    empty = open_spec("mamba", {"block_size": 1, "shapes": ((0, 4),), "dtypes": ("uint8",)})
    assert _asked(_scenario(FULL, empty), surface) == NotExpressible("a page of no bytes")


@pytest.mark.parametrize("surface", ["groups", "config"])
def test_what_a_class_refuses(surface: str):
    padded = open_spec(FULL.kind, {**dict(FULL.fields), "page_size_padded": 255})
    assert _asked(_scenario(padded), surface) == NotExpressible(
        "ValueError: page_size_padded is less than what the page holds"
    )


@pytest.mark.parametrize("surface", ["groups", "config"])
def test_a_class_that_crashes(surface: str):
    """Code of the planner's that does not mean to refuse: a name that is not there."""
    interface = Planner().interface()

    class Crashing(interface.MLAAttentionSpec):  # type: ignore[name-defined, misc]
        def __post_init__(self) -> None:
            raise NameError("name 'padded' is not defined")

    Crashing.__name__ = "MLAAttentionSpec"
    interface.MLAAttentionSpec = Crashing  # type: ignore[attr-defined]
    target = adapt(interface, Planner().utils(), "crashing", "0")
    scenario = _scenario(open_spec("mla_attention", dict(FULL.fields)))
    assert _asked(scenario, surface, target) == Crash(
        symptom="exception",
        exception="NameError",
        function="__post_init__",
        message="name 'padded' is not defined",
    )
    (violation,) = Session(target, surface).judge(scenario)
    assert violation.invariant == "plan-or-refusal"
