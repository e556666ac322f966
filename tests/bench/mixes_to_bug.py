"""How many mixes it takes to find pull request 48256's bug, over 20 seeds.

Prints, for each way of building mixes, the median and the worst number of
mixes until a uniform mix of both kinds is grouped:

    python tests/bench/mixes_to_bug.py [TARGET]

TARGET is vllm==0.25.1 unless named.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kvfuzz.engine.session import Session
from kvfuzz.specs import MLAAttentionSpec, Scenario, SlidingWindowMLASpec
from kvfuzz.strategies import spec_mixes
from kvfuzz.strategies.builders import stream
from kvfuzz.strategies.choices import SeededChoices
from kvfuzz.targets.load import load, prepare

SEEDS = range(20)
MOST = 5_000


class Found(Exception):
    """The bug, after so many mixes."""


def breaks(session: Session, scenario: Scenario) -> bool:
    return any(v.invariant == "uniform-is-none" for v in session.judge(scenario))


def scouted(session: Session, number: int) -> int:
    mixes = stream(SeededChoices(number, 0), dialect=session.target.dialect)
    for count, (_, mix) in zip(range(1, MOST), mixes, strict=False):
        if breaks(session, mix):
            return count
    return MOST


def drawn(session: Session, number: int, mixes: st.SearchStrategy[Scenario]) -> int:
    count = 0

    @seed(number)
    @settings(
        database=None,
        deadline=None,
        max_examples=MOST,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(mixes)
    def search(scenario: Scenario) -> None:
        nonlocal count
        count += 1
        if breaks(session, scenario):
            raise Found

    try:
        search()
    except Found:
        return count
    return MOST


def naive(fewest: int = 1, most: int = 16) -> st.SearchStrategy[Scenario]:
    """What one writes first: names to specs, every field by itself; so many layers."""
    plain = {
        "block_size": st.sampled_from([16, 32, 64, 128, 256]),
        "num_kv_heads": st.integers(1, 8),
        "head_size": st.sampled_from([64, 128, 256, 512, 576, 1024]),
        "dtype": st.sampled_from(["float32", "bfloat16", "uint8"]),
    }
    windows = st.builds(
        SlidingWindowMLASpec, **plain, sliding_window=st.sampled_from([128, 512, 1024])
    )
    specs = st.builds(MLAAttentionSpec, **plain) | windows
    mixes = st.dictionaries(st.text("abcdef", min_size=1), specs, min_size=fewest, max_size=most)
    return mixes.map(lambda mix: Scenario(mix=tuple(mix.items())))


def rows(session: Session) -> Iterator[tuple[str, Callable[[int], int]]]:
    mixes = spec_mixes(dialect=session.target.dialect)
    yield "kvfuzz run (fast source)", lambda number: scouted(session, number)
    yield "kvfuzz.strategies.spec_mixes", lambda number: drawn(session, number, mixes)
    yield "a dictionary of builds(...)", lambda number: drawn(session, number, naive())


def main() -> None:
    uri = sys.argv[1] if len(sys.argv) > 1 else "vllm==0.25.1"
    session = Session(load(prepare(uri)), "pack")
    print(f"mixes until uniform-is-none is broken by {uri}, over {len(SEEDS)} seeds")
    for name, count in rows(session):
        counts = [count(number) for number in SEEDS]
        print(f"{name:32} median {statistics.median(counts):>6g}   worst {max(counts):>5}")


if __name__ == "__main__":
    main()
