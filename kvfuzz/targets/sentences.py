"""What others' code raised, in words that fit into one of our sentences."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 300


def said(error: BaseException) -> str:
    """An exception's type and message on one line, cut if it is very long."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
