"""`kvfuzz diff`: what two targets answer otherwise, before one is changed for the other."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kvfuzz.commands.conduct import Stop, check_files
from kvfuzz.commands.fetch import prepare_all
from kvfuzz.commands.names import check_surfaces
from kvfuzz.commands.run import parse_budget
from kvfuzz.engine.compare import CompareSettings, compare
from kvfuzz.engine.comparison import Comparison
from kvfuzz.errors import Exit, KvfuzzError, TargetError, UsageError
from kvfuzz.files import printable, write_atomically
from kvfuzz.reporting.answers import (
    comparison_to_json,
    comparison_to_markdown,
    headline,
    print_comparison,
)
from kvfuzz.reporting.terminal import QuietConsole, console
from kvfuzz.reporting.words import plural

_SECONDS = 60.0
#: Seconds between lines that say how far it is.
_LINE_SECONDS = 10.0


def diff(
    *,
    targets: tuple[str, str],
    surfaces: Sequence[str],
    budget: str | None,
    examples: int | None,
    seed: int | None,
    files: Mapping[str, Path | None],
) -> int:
    """Compare, and return the exit code.

    Args:
        targets: URIs of both.
        surfaces: Surfaces to compare; none are all that both have.
        budget: Wall-clock time in all, in words, or None.
        examples: Scenarios a surface, or None.
        seed: Names the stream of scenarios; None draws one.
        files: Option, such as `--json`, -> the file it names, or None.

    Raises:
        KvfuzzError: Nothing could be compared, or a file could not be written.
    """
    if budget is not None and examples is not None:
        raise UsageError("--budget and --examples exclude each other: give one of them.")
    seconds = parse_budget(budget) if budget is not None else None
    check_surfaces(surfaces)
    named = {option: path for option, path in files.items() if path is not None}
    check_files(named)
    stdout, stderr = console(), console(stderr=True)
    prepared, failed = prepare_all(targets, stderr)
    if failed:
        raise TargetError(failed[0].error)
    if len(prepared) < len(targets):
        raise UsageError(f"Both targets are {prepared[0].uri}: there is nothing to compare.")
    settings = CompareSettings(
        targets=(prepared[0], prepared[1]),
        surfaces=tuple(dict.fromkeys(surfaces)),
        seconds=_SECONDS if seconds is None and examples is None else seconds,
        scenarios=examples,
        seed=secrets.randbelow(2**32) if seed is None else seed,
    )
    report = Comparison(seed=settings.seed, targets=(prepared[0].uri, prepared[1].uri))
    stderr.say(f"seed {settings.seed}", style="dim")
    broken: KvfuzzError | None = None
    with Stop() as stop:
        try:
            _show(stderr, settings, report, stop)
        except KvfuzzError as error:
            if not report.surfaces:
                raise
            broken = error
        print_comparison(stdout, report)
        for option, path in named.items():
            write_atomically(path, _FORMATS[option](report))
    if broken is not None:
        raise broken
    if stop.signal:
        stderr.say("stopped; what was found until then is above")
        return 128 + stop.signal
    code = Exit.NEW_FINDING if report.found else Exit.OK
    for surface in report.surfaces:
        if surface.stopped or not surface.scenarios:
            why = surface.stopped or "no scenario was put to both, for want of time or of words"
            stderr.say(printable(f"kvfuzz: surface {surface.surface}: {why}."), style="red")
            code = Exit.HARNESS if code == Exit.OK else code
    return code


_FORMATS: dict[str, Callable[[Comparison], bytes]] = {
    "--json": comparison_to_json,
    "--markdown": lambda report: comparison_to_markdown(report).encode(),
}


def _show(err: QuietConsole, settings: CompareSettings, report: Comparison, stop: Stop) -> None:
    """Compare, and say each difference once it is shrunk, and now and then how far it is."""
    status = err.status("loading") if err.is_terminal else None
    said = time.monotonic()
    with status or contextlib.nullcontext():
        for found in compare(settings, report, stop):
            surface = report.surfaces[-1]
            if found is not None:
                layers = plural(len(found.scenario), "layer")
                err.say(f"found on {surface.surface}: {headline(found)}, {layers}")
            far = f"{surface.surface}: {plural(surface.scenarios, 'scenario')}"
            far += f", {surface.differing:,} answered otherwise"
            if status is not None:
                status.update(far)
            elif time.monotonic() - said > _LINE_SECONDS:
                said = time.monotonic()
                err.say(far)
