"""The two sources of choices that every builder reads from.

A builder is a function of `choose(low, high)`, which answers with an integer
between both, inclusive; `low` must be the simplest answer. Hypothesis answers
for tests and for shrinking, a seeded generator for searching at full speed.
Because a builder is all that lies between answers and mix, the answers of one
source can be replayed through the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from random import Random
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st

_T = TypeVar("_T")

#: Answers `choose(low, high)` with an integer from low to high, both included.
Choose: TypeAlias = Callable[[int, int], int]


class SeededChoices:
    """The fast source: a stream of answers that its seed alone determines.

    The same seed gives the same answers in every process and every version of
    Python: it relies on `Random.random`, whose sequence Python guarantees for
    a given seed, and on no hash.

    Args:
        seed: One or more integers that together name the stream.

    Attributes:
        choose: The source. Take it anew after `record`.
        recorded: What `choose` has answered since `record` was called.

    Example:
        >>> SeededChoices(1, 2).choose(0, 99) == SeededChoices(1, 2).choose(0, 99)
        True
    """

    __slots__ = ("_random", "choose", "recorded")

    def __init__(self, *seed: int) -> None:
        # A digest, since Random maps -1 and 1 to one seed and takes one number.
        digest = sha256(",".join(map(str, seed)).encode()).digest()
        self._random = random = Random(int.from_bytes(digest, "big")).random
        self.recorded: list[int] = []

        # A closure, and not a method that looks whether to record: this is
        # called some twenty-five times a mix.
        def choose(low: int, high: int) -> int:
            return low + int(random() * (high - low + 1))

        self.choose: Choose = choose

    def record(self) -> None:
        """Begin an empty `recorded` and let `choose` append to it from now on."""
        random = self._random
        recorded: list[int] = []

        def choose(low: int, high: int) -> int:
            answer = low + int(random() * (high - low + 1))
            recorded.append(answer)
            return answer

        self.recorded = recorded
        self.choose = choose


def pick(choose: Choose, values: Sequence[_T]) -> _T:
    """One of some values, the first of which is the simplest."""
    return values[choose(0, len(values) - 1)]


def drawn(
    choices: SeededChoices, build: Callable[[Choose], _T], *, record: bool = False
) -> Iterator[tuple[list[int], _T]]:
    """What a builder makes from the fast source, without end, each with its choices.

    Args:
        choices: The source.
        build: The builder.
        record: Whether to note choices.
    """
    while True:
        if record:
            choices.record()
        made = build(choices.choose)
        yield choices.recorded, made


def replayed(recorded: Sequence[int]) -> Choose:
    """A source that repeats `recorded`, kept within bounds, then answers low."""
    answers: Iterator[int] = iter(recorded)

    def choose(low: int, high: int) -> int:
        return max(low, min(next(answers, low), high))

    return choose


@lru_cache(maxsize=1024)
def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


def from_draw(draw: Callable[[st.SearchStrategy[int]], Any]) -> Choose:
    """Hypothesis as a source, by the `draw` of a composite strategy."""

    def choose(low: int, high: int) -> int:
        answer: int = draw(_integers(low, high))
        return answer

    return choose
