"""Invalid specs break exactly the constraint that they say they break."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from kvfuzz.pages import FULL_DIALECT, Dialect
from kvfuzz.specs import LayerSpec
from kvfuzz.strategies import invalid_specs
from kvfuzz.strategies.choices import SeededChoices
from kvfuzz.strategies.constraints import CONSTRAINTS, broken
from kvfuzz.strategies.invalid import breakable, build_invalid
from tests.strategies.common import OLD_DIALECT


@pytest.mark.parametrize("dialect", [FULL_DIALECT, OLD_DIALECT], ids=["full", "old"])
def test_each_breaks_the_constraint_it_names_and_no_other(dialect: Dialect) -> None:
    choose = SeededChoices(0).choose
    seen = set()
    for _ in range(300):
        spec, reason = build_invalid(choose, dialect=dialect)
        assert broken(spec, dialect) == [reason], spec
        seen.add(reason)
    assert seen == set(breakable(dialect))


def test_every_constraint_can_be_broken_in_some_dialect() -> None:
    names = {row.name for row in CONSTRAINTS}
    assert set(breakable(FULL_DIALECT)) == names - {"expressible", "alignment-holds"}
    # The old dialect lacks int4, so that no spec breaks only how int4 is packed.
    assert set(breakable(OLD_DIALECT)) == names - {"int4-pairs"}


@pytest.mark.parametrize("constraint", breakable(OLD_DIALECT))
def test_the_constraint_asked_for_is_broken_in_many_ways(constraint: str) -> None:
    found: set[LayerSpec] = set()

    @settings(max_examples=30, database=None, deadline=None, derandomize=True)
    @given(invalid_specs(dialect=OLD_DIALECT, constraint=constraint))
    def test(pair: tuple[LayerSpec, str]) -> None:
        spec, reason = pair
        assert reason == constraint
        assert broken(spec, OLD_DIALECT) == [constraint]
        found.add(spec)

    test()
    assert len(found) >= 5


def test_a_constraint_that_cannot_be_broken_is_said() -> None:
    with pytest.raises(ValueError, match="no spec breaks 'expressible' alone"):
        build_invalid(SeededChoices(0).choose, constraint="expressible")
