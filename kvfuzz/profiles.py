"""Profiles: how long a run searches and how many examples a property test tries, for what.

Hypothesis is imported late: `kvfuzz run` needs the words only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvfuzz.errors import UsageError

if TYPE_CHECKING:
    from hypothesis import settings
    from hypothesis.database import ExampleDatabase

#: Where failures of property tests are remembered between runs.
DATABASE_FOLDER: Final = ".hypothesis/examples"


class Profile(NamedTuple):
    """What a profile stands for.

    Attributes:
        purpose: What it is for, and what it does, in a line.
        examples: Examples of a property test, each shard.
        seconds: Budget of a run, if none is given; None is by `mixes`.
        mixes: Mixes that a run puts to a surface, if no budget is given.
        same: Whether each time is like the last: a run's seed is 0, examples
            are derandomised, and nothing is remembered.
        replays: Whether a run begins with the cases that are kept.
        floor: Whether a run fails that tried next to nothing.
    """

    purpose: str
    examples: int
    seconds: float | None
    mixes: int | None
    same: bool = False
    replays: bool = False
    floor: bool = False


#: Profiles by name.
PROFILES: Final = {
    "dev": Profile(
        "a laptop: a minute, or 300 examples a shard, at random, failures remembered",
        examples=300,
        seconds=60.0,
        mixes=None,
    ),
    "ci": Profile(
        "a pull request: 20,000 mixes, or 300 examples a shard, the same each time",
        examples=300,
        seconds=None,
        mixes=20_000,
        same=True,
    ),
    "nightly": Profile(
        "hours: what is kept first, then at random; fails if next to nothing could be tried",
        examples=20_000,
        seconds=3600.0,
        mixes=None,
        replays=True,
        floor=True,
    ),
    "replay": Profile(
        "only what is kept: cases, the database, the ledger's witnesses; no search",
        examples=0,
        seconds=None,
        mixes=0,
        replays=True,
    ),
}


def named(name: str) -> Profile:
    """The profile of that name.

    Raises:
        UsageError: There is none.
    """
    if name not in PROFILES:
        raise UsageError(f"No profile is called {name!r}: choose {', '.join(PROFILES)}.")
    return PROFILES[name]


def hypothesis_settings(name: str, database: ExampleDatabase | None = None) -> settings:
    """Hypothesis's settings for property tests under a profile.

    Every field that Hypothesis's own defaults would choose by environment is
    stated: with CI=true its default profile is derandomised and has no
    database, and a nightly that inherited that would try the same examples
    each night.

    Args:
        name: Of the profile.
        database: Where failures are remembered; None is a folder.

    Raises:
        UsageError: There is no profile of that name.
    """
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.database import DirectoryBasedExampleDatabase

    profile = named(name)
    if profile.same:
        database = None
    elif database is None:
        database = DirectoryBasedExampleDatabase(DATABASE_FOLDER)
    searches = profile.examples > 0
    return settings(
        derandomize=profile.same,
        database=database,
        max_examples=profile.examples or 1,
        phases=tuple(Phase) if searches else (Phase.explicit, Phase.reuse, Phase.shrink),
        deadline=None,
        # Large mixes are meant to be drawn; the time they take is a planner's.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        print_blob=True,
    )
