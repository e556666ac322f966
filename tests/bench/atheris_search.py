"""One search with atheris, in a process of its own, since libFuzzer ends the one it is in.

    python -m tests.bench.atheris_search MUTANT SEED SECONDS

Prints the seconds from the first input to the one that broke the planner; nothing in vain.
Mutants, reference and page sizes are instrumented, so that coverage can guide it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import atheris

with atheris.instrument_imports(
    include=["tests.bench.mutants", "kvfuzz.reference", "kvfuzz.pages"]
):
    from tests.bench.mutants import MUTANTS, fails
from tests.bench.random_mixes import random_mix

#: Enough for the longest mix: libFuzzer grows inputs slowly by itself.
BYTES = 128


def main() -> None:
    name, seed, seconds = sys.argv[1:]
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    limit = float(seconds)
    start = 0.0

    def one_input(data: bytes) -> None:
        nonlocal start
        start = start or time.perf_counter()
        provider = atheris.FuzzedDataProvider(data)

        def pick(values: Sequence[Any]) -> Any:
            return values[provider.ConsumeIntInRange(0, len(values) - 1)]

        found = fails(mutant.planner, random_mix(pick))
        spent = time.perf_counter() - start
        if found:
            print(spent, flush=True)
        if found or spent > limit:
            os._exit(0)

    # libFuzzer takes 0 for "any seed".
    options = [f"-seed={int(seed) + 1}", f"-max_len={BYTES}", "-len_control=0"]
    atheris.Setup([sys.argv[0], *options], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
