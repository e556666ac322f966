"""`kvfuzz verify`: put every small mix to targets, up to what a packer can see of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kvfuzz.commands.conduct import conduct, crew_of, get_ready
from kvfuzz.engine.campaign import run as run_campaign
from kvfuzz.engine.enumerator import chunks
from kvfuzz.engine.patterns import mixes as mixes_of
from kvfuzz.engine.records import Plan
from kvfuzz.engine.state import State
from kvfuzz.engine.verify_run import Verification, VerifySettings
from kvfuzz.files import printable
from kvfuzz.reporting.terminal import console
from kvfuzz.reporting.words import plural


def verify(
    *,
    layers: int,
    targets: Sequence[str],
    jobs: int | None,
    files: Mapping[str, Path | None],
    out: Path,
    use_ledger: bool,
) -> int:
    """Verify, and return the exit code.

    Args:
        layers: The most layers of a mix.
        targets: Their URIs; none is the default one.
        jobs: Workers, or None.
        files: Option, such as `--json`, -> the file it names, or None.
        out: Folder of case files and of the state.
        use_ledger: Whether the ledger says what is known.

    Raises:
        KvfuzzError: Nothing could be verified, or a file is damaged or could not be written.
    """
    stderr = console(stderr=True)
    ready = get_ready(stderr, targets, files, out, use_ledger=use_ledger)
    plan = Plan(
        kind="verify",
        targets=tuple(target.uri for target in ready.targets),
        surfaces=("pack",),
        seconds=None,
        mixes=None,
        seed=0,
        use_ledger=use_ledger,
        layers=layers,
    )
    crew = crew_of(jobs, most=chunks(layers))
    settings = VerifySettings(
        targets=ready.targets,
        surfaces=plan.surfaces,
        seconds=None,
        mixes=None,
        seed=0,
        lanes=crew.slots,
        use_ledger=use_ledger,
        cases=ready.cases,
        layers=layers,
    )
    mixes = mixes_of(layers)
    stderr.say(f"{mixes:,} mixes a target, {plural(crew.slots, 'worker')}", style="dim")
    with State(out) as state:
        past = state.latest("verify", plan)
        campaign = state.go_on(past) if past and not past.finished else state.begin(plan)
        for (target, surface), stored in campaign.stored.items():
            done = f"{stored.snapshot.tally.mixes:,} of {mixes:,} mixes"
            stderr.say(f"{printable(target)} {surface}: {done} were done before")
        return conduct(
            lambda stop: run_campaign(settings, crew, campaign, stop, Verification),
            seed=settings.seed,
            mixes=mixes,
            ready=ready,
            again="the same command",
        )
