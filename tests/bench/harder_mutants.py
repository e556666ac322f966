"""Print how long four fuzzers take to find bugs that need several facts to meet.

    python tests/bench/harder_mutants.py [--seconds 2] [--seeds 10] [MUTANT...]

For each planner of `mutants.py`: the median seconds of each way of `fuzzers.py`, from its first
input to the first that breaks the planner, without imports and start of a process, and how many
of the seeds found it. A search that finds nothing counts as the limit; once more than half of a
way's seeds did, its median is the limit, and it is tried no further. `ratio` is kvfuzz by the
best of the others: `=` if they differ by less than 5 ms, which is noise here, and `!` if kvfuzz
is more than 1.2 times as slow. `layers` is the most that kvfuzz's finding has once it is shrunk,
over the seeds, and `least` what the mutant is known to need.

Ten seeds say a median to within a factor of about two: before you conclude from a ratio near
one, name the mutant and give it more seeds.

atheris is left out where it is not installed (`pip install atheris`). The ways take turns, so
that a noisy machine disturbs all; read the ratios, not the seconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.fuzzers import Kvfuzz, guided_by_coverage, naive_hypothesis, plain_random
from tests.bench.mutants import MUTANTS, Mutant

#: Seconds that two medians may differ by and count as equal.
EQUAL = 0.005
OTHERS = {
    "random": plain_random,
    "Hypothesis": naive_hypothesis,
    "atheris": guided_by_coverage,
}
if find_spec("atheris") is None:
    del OTHERS["atheris"]


class Runs:
    """The searches of one way for one mutant: seconds, or None for one in vain."""

    def __init__(self, seeds: int, limit: float) -> None:
        self.spent: list[float | None] = []
        self._seeds = seeds
        self._limit = limit

    @property
    def decided(self) -> bool:
        """Whether the median is the limit, whatever the other seeds do."""
        return self.spent.count(None) > self._seeds / 2

    @property
    def median(self) -> float:
        if self.decided:
            return self._limit
        return statistics.median(self._limit if t is None else t for t in self.spent)

    def __str__(self) -> str:
        found = len(self.spent) - self.spent.count(None)
        return f"{'>' if self.decided else ''}{self.median:.4f} {found:>2}/{len(self.spent)}"


def ratio(kvfuzz: float, best: float) -> str:
    if abs(kvfuzz - best) < EQUAL:
        return "="
    return f"{kvfuzz / best:.2f}{' !' if kvfuzz > 1.2 * best else ''}"


def measure(mutant: Mutant, seeds: int, limit: float) -> None:
    """Search with all seeds, and print the mutant's row."""
    runs = {way: Runs(seeds, limit) for way in ("kvfuzz", *OTHERS)}
    layers: list[int] = []
    for number in range(seeds):
        scout = Kvfuzz(mutant, number)
        runs["kvfuzz"].spent.append(scout.search(limit))
        minimal = scout.shrunk()
        if minimal is not None:
            layers.append(len(minimal))
        for way, search in OTHERS.items():
            if not runs[way].decided:
                runs[way].spent.append(search(mutant, number, limit))
    best = min(runs[way].median for way in OTHERS)
    times = "".join(f"{runs[way]!s:>15}" for way in runs)
    print(
        f"{mutant.name:33}{times}{ratio(runs['kvfuzz'].median, best):>9}"
        f"{max(layers, default='-'):>8}{mutant.layers:>7}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2, help="limit of a search")
    parser.add_argument("--seeds", type=int, default=10)
    names = [mutant.name for mutant in MUTANTS]
    parser.add_argument("mutants", nargs="*", metavar="MUTANT", help=", ".join(names))
    args = parser.parse_args()
    if unknown := set(args.mutants) - set(names):
        parser.error(f"no mutant {', '.join(sorted(unknown))}")
    for way in (plain_random, naive_hypothesis):  # fill caches
        way(MUTANTS[0], 0, 0.2)
    Kvfuzz(MUTANTS[0], 0).search(0.2)

    if "atheris" not in OTHERS:
        print("atheris is not installed, and so not measured\n")
    print(f"median seconds over {args.seeds} seeds, at most {args.seconds:g} each; found of tried")
    ways = "".join(f"{way:>15}" for way in ("kvfuzz", *OTHERS))
    print(f"{'mutant':33}{ways}{'ratio':>9}{'layers':>8}{'least':>7}")
    for mutant in MUTANTS:
        if not args.mutants or mutant.name in args.mutants:
            measure(mutant, args.seeds, args.seconds)
    print(f"\n= less than {EQUAL * 1e3:g} ms apart   ! kvfuzz more than 1.2 times the best other")


if __name__ == "__main__":
    main()
