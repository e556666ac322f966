"""What a run prints when it is over: counts, known findings, and new ones in full."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.padding import Padding
from rich.text import Text

from kvfuzz.engine.calls import DEFAULT_LIMITS
from kvfuzz.engine.events import Report, SurfaceReport, TargetReport
from kvfuzz.files import printable
from kvfuzz.findings import Finding
from kvfuzz.invariants import invariants_of
from kvfuzz.ledger import REASONS, find_known, stands_for
from kvfuzz.outcomes import OUTCOME_NAMES
from kvfuzz.reporting.matrix import is_verification, spread
from kvfuzz.reporting.mix import align, mix_table
from kvfuzz.reporting.terminal import QuietConsole
from kvfuzz.reporting.words import by_config, plural

#: New findings printed in full; and those that have a line in the end.
MAX_FULL = 20
MAX_LINES = 100


def print_report(out: QuietConsole, report: Report, paths: Mapping[str, str]) -> None:
    """Print a report.

    Args:
        out: Where to.
        report: The report.
        paths: Case file of each new finding, by target and fingerprint as in `path_key`.
    """
    for target in report.targets:
        _print_target(out, target)
    known = [finding for finding in report.findings if finding.status == "known"]
    _print_known(out, known)
    _print_borrowed(out, report.targets, known)
    new = report.new
    shown = spread(new) if len(new) > MAX_FULL else new
    for finding in shown[:MAX_FULL]:
        print_finding(out, finding, paths.get(path_key(finding), ""))
    if len(new) > 1:
        _print_index(out, shown, paths)
    known_ids = {finding.id for finding in known}
    verdict = f"{plural(len(new), 'new finding')}, {len(known_ids)} known."
    if not is_verification(report):
        verdict += f" Seed {report.seed}."
    out.say(verdict, style="bold red" if new else "bold green")


def _print_index(out: QuietConsole, findings: Sequence[Finding], paths: Mapping[str, str]) -> None:
    """Print a line a finding, for those who do not scroll up, and what is not printed."""
    rows = []
    for finding in findings[:MAX_LINES]:
        layers = plural(len(finding.scenario), "layer")
        where = paths.get(path_key(finding), "")
        rows.append((finding.id, printable(finding.target), layers, printable(where)))
    for line in align(rows, frozenset()):
        out.say(f"  {line}")
    if len(findings) > MAX_LINES:
        folders = {str(Path(path).parent) for path in paths.values() if path}
        where = f", in {printable(' and '.join(sorted(folders)))}" if folders else ""
        out.say(f"  and {len(findings) - MAX_LINES:,} more{where}")
    met = sum(not finding.shrunk for finding in findings)
    if met and len(findings) > MAX_FULL:
        out.say(
            f"  {met:,} of them are kept as they were met, not shrunk: a search shrinks its first "
            f"{DEFAULT_LIMITS.shrinks}"
        )
    out.say()


def path_key(finding: Finding) -> str:
    """What names a finding among those of several targets."""
    return f"{finding.fingerprint} {finding.target}"


def _print_target(out: QuietConsole, target: TargetReport) -> None:
    title = printable(target.uri)
    if target.version and not target.uri.endswith(target.version):
        title += f" (version {printable(target.version)})"
    if target.error:
        out.say(f"{title}: failed", style="bold red")
    for surface in target.surfaces:
        how = by_config(surface.config)
        out.say(f"{title}, surface {surface.surface}{how}", style="bold")
        _print_surface(out, surface)
    if target.surfaces:
        out.say()


def covered(report: SurfaceReport) -> str:
    """What a verification covered and whether it holds, in one line; "" of a search."""
    verified, tally = report.verified, report.tally
    if verified is None:
        return ""
    patterns = f"{plural(verified.patterns, 'pattern')}, {plural(verified.layers, 'layer')}"
    broken = [rule.id for rule in invariants_of(report.surface) if tally.violated[rule.id]]
    held = f"violated: {', '.join(broken)}" if broken else "all hold"
    if not verified.finished:
        patterns = f"{tally.mixes:,} of {verified.mixes:,} mixes of {patterns}"
        held = held if broken else "all hold so far"
    if lacking := tally.outcomes["not-expressible"]:
        held += f", but {lacking:,} mixes cannot be put to it"
    return f"{patterns}, {held}"


def leaking(report: SurfaceReport) -> str:
    """That a target leaks memory, and how that was seen; "" if it was not."""
    if not report.leaks:
        return ""
    workers = "1 worker was" if report.leaks == 1 else f"{report.leaks} workers were"
    return f"the target leaks memory: {workers} ended for having grown, a little with each call"


def _print_surface(out: QuietConsole, report: SurfaceReport) -> None:
    tally = report.tally
    outcomes = ", ".join(f"{tally.outcomes[name]:,} {name}" for name in OUTCOME_NAMES)
    out.say(
        f"{plural(tally.mixes, 'mix', 'mixes')} in {report.seconds:.1f} s, "
        f"{report.mixes_per_second:,.0f} a second"
    )
    out.say(f"outcomes: {outcomes}")
    if report.stopped:
        out.say(f"stopped early: {printable(report.stopped)}", style="yellow")
    if line := leaking(report):
        out.say(line, style="yellow")
    if report.never_set:
        fields = printable(", ".join(report.never_set))
        out.say(f"never set, since what they hold is not known: {fields}")
    if line := covered(report):
        out.say(line, style="bold")
    rows = [("invariant", "checked", "violated")]
    rules = invariants_of(report.surface)
    rows += [(r.id, f"{tally.checked[r.id]:,}", f"{tally.violated[r.id]:,}") for r in rules]
    lines = align(rows, frozenset((1, 2)))
    out.say(f"  {lines[0]}", style="dim")
    for rule, line in zip(rules, lines[1:], strict=True):
        out.say(f"  {line}", style="red" if tally.violated[rule.id] else None)


def _print_known(out: QuietConsole, findings: Iterable[Finding]) -> None:
    targets: dict[str, list[str]] = {}
    for finding in findings:
        where = finding.target + (" (real config)" if finding.config == "real" else "")
        targets.setdefault(finding.fingerprint, []).append(where)
    if targets:
        out.say("Known findings", style="bold")
    for fingerprint, uris in targets.items():
        known = find_known(fingerprint)
        assert known is not None, "a finding is known because the ledger has it"
        entry = known.entry
        where = uris[0] if len(uris) == 1 else f"{len(uris)} targets"
        out.say(f"  {entry.id} on {printable(where)}: {printable(entry.title)}")
        why = f"{REASONS[entry.reason]}; {printable(known.range)}. {printable(entry.explanation)}"
        out.print(Padding(Text(why, style="dim"), (0, 0, 0, 4)))
    if targets:
        out.say()


def _print_borrowed(
    out: QuietConsole, targets: Iterable[TargetReport], known: Iterable[Finding]
) -> None:
    """Say by which release's record it was decided what is known, where that is another's."""
    uris = {finding.target for finding in known}
    for target in targets:
        if target.uri in uris and (release := stands_for(target.uri, target.version)):
            uri = printable(target.uri)
            out.say(
                f"What is known of {uri} is what vllm=={release} does, which may hide what is new. "
                f"`kvfuzz diff vllm=={release} {printable(shlex.quote(target.uri))}` shows it."
            )
            out.say()


def print_finding(out: QuietConsole, finding: Finding, path: str) -> None:
    """Print a finding in full: claim, got, expected, mix, and how to have it again."""
    target = printable(finding.target)
    how = by_config(finding.config)
    head = f"NEW {finding.id} on {target}, surface {finding.surface}{how}"
    out.say(head, style="bold red")
    said = [("claim", finding.claim), ("got", finding.got), ("expected", finding.expected)]
    out.pairs([(label, printable(text)) for label, text in said], indent=2)
    kind = "minimal mix" if finding.shrunk else "mix, not shrunk"
    out.say(f"  {kind}, {plural(len(finding.scenario), 'layer')}:")
    groups = finding.groups or None
    for line in mix_table(finding.scenario, finding.pages, groups):
        out.say(f"    {line}")
    if path:
        out.say(f"  case      {printable(path)}")
        command = f"kvfuzz replay {shlex.quote(path)} --target {shlex.quote(finding.target)}"
        out.say(f"  replay    {printable(command)}")
    if finding.reproduction:
        out.say("  as a pytest file, which fails on that vLLM:")
        out.say()
        out.say(finding.reproduction)
    else:
        out.say()
