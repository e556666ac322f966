"""`kvfuzz verify`: put every small mix to targets, up to what a packer can see of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kvfuzz.commands.fetch import prepare_all
from kvfuzz.commands.run import check_files, conduct, default_jobs
from kvfuzz.engine.enumerator import chunks
from kvfuzz.engine.patterns import mixes as mixes_of
from kvfuzz.engine.verify_run import VerifySettings, unfinished
from kvfuzz.engine.verify_run import verify as verify_engine
from kvfuzz.files import check_writable, printable
from kvfuzz.ledger import ledger
from kvfuzz.reporting.console import count
from kvfuzz.reporting.terminal import console
from kvfuzz.targets.uri import default_target


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
    cases = out / "cases"
    check_writable(cases)
    wanted_files = {option: path for option, path in files.items() if path is not None}
    check_files(wanted_files)
    if use_ledger:
        ledger()  # a damaged entry is said before the start, not after
    stderr = console(stderr=True)
    uris = tuple(dict.fromkeys(targets)) or (default_target(),)
    prepared, failed = prepare_all(uris, stderr)
    settings = VerifySettings(
        targets=prepared,
        surfaces=("pack",),
        seconds=None,
        mixes=None,
        seed=0,
        jobs=min(jobs or default_jobs(), chunks(layers)),  # more would have nothing to do
        use_ledger=use_ledger,
        cases=cases,
        layers=layers,
        states=out,
    )
    mixes = mixes_of(layers)
    stderr.say(f"{mixes:,} mixes a target, {count(settings.jobs, 'worker')}", style="dim")
    for target in prepared:
        for surface in settings.surfaces:
            if state := unfinished(settings, target.uri, surface):
                done = f"{state.tally.mixes:,} of {mixes:,} mixes"
                stderr.say(f"{printable(target.uri)} {surface}: {done} were done before")
    return conduct(
        lambda stop: verify_engine(settings, stop),
        seed=settings.seed,
        mixes=mixes,
        failed=failed,
        files=wanted_files,
    )
