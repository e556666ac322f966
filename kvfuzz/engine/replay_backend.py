"""A Hypothesis backend that hands Hypothesis a recorded list of choices.

The scout finds failures without Hypothesis; to shrink one, the same property
is run under this backend, whose first example draws what the scout chose.
Hypothesis sees the failure and shrinks it as if it had found it.

Hypothesis documents this interface for tool builders ("alternative
backends"); it is used nowhere else in kvfuzz, and `tests/unit` fails loudly
when it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider

BACKEND = "kvfuzz-replay"


class ReplayProvider(PrimitiveProvider):
    """Draws the integers of `recorded`, in order; the simplest once they run out."""

    recorded: Sequence[int] = ()

    def __init__(self, conjecturedata: Any, /) -> None:
        super().__init__(conjecturedata)
        self._answers: Iterator[int] = iter(())

    @contextmanager
    def per_test_case_context_manager(self) -> Iterator[None]:
        """Begin the recorded list anew for each example."""
        self._answers = iter(self.recorded)
        yield

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        """The next recorded choice, kept within the bounds asked for."""
        low = shrink_towards if min_value is None else min_value
        answer = next(self._answers, low)
        return max(low, answer if max_value is None else min(answer, max_value))

    def draw_boolean(self, p: float = 0.5) -> bool:
        """Not drawn by kvfuzz's builders."""
        raise NotImplementedError

    def draw_float(self, **_: Any) -> float:
        """Not drawn by kvfuzz's builders."""
        raise NotImplementedError

    def draw_string(self, intervals: Any, *, min_size: int = 0, max_size: int = 0) -> str:
        """Not drawn by kvfuzz's builders."""
        raise NotImplementedError

    def draw_bytes(self, min_size: int = 0, max_size: int = 0) -> bytes:
        """Not drawn by kvfuzz's builders."""
        raise NotImplementedError


AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.{ReplayProvider.__name__}"
