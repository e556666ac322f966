"""Two versions of one planner, for ledgers that tell releases apart."""

from __future__ import annotations

from kvfuzz.reference import group_and_unify_kv_cache_specs
from kvfuzz.targets.base import NeutralTarget
from tests.sabotage.planners import packs_uniform_mixes, writes_into_specs


def old() -> NeutralTarget:
    """Version 1.0, which packs mixes of one page size."""
    return NeutralTarget("tests.cli.planners:old", packs_uniform_mixes(), "1.0")


def new() -> NeutralTarget:
    """Version 2.0, which does not."""
    return NeutralTarget("tests.cli.planners:new", group_and_unify_kv_cache_specs, "2.0")


def impure() -> NeutralTarget:
    """Version 3.0, which does not either, but writes into specs."""
    return NeutralTarget("tests.cli.planners:impure", writes_into_specs(), "3.0")
