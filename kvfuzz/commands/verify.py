"""`kvfuzz verify`: put every small mix to targets, up to what a packer can see of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kvfuzz.commands.run import conduct, default_jobs, get_ready
from kvfuzz.engine.enumerator import chunks
from kvfuzz.engine.patterns import mixes as mixes_of
from kvfuzz.engine.verify_run import VerifySettings, unfinished
from kvfuzz.engine.verify_run import verify as verify_engine
from kvfuzz.files import printable
from kvfuzz.reporting.console import count
from kvfuzz.reporting.terminal import console


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
        jobs: Workers a target, or None.
        files: Option, such as `--json`, -> the file it names, or None.
        out: Folder of case files and of the state.
        use_ledger: Whether the ledger says what is known.

    Raises:
        KvfuzzError: Nothing could be verified, or a file is damaged or could not be written.
    """
    stderr = console(stderr=True)
    ready = get_ready(stderr, targets, files, out, use_ledger=use_ledger)
    settings = VerifySettings(
        targets=ready.targets,
        surfaces=("pack",),
        seconds=None,
        mixes=None,
        seed=0,
        jobs=min(jobs or default_jobs(), chunks(layers)),  # more would have nothing to do
        use_ledger=use_ledger,
        cases=ready.cases,
        layers=layers,
        states=out,
    )
    mixes = mixes_of(layers)
    stderr.say(f"{mixes:,} mixes a target, {count(settings.jobs, 'worker')}", style="dim")
    for target in ready.targets:
        for surface in settings.surfaces:
            if state := unfinished(settings, target.uri, surface):
                done = f"{state.tally.mixes:,} of {mixes:,} mixes"
                stderr.say(f"{printable(target.uri)} {surface}: {done} were done before")
    return conduct(
        lambda stop: verify_engine(settings, stop),
        seed=settings.seed,
        mixes=mixes,
        failed=ready.failed,
        files=ready.files,
    )
