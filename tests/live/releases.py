"""The releases that the live tests run."""

from __future__ import annotations

#: All that have the surface `pack`.
RELEASES = (
    "0.20.0",
    "0.20.1",
    "0.20.2",
    "0.21.0",
    "0.22.0",
    "0.22.1",
    "0.23.0",
    "0.24.0",
    "0.25.0",
    "0.25.1",
    "0.26.0",
    "0.27.0",
    "0.27.1",
    "0.28.0",
)

#: Later ones.
NEWER = ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
