"""Print which public bugs of vLLM's planner random search finds, how soon, how small.

    python tests/bench/bug_zoo.py [--minutes 5] [--jobs 2] [--seed 1] [RELEASE...]

For each release of `zoo.py`: one run of all surfaces, without the ledger, so that nothing known
is put in its way. A bug is found if the run has a finding that the bug's own mix shows, too, when
it is replayed: one of the same fingerprint and of a rule that catches the bug. `seconds` is from
the start of the run to the shrunk case on disk; `layers` those of the shrunk mix, and in brackets
those of the bug's. The releases should be in the cache (`kvfuzz fetch`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from kvfuzz.engine.replay import case_item, replay
from kvfuzz.surfaces import SURFACES
from kvfuzz.targets.load import prepare
from tests.bench.runs import KVFUZZ
from tests.bench.zoo import BUGS, BY_DIFF, OUT_OF_REACH, Bug


def witness(bug: Bug, folder: Path) -> Path:
    """The bug's mix as a case file."""
    mix = [{"name": f"layers.{i}", **layer} for i, layer in enumerate(bug.layers)]
    path = folder / "case.json"
    scenario = {"mix": mix, **bug.scenario}
    path.write_bytes(
        msgspec.json.encode({"format": 1, "surface": bug.surface, "scenario": scenario})
    )
    return path


def shown(bug: Bug, folder: Path) -> set[str]:
    """Ids of the findings that the bug's own mix shows."""
    item = case_item(witness(bug, folder))
    (verdict,) = replay(prepare(f"vllm=={bug.release}"), bug.surface, [item])
    return {f.id for f in verdict.findings if f.invariant in bug.invariants}


def searched(release: str, minutes: float, jobs: int, seed: int, folder: Path) -> dict[str, Any]:
    """Id of each finding of a run -> its seconds and layers."""
    surfaces = [word for surface in SURFACES for word in ("--surface", surface)]
    start = time.time()
    run = subprocess.run(
        [
            KVFUZZ, "run", "--target", f"vllm=={release}", *surfaces, "--no-ledger",
            "--budget", f"{minutes * 60:.0f}s", "--jobs", str(jobs), "--seed", str(seed),
            "--out", str(folder), "--json", str(folder / "report.json"),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode > 1:  # 1 says that there are findings
        sys.exit(run.stderr)
    report = msgspec.json.decode((folder / "report.json").read_bytes())
    cases = folder / "cases"
    return {
        finding["id"]: (
            (cases / f"{finding['id']}.json").stat().st_mtime - start,
            len(finding["scenario"]["mix"]),
        )
        for finding in report["findings"]
        if finding["shrunk"]
    }


def differ(one: str, other: str, surface: str, words: str, options: argparse.Namespace) -> str:
    """What `kvfuzz diff` of two releases says of a difference that has these words."""
    with tempfile.TemporaryDirectory() as name:
        report = Path(name, "report.json")
        run = subprocess.run(
            [
                KVFUZZ, "diff", f"vllm=={one}", f"vllm=={other}", "--surface", surface,
                "--budget", f"{options.minutes * 60:.0f}s", "--seed", str(options.seed),
                "--json", str(report),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if run.returncode > 1:
            sys.exit(run.stderr)
        found = msgspec.json.decode(report.read_bytes())["differences"]
    layers = [len(d["scenario"]["mix"]) for d in found if words in d["how"]]
    return f"found, {min(layers)} layers" if layers else "not found"


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("releases", nargs="*", metavar="RELEASE")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    releases = options.releases or sorted({bug.release for bug in BUGS})
    bugs = [bug for bug in BUGS if bug.release in releases]
    found = 0
    print(f"{'bug':36} {'release':8} {'found as':34} {'seconds':>7}  layers")
    for release in releases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            made = searched(release, options.minutes, options.jobs, options.seed, folder)
            for bug in (bug for bug in bugs if bug.release == release):
                ids = shown(bug, folder)
                hit = min((i for i in ids if i in made), key=lambda i: made[i], default=None)
                if hit is None:
                    why = "not found" if ids else "its mix shows nothing"
                    print(f"{bug.id:36} {release:8} {why}", flush=True)
                    continue
                seconds, layers = made[hit]
                most = bug.most or len(bug.layers)
                small = layers <= most
                found += small
                mark = "" if small else "  too many"
                print(
                    f"{bug.id:36} {release:8} {hit:34} {seconds:7.1f}  {layers} ({most}){mark}",
                    flush=True,
                )
    if not options.releases:
        for name, (one, other, surface, words) in BY_DIFF.items():
            print(f"{name:36} {one}, {other}: {differ(one, other, surface, words, options)}")
    print(f"{found} of {len(bugs)} found by `run`, no larger than known")
    for name, why in OUT_OF_REACH.items():
        print(f"  out of reach: {name}: {why}")


if __name__ == "__main__":
    main(sys.argv[1:])
