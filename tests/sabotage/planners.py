"""Planners that are wrong in one way each, as factories for `module:factory` targets.

Each starts from the reference and breaks one rule on some mixes. SABOTAGED
names the one invariant that each breaks.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from kvfuzz.pages import FULL_DIALECT, page_size_bytes
from kvfuzz.reference import group_and_unify_kv_cache_specs as reference
from kvfuzz.specs import LayerSpec, MLAAttentionSpec, SlidingWindowMLASpec
from kvfuzz.targets.base import NeutralPlanner

Mix = dict[str, LayerSpec]
Groups = list[list[str]] | None


def _page(spec: LayerSpec) -> int:
    return page_size_bytes(spec, FULL_DIALECT.rules)


def _grouped(specs: Mapping[str, LayerSpec], key: Callable[[LayerSpec], Any]) -> list[list[str]]:
    groups: dict[Any, list[str]] = {}
    for name, spec in specs.items():
        groups.setdefault(key(spec), []).append(name)
    return list(groups.values())


def _has_window(specs: Mapping[str, LayerSpec]) -> bool:
    return any(isinstance(spec, SlidingWindowMLASpec) for spec in specs.values())


def packs_uniform_mixes() -> NeutralPlanner:
    """Without the guard against mixes of one page size, as upstream before 0.26.0."""

    def planner(specs: Mix) -> Groups:
        if not _has_window(specs):
            return None
        return _grouped(specs, lambda s: (s.kind, s.block_size, s.sliding_window, _page(s)))

    return planner


def loses_the_widest_window() -> NeutralPlanner:
    """Leaves out the layers of the widest window once there are three groups."""

    def planner(specs: Mix) -> Groups:
        groups = reference(specs)
        if groups is None or len(groups) < 3:
            return groups
        widest = max(spec.sliding_window or 0 for spec in specs.values())
        return [group for group in groups if specs[group[0]].sliding_window != widest]

    return planner


def repeats_a_full_layer() -> NeutralPlanner:
    """Puts full MLA layers of 8-bit dtypes into a second group as well."""

    def planner(specs: Mix) -> Groups:
        groups = reference(specs)
        if groups is None:
            return None
        return groups + [
            group
            for group in groups
            if specs[group[0]].dtype == "uint8" and isinstance(specs[group[0]], MLAAttentionSpec)
        ]

    return planner


def mixes_page_sizes() -> NeutralPlanner:
    """Forgets the page size when it groups."""

    def planner(specs: Mix) -> Groups:
        if reference(specs) is None:
            return None
        return _grouped(specs, lambda s: (s.kind, s.block_size, s.sliding_window))

    return planner


def asserts_a_full_layer() -> NeutralPlanner:
    """Relies on a full MLA layer being there, as upstream does."""

    def planner(specs: Mix) -> Groups:
        groups = reference(specs)
        if groups is not None:
            assert any(isinstance(spec, MLAAttentionSpec) for spec in specs.values())
        return groups

    return planner


def reorders_its_input() -> NeutralPlanner:
    """Moves the first layer to the end of the caller's dict."""

    def planner(specs: Mix) -> Groups:
        groups = reference(specs)
        if groups is not None:
            first = next(iter(specs))
            specs[first] = specs.pop(first)
        return groups

    return planner


def writes_into_specs() -> NeutralPlanner:
    """Writes a padded size into a frozen spec, as upstream once did."""
    import msgspec

    def planner(specs: Mix) -> Groups:
        groups = reference(specs)
        if groups is not None:
            for spec in specs.values():
                msgspec.structs.force_setattr(spec, "page_size_padded", 1 << 30)
                # It would round some pages up further, and groups would mix page sizes.
                msgspec.structs.force_setattr(spec, "alignment", None)
        return groups

    return planner


def answers_otherwise_next_time() -> NeutralPlanner:
    """Turns the order of its groups around on every second call."""
    calls = 0

    def planner(specs: Mix) -> Groups:
        nonlocal calls
        calls += 1
        groups = reference(specs)
        return groups if groups is None or calls % 2 else groups[::-1]

    return planner


def groups_neighbours_only() -> NeutralPlanner:
    """Begins a new group wherever the next layer differs from the one before it."""

    def planner(specs: Mix) -> Groups:
        groups = reference(specs)
        if groups is None:
            return None
        home = {name: number for number, group in enumerate(groups) for name in group}
        runs: list[list[str]] = []
        before = -1
        for name in specs:
            if home[name] != before:
                runs.append([])
            runs[-1].append(name)
            before = home[name]
        return runs

    return planner


#: Factory name -> the invariant that alone must catch it.
SABOTAGED = {
    "packs_uniform_mixes": "uniform-is-none",
    "loses_the_widest_window": "partition",
    "repeats_a_full_layer": "partition",
    "mixes_page_sizes": "single-page-size",
    "asserts_a_full_layer": "plan-or-refusal",
    "reorders_its_input": "pure",
    "writes_into_specs": "pure",
    "answers_otherwise_next_time": "deterministic",
    "groups_neighbours_only": "order-free",
}


# Planners that never return. Each does so only on mixes with two windows, so
# that a run goes on between them.


def _two_windows(specs: Mix) -> bool:
    return len({spec.sliding_window for spec in specs.values()}) > 2


def loops_forever() -> NeutralPlanner:
    """Never comes back."""

    def planner(specs: Mix) -> Groups:
        while _two_windows(specs):
            pass
        return reference(specs)

    return planner


def sleeps_through_alarms() -> NeutralPlanner:
    """Never comes back, and cannot be stopped from inside its process."""

    def planner(specs: Mix) -> Groups:
        while _two_windows(specs):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        return reference(specs)

    return planner


def dies_by_signal() -> NeutralPlanner:
    """Ends its process as a segmentation fault would."""

    def planner(specs: Mix) -> Groups:
        if _two_windows(specs):
            os.kill(os.getpid(), signal.SIGSEGV)
        return reference(specs)

    return planner


def exits() -> NeutralPlanner:
    """Ends its process without a word."""

    def planner(specs: Mix) -> Groups:
        if _two_windows(specs):
            os._exit(3)
        return reference(specs)

    return planner


def eats_memory() -> NeutralPlanner:
    """Keeps what it allocates, 64 MiB at a time."""

    def planner(specs: Mix) -> Groups:
        kept = []
        while _two_windows(specs):
            kept.append(b"\1" * (64 << 20))
        return reference(specs)

    return planner


def talks() -> NeutralPlanner:
    """Prints a megabyte on every call, to both streams."""

    def planner(specs: Mix) -> Groups:
        os.write(1, b"x" * (1 << 20))
        sys.stderr.write("y" * (1 << 20))
        return reference(specs)

    return planner


def cannot_be_made() -> NeutralPlanner:
    """A factory that fails."""
    raise RuntimeError("no planner today")
