"""Random changes to a release's planner: how many of them a search notices.

    python tests/bench/planner_mutants.py [RELEASE] [CHANGES] [SEED]  # 0.33.0, 40, 0

Changes are made by cosmic-ray (`pip install cosmic-ray`, MIT): an operator, a comparison, a
number, a condition or a loop becomes another, one at a time, in a line that planning runs. Each
changed planner is asked the scenarios of one seed on every surface, 1,500 a surface, with every
rule, and so is the release itself. A change is

- `news` if a finding is not known of the release, or the planner does not load or end;
- `known` if scenarios break rules that did not, but only in ways that are known of the release;
- `unnoticed` if it changes answers and breaks nothing;
- `none` if it changes no answer.

How a violation is named (`kvfuzz.findings.fingerprint`) decides between the first two, and
`kvfuzz diff` shows the middle ones. Two cores take some 9 minutes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

SURFACES = ("pack", "groups", "config", "merge", "page")
SCENARIOS = 1_500
#: To see which lines run, which takes many times as long.
TRACED = 150
#: Of a judged planner: many times what the release takes.
SECONDS = 200
#: Changes of these are none of meaning, or make no sense of the code.
NOT_USED = ("Decorator", "Variable", "ExceptionReplacer", "_Is", "Invert", "Shift", "Bit", "Pow")


def judge(folder: str, traced: bool) -> dict[str, Any]:
    """Findings of each surface with their scenarios, digests of answers, and lines that ran."""
    from kvfuzz.engine.session import Session, Tally
    from kvfuzz.findings import fingerprint
    from kvfuzz.strategies.choices import SeededChoices
    from kvfuzz.strategies.spaces import space_of
    from kvfuzz.targets.load import load, prepare

    target = load(prepare(f"vllm@{folder}"))
    lines: dict[str, set[int]] = {}

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        name = Path(frame.f_code.co_filename)
        if not name.name.startswith("kv_cache_") or not name.is_relative_to(folder):
            return None
        ran = lines.setdefault(str(name.relative_to(folder)), set())

        def line(frame: FrameType, event: str, arg: object) -> Any:
            ran.add(frame.f_lineno)
            return line

        return line

    count = TRACED if traced else SCENARIOS
    sys.settrace(trace if traced else None)
    broken: dict[str, list[int]] = {}
    answers = []
    for surface in SURFACES:
        session = Session(target, surface)
        stream = space_of(surface, target.dialect).stream(SeededChoices(1))
        for number, (_, scenario) in enumerate(islice(stream, count)):
            for violation in session.judge(scenario, Tally(), number):
                name = f"{violation.invariant}-{fingerprint(surface, violation)[:8]}"
                broken.setdefault(f"{surface} {name}", []).append(number)
            answers.append(sha256(repr(session.ask(scenario)).encode()).hexdigest()[:8])
    sys.settrace(None)
    return {
        "broken": broken,
        "answers": answers,
        "lines": {name: sorted(ran) for name, ran in lines.items()},
    }


def judged(folder: str, *options: str) -> dict[str, Any] | None:
    """The same in a process of its own; None if that has no end, or a bad one."""
    command = [sys.executable, __file__, "judge", folder, *options]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
    except subprocess.SubprocessError:
        return None
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def changes(folder: Path, lines: dict[str, list[int]], rng: random.Random) -> Iterator[Any]:
    """Each a file's name, a line, what the change is called, and the file's text with it."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    places: dict[Any, list[Any]] = {}
    for name, ran in lines.items():
        text = (folder / name).read_text()
        nodes = [*ast_nodes(get_ast(text))]
        for known_as in operator_names():
            if any(word in known_as for word in NOT_USED):
                continue
            operator = get_operator(known_as)()
            found = [place for node in nodes for place in operator.mutation_positions(node)]
            for occurrence, place in enumerate(found):
                if place[0][0] in ran:
                    what = (operator, known_as.partition("/")[2], occurrence)
                    places.setdefault((name, text, place), []).append(what)
    for key in rng.sample(sorted(places, key=str), len(places)):
        name, text, place = key
        operator, known_as, occurrence = rng.choice(places[key])
        changed = mutate_code(text, operator, occurrence)
        if changed is not None and changed != text:
            yield name, place[0][0], known_as, changed


def told(
    release: dict[str, Any], changed: dict[str, Any] | None, known: set[str]
) -> tuple[str, str]:
    """Which of the four a change is, and what shows it."""
    if changed is None:
        return "news", "it does not load, or does not end"
    new = sorted(changed["broken"].keys() - release["broken"].keys() - known)
    if new:
        return "news", ", ".join(new[:3])
    if changed["answers"] == release["answers"]:
        return "none", ""
    before = release["broken"]
    more = [n for n, met in changed["broken"].items() if not {*met} <= {*before.get(n, ())}]
    differing = sum(a != b for a, b in zip(changed["answers"], release["answers"], strict=True))
    said = f"{differing} answers differ"
    return ("known", f"{said}; {', '.join(more[:3])}") if more else ("unnoticed", said)


def main(version: str = "0.33.0", count: str = "40", seed: str = "0") -> None:
    from kvfuzz.ledger import ledger
    from kvfuzz.targets.releases import ensure_release

    entries = [entry.entry for entry in ledger() if entry.expected_of("vllm", version)]
    known = {f"{entry.surface} {entry.id}" for entry in entries}
    source = ensure_release(version)
    release = judged(str(source))
    traced = judged(str(source), "traced")
    if release is None or traced is None:
        sys.exit(f"vllm=={version} cannot be judged, or takes over {SECONDS} seconds.")
    with tempfile.TemporaryDirectory() as scratch:

        def tried(number: int, name: str, text: str) -> tuple[str, str]:
            folder = Path(scratch, str(number))
            shutil.copytree(source, folder)
            (folder / name).write_text(text)
            return told(release, judged(str(folder)), known)

        made = [*islice(changes(source, traced["lines"], random.Random(int(seed))), int(count))]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = [
                pool.submit(tried, number, name, text)
                for number, (name, _, _, text) in enumerate(made)
            ]
            sums: Counter[str] = Counter()
            for (name, line, known_as, _), result in zip(made, results, strict=True):
                which, why = result.result()
                sums[which] += 1
                print(f"{which:9}  {Path(name).name}:{line} {known_as}  {why}", flush=True)
    changing = len(made) - sums["none"]
    print(
        f"vllm=={version}: of {changing} changes that change an answer {sums['news']} are news, "
        f"{sums['known']} known, {sums['unnoticed']} unnoticed; {sums['none']} change none"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["judge"]:
        print(json.dumps(judge(sys.argv[2], sys.argv[3:] == ["traced"])))
    else:
        main(*sys.argv[1:])
