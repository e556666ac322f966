"""Findings: violations with one fingerprint, and the minimal scenario of each."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Any, Literal

import msgspec

from kvfuzz.invariants import Violation, get_invariant
from kvfuzz.outcomes import Group
from kvfuzz.specs import Scenario, scenario_to_json

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_LISTED = re.compile(r"(<name>|<layer>|#)(?:, \1)+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@lru_cache(maxsize=1024)
def mask(message: str, layers: tuple[str, ...]) -> str:
    """The message with layer names, quoted text and numbers replaced, so that like bugs agree."""
    for name in sorted(layers, key=len, reverse=True):
        message = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "<layer>", message)
    masked = _NUMBER.sub("#", _QUOTED.sub("<name>", message))
    # A list of names or numbers is one, however long it is.
    return _LISTED.sub(r"\1", masked)


def fingerprint(surface: str, violation: Violation) -> str:
    """sha256, in hex, over what makes two violations one bug.

    That is the surface, the invariant, the symptom and, for a crash, the
    exception's type, the function that raised it and its masked message: no
    line numbers, no paths, nothing that differs between processes.
    """
    if violation.place is None:
        return _digest(surface, violation.invariant, violation.symptom)
    exception, function, message = violation.place
    masked = mask(message, violation.layers)
    return _digest(surface, violation.invariant, violation.symptom, exception, function, masked)


# A search meets the same few violations over and over.
@lru_cache(maxsize=1024)
def _digest(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def finding_id(invariant: str, digest: str) -> str:
    """The name of a finding in files, reports and the ledger: `partition-1f3a9c02`."""
    return f"{invariant}-{digest[:8]}"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One bug of one surface of one target, with the smallest scenario that shows it.

    Attributes:
        id: Invariant and the first 8 hex digits of the fingerprint.
        invariant: Id of the invariant that is broken.
        fingerprint: See `fingerprint`.
        target: URI of the target.
        version: Its version.
        surface: The surface that was asked.
        config: The engine's config that was planned by: "real" if an engine made
            it, "stand-in", or "" if the surface reads none.
        scenario: The minimal scenario.
        symptom: Which way the invariant was broken.
        claim: The invariant's claim.
        got: What the planner did.
        expected: What it should have done.
        layers: Layers concerned.
        groups: Groups that were made.
        pages: Page size in bytes of each layer, in the mix's order.
        message: All of that as text.
        shrunk: Whether the scenario is minimal, as far as shrinking got.
        status: `known` if the ledger expects it of this target, else `new`.
        ledger: Id of the ledger entry, or None.
        reproduction: A pytest file that shows it with vLLM alone, if the
            target is vLLM's and the file was seen to fail there.
    """

    id: str
    invariant: str
    fingerprint: str
    target: str
    version: str
    surface: str
    scenario: Scenario
    symptom: str
    claim: str
    got: str
    expected: str
    layers: tuple[str, ...]
    groups: tuple[Group, ...]
    pages: tuple[int, ...]
    message: str
    shrunk: bool = False
    config: str = ""
    status: Literal["new", "known"] = "new"
    ledger: str | None = None
    reproduction: str | None = None


def make_finding(
    violation: Violation,
    *,
    scenario: Scenario,
    pages: tuple[int, ...],
    surface: str,
    target: str,
    version: str,
    config: str = "",
    shrunk: bool,
) -> Finding:
    """The finding that `violation` amounts to."""
    digest = fingerprint(surface, violation)
    return Finding(
        id=finding_id(violation.invariant, digest),
        invariant=violation.invariant,
        fingerprint=digest,
        target=target,
        version=version,
        surface=surface,
        scenario=scenario,
        symptom=violation.symptom,
        claim=get_invariant(violation.invariant).claim,
        got=violation.got,
        expected=violation.expected,
        layers=violation.layers,
        groups=tuple(Group(group.layers, group.pages) for group in violation.groups),
        pages=pages,
        message=str(violation),
        shrunk=shrunk,
        config=config,
    )


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """The finding as JSON-able data, its scenario in the form of case files."""
    data: dict[str, Any] = msgspec.to_builtins(
        msgspec.structs.replace(finding, scenario=Scenario(mix=()))
    )
    data["scenario"] = scenario_to_json(finding.scenario)
    return data
