"""`kvfuzz run`: search surfaces of targets, show what comes, end with the documented code."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kvfuzz.commands.conduct import Ready, conduct, crew_of, get_ready
from kvfuzz.commands.names import check_surfaces
from kvfuzz.engine.campaign import run as run_campaign
from kvfuzz.engine.corpus import (
    Corpus,
    SharedCases,
    cases_in,
    cases_of_ledger,
    corpus,
    open_database,
)
from kvfuzz.engine.records import Past, Plan
from kvfuzz.engine.settings import Settings
from kvfuzz.engine.state import STATE_FILE, State
from kvfuzz.errors import UsageError
from kvfuzz.files import printable
from kvfuzz.profiles import Profile, named
from kvfuzz.reporting.terminal import QuietConsole, console
from kvfuzz.reporting.words import plural

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_budget(text: str) -> float:
    """Seconds of a budget such as 60s, 10m or 8h.

    Raises:
        UsageError: It is of another form, or zero.
    """
    form = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smh])", text)
    seconds = float(form[1]) * _SECONDS[form[2]] if form else 0.0
    if seconds <= 0:
        raise UsageError(f"--budget {text!r} is no time: write it as 60s, 10m or 8h.")
    return seconds


def run(
    *,
    targets: Sequence[str],
    surfaces: Sequence[str],
    budget: str | None,
    examples: int | None,
    seed: int | None,
    profile: str | None,
    resume: bool,
    max_findings: int | None,
    jobs: int | None,
    dask: str | None,
    database: str | None,
    files: Mapping[str, Path | None],
    out: Path,
    use_ledger: bool,
) -> int:
    """Run, and return the exit code.

    Args:
        targets: Their URIs; none is the default one.
        surfaces: Surfaces of each; none is `pack`.
        budget: Wall-clock time in all, in words, or None.
        examples: Mixes a surface, or None.
        seed: Names the stream of mixes; None draws one.
        profile: Says what is not said by the above; None is `dev`.
        resume: Whether to go on with the last campaign of the folder.
        max_findings: New findings after which to stop, or None.
        jobs: Worker processes, or None.
        dask: Address of a Dask scheduler whose workers do the search, or None.
        database: Of examples: a Redis URL or a folder, or None.
        files: Option, such as `--json`, -> the file it names, or None.
        out: Folder of the state and of case files.
        use_ledger: Whether the ledger says what is known.

    Raises:
        KvfuzzError: Nothing could be run, or a file could not be written.
    """
    if budget is not None and examples is not None:
        raise UsageError("--budget and --examples exclude each other: give one of them.")
    seconds = None if budget is None else parse_budget(budget)
    if resume:
        given = {
            "--target": targets,
            "--surface": surfaces,
            "--examples": examples,
            "--seed": seed is not None,
            "--profile": profile,
            "--no-ledger": not use_ledger,
        }
        past, plan = _last(out, seconds, [option for option, value in given.items() if value])
    else:
        past, plan = None, _planned(surfaces, seconds, examples, seed, profile or "dev")
        plan = msgspec.structs.replace(plan, targets=tuple(targets), use_ledger=use_ledger)
    told = named(plan.profile)
    stderr = console(stderr=True)
    ready = get_ready(stderr, plan.targets, files, out, use_ledger=plan.use_ledger)
    plan = msgspec.structs.replace(plan, targets=tuple(target.uri for target in ready.targets))
    shared = SharedCases(open_database(database)) if database is not None else None
    corpus_ = _corpus(stderr, ready, told, shared, use_ledger=plan.use_ledger)
    crew = crew_of(jobs, dask)
    with State(out) as state:
        campaign = state.go_on(past) if past else state.begin(plan)
        settings = Settings(
            targets=ready.targets,
            surfaces=plan.surfaces,
            seconds=plan.seconds,
            mixes=plan.mixes,
            seed=plan.seed,
            lanes=crew.slots,
            use_ledger=plan.use_ledger,
            cases=ready.cases,
            max_findings=max_findings,
            corpus=corpus_,
        )
        stderr.say(f"seed {settings.seed}, {plural(crew.slots, 'worker')}", style="dim")
        return conduct(
            lambda stop: run_campaign(settings, crew, campaign, stop),
            seed=settings.seed,
            mixes=plan.mixes,
            ready=ready,
            shared=shared,
            floor=told.floor,
            again=f"kvfuzz run --resume --out {shlex.quote(str(out))}",
        )


def _planned(
    surfaces: Sequence[str],
    seconds: float | None,
    examples: int | None,
    seed: int | None,
    profile: str,
) -> Plan:
    """What is to be done, targets aside: what is said, and else what the profile says.

    Raises:
        UsageError: There is no such surface or profile.
    """
    wanted = tuple(dict.fromkeys(surfaces)) or ("pack",)
    check_surfaces(wanted)
    told = named(profile)
    if seconds is None and examples is None:
        seconds, examples = told.seconds, told.mixes
    if seed is None:
        seed = 0 if told.same else secrets.randbelow(2**32)
    return Plan(
        kind="run",
        targets=(),
        surfaces=wanted,
        seconds=seconds,
        mixes=examples,
        seed=seed,
        use_ledger=True,
        profile=profile,
    )


def _last(out: Path, seconds: float | None, given: Sequence[str]) -> tuple[Past, Plan]:
    """The last campaign of a folder, and what is left of its plan, or as much time as is given.

    Args:
        out: The folder.
        seconds: Time to go on for, or None for what is left of the plan.
        given: Options that have no place beside --resume.

    Raises:
        UsageError: There are such options, or there is nothing to go on with.
    """
    shown = printable(str(out))
    if given:
        raise UsageError(f"--resume goes on with what was begun: leave out {', '.join(given)}.")
    past = None
    if (out / STATE_FILE).exists():
        with State(out) as state:
            past = state.latest("run")
    if past is None:
        raise UsageError(f"There is no campaign in {shown} to go on with: leave out --resume.")
    plan = past.plan
    if seconds is not None:
        return past, plan.going_on(seconds)
    if past.finished:
        raise UsageError(
            f"The last campaign in {shown} came to its end: give it --budget to search on, or "
            "leave out --resume to begin anew."
        )
    if plan.seconds is None:
        return past, plan
    return past, plan.going_on(max(0.0, plan.seconds - past.seconds))


def _corpus(
    stderr: QuietConsole,
    ready: Ready,
    profile: Profile,
    shared: SharedCases | None,
    *,
    use_ledger: bool,
) -> Corpus:
    """What the search begins with.

    Raises:
        UsageError: It is all that is wanted, and there is nothing.
    """
    kept = [shared.cases()] if shared else []
    if profile.replays:
        found, wrong = cases_in(ready.cases)
        for sentence in wrong:
            stderr.say(f"left out: {sentence}", style="yellow")
        kept += [found, cases_of_ledger() if use_ledger else []]
    cases = corpus(*kept)
    if profile.mixes == 0 and not cases:
        raise UsageError(
            f"There is nothing to replay: no case in {printable(str(ready.cases))}, and no other "
            "is kept."
        )
    return cases
