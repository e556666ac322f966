"""`kvfuzz replay`: what targets do with given cases, against what the ledger says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from packaging.version import InvalidVersion, Version

from kvfuzz.cases import Case
from kvfuzz.commands.fetch import prepare_all
from kvfuzz.commands.names import find_item
from kvfuzz.engine.replay import Verdict, known_item, replay
from kvfuzz.errors import Exit, TargetError, UsageError
from kvfuzz.files import check_writable, printable
from kvfuzz.findings import Finding
from kvfuzz.ledger import KnownFinding, find_expected, ledger, ledger_folder, write_entry
from kvfuzz.outcomes import Crash, NotExpressible, Outcome, Refusal, outcome_name
from kvfuzz.reporting.mix import align
from kvfuzz.reporting.terminal import QuietConsole, console
from kvfuzz.reporting.words import plural
from kvfuzz.targets.uri import Installed, Release, default_target, parse


def replay_command(
    *, names: Sequence[str], targets: Sequence[str], use_ledger: bool, update: bool, out: Path
) -> int:
    """Replay, print a table, and return the exit code.

    Raises:
        KvfuzzError: A case or a target cannot be had at all.
    """
    uris = tuple(dict.fromkeys(targets)) or (default_target(),)
    if update:
        _check_update(uris, use_ledger=use_ledger)
    if names:
        items = [find_item(name, out) for name in dict.fromkeys(names)]
    else:
        items = [known_item(known) for known in ledger()]
    stdout, stderr = console(), console(stderr=True)
    if not items:
        stdout.say("The ledger is empty: there is nothing to replay.")
        return Exit.OK
    prepared, failed = prepare_all(uris, stderr)
    errors = [report.error for report in failed]
    verdicts: list[Verdict] = []
    for target in prepared:
        try:
            for surface, some in groupby(
                sorted(items, key=lambda item: item.case.surface), lambda i: i.case.surface
            ):
                verdicts += replay(target, surface, list(some))
        except TargetError as error:
            errors.append(str(error))
    _print(stdout, verdicts, use_ledger=use_ledger)
    for sentence in errors:
        stderr.say(f"kvfuzz: {printable(sentence)}", style="red")
    if update:
        _update(stdout, [verdict for verdict in verdicts if _recorded_as(verdict)])
    codes = {_code(verdict, use_ledger=use_ledger, recorded=update) for verdict in verdicts}
    if errors:
        codes.add(Exit.HARNESS)
    for code in (Exit.HARNESS, Exit.LEDGER_DRIFT, Exit.NEW_FINDING):
        if code in codes:
            return code
    return Exit.OK


def _check_update(uris: Sequence[str], *, use_ledger: bool) -> None:
    if not use_ledger:
        raise UsageError("--update writes the ledger, and --no-ledger ignores it: give one.")
    for uri in uris:
        if not isinstance(parse(uri), Release | Installed):
            raise UsageError(
                f"--update records releases only, such as vllm==0.28.0, not {printable(uri)}."
            )
    check_writable(ledger_folder())


def _own(case: Case, finding: Finding) -> bool:
    """Whether a finding is the one that the case is about; about any, if it names none."""
    if case.fingerprint:
        return finding.fingerprint == case.fingerprint
    return case.invariant in (None, finding.invariant)


def unexpected(verdict: Verdict, *, use_ledger: bool) -> list[Finding]:
    """Violations other than the case's own that no ledger entry expects of the target."""
    others = []
    for finding in verdict.findings:
        if _own(verdict.item.case, finding):
            continue
        if not use_ledger or not find_expected(
            finding.fingerprint, verdict.target, verdict.version
        ):
            others.append(finding)
    return others


