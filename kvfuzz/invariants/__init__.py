"""The rules that every correct planner keeps: one function, one claim each.

Importing this package registers them all.
"""

from kvfuzz.invariants import (  # noqa: F401
    accounting,
    allocation,
    conduct,
    context,
    drafts,
    fidelity,
    grouping,
    metamorphic,
    page_arithmetic,
    pages,
)
from kvfuzz.invariants.registry import (
    Invariant,
    Trial,
    Violation,
    all_invariants,
    get_invariant,
    invariants_of,
)

__all__ = [
    "Invariant",
    "Trial",
    "Violation",
    "all_invariants",
    "get_invariant",
    "invariants_of",
]
