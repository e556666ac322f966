"""The invariants, as property tests of the target that `--kvfuzz-target` names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfuzz.invariants import Invariant, invariants_of


@pytest.mark.parametrize("rule", invariants_of("pack"), ids=lambda rule: rule.id)
def test_invariant_holds(rule: Invariant, kvfuzz_check: Callable[[Invariant], None]):
    kvfuzz_check(rule)