def _code(verdict: Verdict, *, use_ledger: bool, recorded: bool = False) -> Exit:
    """The exit code that one verdict alone would give; drift that was `recorded` is none."""
    others = unexpected(verdict, use_ledger=use_ledger)
    if use_ledger and verdict.known is not None:
        drifted = verdict.drifted and not recorded
        return Exit.LEDGER_DRIFT if drifted or others else Exit.OK
    if isinstance(verdict.outcome, NotExpressible):
        return Exit.HARNESS
    # A crash that nobody expects is no way to hold.
    if verdict.observation == "violates" or (verdict.observation == "error" and others):
        return Exit.NEW_FINDING
    return Exit.OK


def _why(outcome: Outcome) -> str:
    """What the outcome says for itself, or ""."""
    match outcome:
        case NotExpressible(reason):
            return reason
        case Refusal(exception, message) | Crash(_, exception, _, message):
            return f"{exception}: {message}".strip(": ")
        case _:
            return ""


def _print(out: QuietConsole, verdicts: Sequence[Verdict], *, use_ledger: bool) -> None:
    if not verdicts:
        return
    rows = [("case", "target", "outcome", "observed", "ledger")]
    styles: list[str | None] = []
    notes = []
    for verdict in verdicts:
        name = printable(verdict.item.name)
        target = _target(verdict)
        code = _code(verdict, use_ledger=use_ledger)
        says = "-"
        if use_ledger and verdict.known is not None:
            says = verdict.expected or "not recorded"
            says += " (drift)" if verdict.drifted else ""
        rows.append((name, target, outcome_name(verdict.outcome), verdict.observation, says))
        styles.append("red" if code else None)
        why = _why(verdict.outcome)
        if why and verdict.observation != "violates":
            notes.append(f"{name} on {target}: {printable(why)}")
        notes += [
            f"{name} on {target}: violates {finding.id} as well, which the ledger does not expect"
            for finding in unexpected(verdict, use_ledger=use_ledger)
        ]
    lines = align(rows, frozenset())
    out.say(lines[0], style="bold")
    for line, style in zip(lines[1:], styles, strict=True):
        out.say(line, style=style)
    for note in notes:
        out.say(f"note: {note}")


def _target(verdict: Verdict) -> str:
    """The target, with its version unless its URI ends with it."""
    uri = printable(verdict.target)
    if not verdict.version or verdict.target.endswith(verdict.version):
        return uri
    return f"{uri} {printable(verdict.version)}"


def _recorded_as(verdict: Verdict) -> str:
    """The ledger's field that a verdict is recorded in; "" if in none.

    Of an installed release only what needs one: what it does with an engine's config.

    Raises:
        UsageError: What is installed is no release.
    """
    if not isinstance(parse(verdict.target), Installed):
        return "observed"
    if verdict.config != "real":
        return ""
    try:
        version = Version(verdict.version)
    except InvalidVersion:
        version = None
    if version is None or version.is_devrelease or version.local:
        raise UsageError(
            f"--update records releases only, and the installed vLLM is of the version "
            f"{printable(verdict.version)}."
        )
    return "real_config"


def _update(out: QuietConsole, verdicts: Sequence[Verdict]) -> None:
    """Write what was observed into the ledger's files, and say what that changes."""
    entries: dict[str, tuple[KnownFinding, list[Verdict]]] = {}
    for verdict in verdicts:
        known = verdict.known
        if known is not None:
            entries.setdefault(known.entry.id, (known, []))[1].append(verdict)
    changes = 0
    for known, seen in entries.values():
        fields = {
            "observed": dict(known.entry.observed),
            "real_config": dict(known.entry.real_config),
        }
        before = changes
        for verdict in seen:
            if verdict.drifted or verdict.expected is None:
                changes += 1
                was = verdict.expected or "not recorded"
                field = _recorded_as(verdict)
                how = ", real config" if field == "real_config" else ""
                out.say(
                    f"{known.entry.id}: {verdict.version}{how} {verdict.observation}, was {was}"
                )
                fields[field][verdict.version] = verdict.observation
        if changes > before:
            write_entry(known, **fields)
    out.say(f"{plural(changes, 'observation')} changed in the ledger.")
