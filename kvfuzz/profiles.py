"""Hypothesis settings for property tests: how many examples, and whether at random.

Every field that Hypothesis's own defaults would choose by environment is
stated: with CI=true its default profile is derandomised and has no database,
and a nightly that inherited that would try the same examples each night.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from kvfuzz.errors import UsageError

#: Where failures are remembered between runs.
DATABASE_FOLDER = ".hypothesis/examples"

#: Profile -> what it is for.
PROFILES = {
    "dev": "a laptop: 300 examples a shard at random, failures remembered",
    "ci": "a pull request: 300 examples a shard, the same each time, nothing remembered",
    "nightly": "hours: 20,000 examples a shard at random, failures remembered",
}


def profile(name: str) -> settings:
    """The settings of a profile.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in PROFILES:
        raise UsageError(f"No profile is called {name!r}: choose {', '.join(PROFILES)}.")
    derandomize = name == "ci"
    return settings(
        derandomize=derandomize,
        database=None if derandomize else DirectoryBasedExampleDatabase(DATABASE_FOLDER),
        max_examples=20_000 if name == "nightly" else 300,
        deadline=None,
        # Large mixes are meant to be drawn; the time they take is a planner's.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        print_blob=True,
    )
