"""Versions of one planner, for ledgers that tell releases apart; and planners to be stopped."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from kvfuzz.reference import group_and_unify_kv_cache_specs
from kvfuzz.specs import MLAAttentionSpec, SlidingWindowMLASpec
from kvfuzz.targets.base import NeutralPlanner, NeutralTarget, Target
from tests.sabotage.planners import Groups, Mix, packs_uniform_mixes, writes_into_specs


def old() -> NeutralTarget:
    """Version 1.0, which packs mixes of one page size."""
    return NeutralTarget("tests.cli.planners:old", packs_uniform_mixes(), "1.0")


def new() -> NeutralTarget:
    """Version 2.0, which does not."""
    return NeutralTarget("tests.cli.planners:new", group_and_unify_kv_cache_specs, "2.0")


def impure() -> NeutralTarget:
    """Version 3.0, which does not either, but writes into specs."""
    return NeutralTarget("tests.cli.planners:impure", writes_into_specs(), "3.0")


def slows_down() -> NeutralPlanner:
    """Packs mixes of one page size; slow after 3,000 calls where there is no file `go`."""
    calls = 0
    planner = packs_uniform_mixes()
    go = Path("go").exists()

    def slowly(specs: Mix) -> Groups:
        nonlocal calls
        calls += 1
        if calls > 3_000 and not go:
            time.sleep(0.005)
        return planner(specs)

    return slowly


def dies_on_one() -> NeutralPlanner:
    """Ends its process on one mix: a window, then a full layer, all else differing."""

    def planner(specs: Mix) -> Groups:
        seen = [(type(spec), spec.block_size, spec.head_size) for spec in specs.values()]
        if seen == [(SlidingWindowMLASpec, 16, 512), (MLAAttentionSpec, 32, 512)]:
            os.kill(os.getpid(), signal.SIGSEGV)
        return group_and_unify_kv_cache_specs(specs)

    return planner


def dawdles() -> NeutralPlanner:
    """Right, and slow."""

    def planner(specs: Mix) -> Groups:
        time.sleep(0.05)
        return group_and_unify_kv_cache_specs(specs)

    return planner


def refuses_most() -> NeutralPlanner:
    """Takes mixes of up to two layers."""

    def planner(specs: Mix) -> Groups:
        if len(specs) > 2:
            raise ValueError("more than two layers are not supported")
        return group_and_unify_kv_cache_specs(specs)

    return planner


def spoils_the_folder() -> NeutralPlanner:
    """Packs mixes of one page size, in a folder whose cases it has put a file in place of."""
    cases = Path("reports/cases")
    planner = packs_uniform_mixes()

    def spoil(specs: Mix) -> Groups:
        if cases.is_dir():
            cases.rmdir()
            cases.write_text("no folder")
        return planner(specs)

    return spoil


def spoils_the_report() -> NeutralPlanner:
    """Packs mixes of one page size, where it has made a folder of the report's name."""
    planner = packs_uniform_mixes()

    def spoil(specs: Mix) -> Groups:
        Path("o.json").mkdir(exist_ok=True)
        return planner(specs)

    return spoil


def forgets_a_field() -> Target:
    """Spec classes whose merge loses a field."""
    from tests.sabotage import merging  # not for all: it loads torch

    return merging.target_of(merging.forgets_a_field, "tests.cli.planners:forgets_a_field")


def forgets_alignment() -> Target:
    """Spec classes whose page is that of the data alone."""
    from tests.sabotage import paging

    return paging.target_of(paging.forgets_alignment, uri="tests.cli.planners:forgets_alignment")


def asserts_on_a_window() -> Target:
    """Spec classes whose page cannot be told of a layer with a window."""
    from tests.sabotage import paging

    name = "tests.cli.planners:asserts_on_a_window"
    return paging.target_of(paging.asserts_on_a_window, uri=name)
