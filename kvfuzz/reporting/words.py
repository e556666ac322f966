"""Numbers and nouns as people say them."""

from __future__ import annotations


def plural(number: int, noun: str, nouns: str = "") -> str:
    """`1 mix`, `2 mixes`, `1,024 mixes`."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def by_config(config: str) -> str:
    """By what engine's config was planned, to be put behind a surface; "" if by none."""
    return f", by a {config} config" if config else ""
