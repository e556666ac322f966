"""What whole runs cost: start, a second worker, memory. Through the command line.

    python tests/bench/runs.py start [TARGET]     # vllm==0.28.0 unless named
    python tests/bench/runs.py jobs [TARGET]      # likewise
    python tests/bench/runs.py memory [TARGET] [EXAMPLES]  # reference, 2,000,000

`start`: seconds from the command to its end after one mix, less those of a
process that imports torch. A release should be in the cache. `jobs`: mixes a
second of `--jobs 2` over those of `--jobs 1`; only true on a machine with two
idle cores. `memory`: MB of the largest process of a run with one worker, from
when its first tenth is done, at the end and at most.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

#: The command of the environment that this runs in.
KVFUZZ = str(Path(sys.executable).with_name("kvfuzz"))
TURNS = 5
JOB_SECONDS = 20
#: Seconds between two looks at a run's processes.
TICK = 0.5
#: Seconds after which a worker has loaded its target and filled its tables.
WARM = 15


def command(uri: str, folder: str, *options: str) -> list[str]:
    report = ["--json", f"{folder}/report.json", "--out", folder]
    return [KVFUZZ, "run", "--target", uri, *report, *options]


def seconds(*words: str) -> float:
    start = time.monotonic()
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    if run.returncode > 1:  # 1 says that there are findings
        sys.exit(run.stderr)
    return time.monotonic() - start


def start(uri: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = command(uri, folder, "--examples", "1", "--jobs", "1", "--seed", "0")
        turns = [
            (seconds(sys.executable, "-c", "import torch"), seconds(*words)) for _ in range(TURNS)
        ]
    torch, whole = (statistics.median(t) for t in zip(*turns, strict=True))
    beyond = statistics.median(b - a for a, b in turns)
    print(f"{uri}: import torch {torch:.2f} s, one mix {whole:.2f} s, beyond torch {beyond:.2f} s")


def rate(uri: str, jobs: int) -> float:
    """Mixes a second of a run with so many workers."""
    with tempfile.TemporaryDirectory() as folder:
        words = command(uri, folder, "--budget", f"{JOB_SECONDS}s", "--jobs", str(jobs))
        subprocess.run(words, capture_output=True, check=False)
        report = msgspec.json.decode(Path(folder, "report.json").read_bytes())
    figure: float = report["targets"][0]["surfaces"][0]["mixes_per_second"]
    return figure


def jobs(uri: str) -> None:
    turns = [(rate(uri, 1), rate(uri, 2)) for _ in range(3)]
    one, two = (statistics.median(t) for t in zip(*turns, strict=True))
    ratio = statistics.median(b / a for a, b in turns)
    print(f"{uri}: one worker {one:,.0f} mixes/s, two {two:,.0f}, ratio {ratio:.2f}")


def memory(uri: str, examples: int) -> None:
    sizes: list[tuple[float, float]] = []  # (seconds, MB)
    with tempfile.TemporaryDirectory() as folder:
        words = command(uri, folder, "--examples", str(examples), "--jobs", "1", "--seed", "0")
        begun = time.monotonic()
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            while run.poll() is None:
                found = []
                for child in psutil.Process(run.pid).children(recursive=True):
                    try:
                        found.append(child.memory_info().rss / 1e6)
                    except psutil.NoSuchProcess:
                        continue
                sizes.append((time.monotonic() - begun, max(found, default=0.0)))
                time.sleep(TICK)
        mixes = msgspec.json.decode(Path(folder, "report.json").read_bytes())
    done = mixes["targets"][0]["surfaces"][0]["mixes"]
    # The last looks may fall on a worker that is gone.
    held = [(at, size) for at, size in sizes if size]
    after = max(WARM, held[-1][0] / 10)
    warm = next((size for at, size in held if at >= after), held[-1][1])
    end = statistics.median(size for _, size in held[-6:])
    most = max(size for _, size in held)
    print(
        f"{uri}: {done:,} mixes in {held[-1][0]:.0f} s; worker {warm:.0f} MB once warm, "
        f"{end:.0f} at the end ({end - warm:+.0f}), {most:.0f} at most"
    )


def main() -> None:
    what, *rest = sys.argv[1:] or ["start"]
    uri = rest[0] if rest else "reference" if what == "memory" else "vllm==0.28.0"
    match what:
        case "start":
            start(uri)
        case "jobs":
            jobs(uri)
        case "memory":
            memory(uri, int(rest[1]) if len(rest) > 1 else 2_000_000)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
