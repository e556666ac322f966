"""The search loop beside a bare loop that makes the same calls and judges nothing.

    python tests/bench/hot_loop.py [TARGET...]

For mixes of about 12 and about 61 layers: `bare` calls the planner on the
stream's mixes, built and translated beforehand, and once more on two mixes in
eight, as the rules do that call again; `kvfuzz` is the scout that
`kvfuzz run` has in its worker, with its limits and its heartbeat, on the same
stream: it draws, translates, calls and judges by every invariant (rules that
call again on one mix in eight) and recognises what it has found before. Only
the table from which layer counts are drawn is another, so that the layouts are
of the size asked for; drawing spec classes is in the figures with its share.

Each turn has a seed of its own: no spec is translated before its turn. The
loops take turns and CPU time is taken, so that a busy machine disturbs both
alike; the figures are medians over the turns, to be read as ratios.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from unittest import mock

from kvfuzz.engine.calls import Watch
from kvfuzz.engine.messages import FuzzJob, Heartbeat
from kvfuzz.engine.places import CHUNK, Place
from kvfuzz.engine.scout import Scout
from kvfuzz.engine.session import CALLS_AGAIN_SHARE, Session, Tally
from kvfuzz.engine.stream import FRESH
from kvfuzz.findings import fingerprint
from kvfuzz.specs import Scenario
from kvfuzz.strategies import layers as layouts
from kvfuzz.targets.base import Target
from kvfuzz.targets.load import Prepared, load, prepare

#: What is asked of surfaces that read nothing of it.
ASKED = Scenario(())

MIXES = 2 * CHUNK
TURNS = 40
#: Name -> the range of layer counts.
LAYERS = {"12": (10, 14), "61": (58, 64)}


def fingerprints(session: Session, mixes: list[Scenario]) -> set[str]:
    """What a search meets on these mixes: it is known in the measured one, and not shrunk."""
    tally = Tally()
    return {
        fingerprint("pack", violation)
        for number, mix in enumerate(mixes)
        for violation in session.judge(mix, tally, number % CHUNK)
    }


def timed(loop: Callable[[], None]) -> float:
    start = time.process_time()
    loop()
    return time.process_time() - start


def turn(
    prepared: Prepared, target: Target, scouting: Session, heartbeat: Heartbeat, seed: int
) -> tuple[float, float, int]:
    """CPU seconds of the bare loop and of the scout on a seed's first mixes, and layers."""
    with tempfile.TemporaryDirectory() as claims:
        job = FuzzJob(
            target=prepared,
            surface="pack",
            seed=seed,
            start=Place(FRESH, 0),
            stride=1,
            deadline=None,
            mixes=FRESH * CHUNK + MIXES,
            witnesses={},
            done=[],
            claims=claims,
        )
        scout = Scout(scouting, seed, heartbeat, lambda message: None)
        mixes = [scenario for _, scenario in scout._stream(job)]
        job.done.extend(fingerprints(Session(target, "pack"), mixes))
        native = {spec: target.translate(spec) for mix in mixes for _, spec in mix}
        built = [{name: native[spec] for name, spec in mix} for mix in mixes]

        turned = [dict(reversed(mix.items())) for mix in built]

        def bare() -> None:
            for number, mix in enumerate(built):
                # Upstream asserts on mixes that it does not expect.
                with contextlib.suppress(AssertionError):
                    target.call("pack", mix, ASKED)
                    if number % CALLS_AGAIN_SHARE == 0:  # as `deterministic` does
                        target.call("pack", mix, ASKED)
                    elif number % CALLS_AGAIN_SHARE == 4:  # as `order-free` does
                        target.call("pack", turned[number], ASKED)

        return timed(bare), timed(lambda: scout.search(job)), sum(map(len, mixes))


def measure(uri: str, prepared: Prepared, target: Target, name: str) -> None:
    watch = Watch()
    scouting = Session(target, "pack", watch=watch)
    file, heartbeat = Heartbeat.create()
    with file, heartbeat, mock.patch.object(layouts, "_COUNTS", (LAYERS[name],)):
        watch.start()
        turns = [turn(prepared, target, scouting, heartbeat, seed) for seed in range(TURNS + 1)][1:]
        watch.stop()
    bare_us, kvfuzz_us, layers = (statistics.median(t) / MIXES for t in zip(*turns, strict=True))
    ratio = statistics.median(bare / kvfuzz for bare, kvfuzz, _ in turns)
    print(
        f"{uri:16} {layers:5.1f} layers   bare {1e6 * bare_us:6.1f} us a mix   "
        f"kvfuzz {1e6 * kvfuzz_us:6.1f} us ({1 / kvfuzz_us:,.0f} mixes/s)   ratio {ratio:.2f}",
        flush=True,
    )


def main() -> None:
    for uri in sys.argv[1:] or ["vllm==0.28.0", "reference"]:
        prepared = prepare(uri)
        target = load(prepared)
        for name in LAYERS:
            measure(uri, prepared, target, name)


if __name__ == "__main__":
    main()
