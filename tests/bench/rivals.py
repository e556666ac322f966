"""How many mixes a second kvfuzz judges, beside what one would write without it.

    python tests/bench/rivals.py [TARGET]

Prints mixes a CPU second of one process on TARGET (reference unless named),
all of about 12 layers, and judged by the same invariants as in a search:

* `kvfuzz run`'s own loop, as in `hot_loop.py`;
* `@given` over `kvfuzz.strategies.spec_mixes`, as in a property test;
* `@given` over a dictionary of `builds(...)`, every field by itself;
* atheris, which builds specs of the same fields from random bytes. They are
  handed to it by a mutator, since it has no coverage of the planner to follow
  and would stay at empty inputs. Skipped where it is not installed.

The ways take turns; figures are medians, to be read as ratios.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2]))

from kvfuzz.engine.messages import Heartbeat
from kvfuzz.engine.session import Session, Tally
from kvfuzz.specs import LayerSpec, MLAAttentionSpec, Scenario, SlidingWindowMLASpec
from kvfuzz.strategies import layers as layouts
from kvfuzz.strategies import spec_mixes
from kvfuzz.targets.load import load, prepare
from tests.bench.hot_loop import LAYERS, MIXES, turn
from tests.bench.mixes_to_bug import naive

TURNS = 3
EXAMPLES = 1_000
RUNS = 3_000
#: Bytes that 16 layers take, and some.
MOST_BYTES = 128
ROOT = Path(__file__).parents[2]


def given_rate(session: Session, mixes: st.SearchStrategy[Scenario]) -> float:
    """Examples a CPU second of a property test that judges what it draws."""
    tally = Tally()

    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(mixes)
    def judged(scenario: Scenario) -> None:
        session.judge(scenario, tally, tally.mixes)

    start = time.process_time()
    judged()
    return tally.mixes / (time.process_time() - start)


def atheris_worker(uri: str, runs: int) -> None:
    """Fuzz with atheris in this process; prints the rate after so many runs."""
    import atheris

    session = Session(load(prepare(uri)), "pack")
    tally = Tally()
    started = time.process_time()

    @atheris.instrument_func  # type: ignore[untyped-decorator, unused-ignore]
    def one_input(data: bytes) -> None:
        source = atheris.FuzzedDataProvider(data)
        mix: list[tuple[str, LayerSpec]] = []
        for number in range(12):
            plain = {
                "block_size": source.PickValueInList([16, 32, 64, 128, 256]),
                "num_kv_heads": source.ConsumeIntInRange(1, 8),
                "head_size": source.PickValueInList([64, 128, 256, 512, 576, 1024]),
                "dtype": source.PickValueInList(["float32", "bfloat16", "uint8"]),
            }
            if source.ConsumeBool():
                window = source.PickValueInList([128, 512, 1024])
                mix.append(
                    (f"layers.{number}", SlidingWindowMLASpec(sliding_window=window, **plain))
                )
            else:
                mix.append((f"layers.{number}", MLAAttentionSpec(**plain)))
        session.judge(Scenario(tuple(mix)), tally, tally.mixes)
        if tally.mixes == runs:
            print("rate", runs / (time.process_time() - started), flush=True)

    def random_bytes(_: bytes, most: int, seed: int) -> bytes:
        return random.Random(seed).randbytes(most)

    options = [f"-runs={runs + 2}", f"-max_len={MOST_BYTES}", "-len_control=0"]
    atheris.Setup([sys.argv[0], *options], one_input, custom_mutator=random_bytes)
    atheris.Fuzz()


def atheris_rate(uri: str) -> float:
    """Inputs a CPU second of an atheris loop, in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.rivals", uri, f"--atheris={RUNS}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rates = [line for line in run.stdout.splitlines() if line.startswith("rate ")]
    if not rates:
        raise RuntimeError(f"atheris gave no rate: {run.stderr[-500:]}")
    return float(rates[0].split()[1])


def main() -> None:
    uri = sys.argv[1] if len(sys.argv) > 1 else "reference"
    if len(sys.argv) > 2:
        atheris_worker(uri, int(sys.argv[2].removeprefix("--atheris=")))
        return
    prepared = prepare(uri)
    target = load(prepared)
    session = Session(target, "pack")
    seeds = iter(range(100))
    file, heartbeat = Heartbeat.create()

    def scouted() -> float:
        return MIXES / turn(prepared, target, session, heartbeat, next(seeds))[1]

    ways: dict[str, Callable[[], float]] = {
        "kvfuzz run": scouted,
        "@given(spec_mixes())": lambda: given_rate(session, spec_mixes(dialect=target.dialect)),
        "@given(dictionaries(builds))": lambda: given_rate(session, naive(12, 12)),
    }
    if importlib.util.find_spec("atheris") is not None:
        ways["atheris"] = lambda: atheris_rate(uri)
    else:
        print("atheris is not installed")
    with file, heartbeat, mock.patch.object(layouts, "_COUNTS", (LAYERS["12"],)):
        turns = [{name: way() for name, way in ways.items()} for _ in range(TURNS)]
    for name in ways:
        rate = statistics.median(each[name] for each in turns)
        print(f"{uri:16} {name:30} {rate:10,.0f} mixes/s")
    print("ratios:")
    for one, other in (
        ("kvfuzz run", "@given(dictionaries(builds))"),
        ("kvfuzz run", "atheris"),
        ("@given(spec_mixes())", "@given(dictionaries(builds))"),
    ):
        if other in ways:
            ratio = statistics.median(each[one] / each[other] for each in turns)
            print(f"  {one} / {other}: {ratio:.1f}")


if __name__ == "__main__":
    main()
