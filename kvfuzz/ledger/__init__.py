"""The ledger: known findings, and what each release did with their witnesses.

One JSON file an entry, in this folder: a case (`kvfuzz.cases`) with a title,
a reason, a reference, and `observed`, filled by replay and never by hand.
Ranges of releases are derived from that, never typed. Search says `new` or
`known`; only the replay of a witness says that something is fixed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec
from packaging.version import InvalidVersion, Version

from kvfuzz.cases import Case, WireScenario, read_case, scenario_from_wire
from kvfuzz.errors import UsageError
from kvfuzz.files import write_atomically
from kvfuzz.specs import Scenario, scenario_to_json

#: What a release can do with a witness.
Observation = Literal["violates", "holds", "refuses", "not-expressible", "error"]

#: Why a known finding is known.
REASONS = {
    "upstream-open": "a bug, not fixed in the newest release that was observed",
    "upstream-fixed": "a bug, fixed in a later release",
    "latent": "a bug that no layer of vLLM's own runs into, only one that sets what these do not",
    "by-design": "upstream means it: its own code relies on it",
    "invariant-too-strong": "the rule asks for more than a correct planner must do",
}
Reason = Literal["upstream-open", "upstream-fixed", "latent", "by-design", "invariant-too-strong"]


class Entry(Case, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ledger entry as it stands in its file.

    Attributes:
        title: The finding in one line.
        reason: A key of REASONS.
        explanation: Why, in a sentence or two, from reading the release's source.
        reference: Where upstream speaks of it, or "".
        also: Further witnesses, for releases on which those before show nothing:
            one rule, broken in one way, may have several roots over the releases.
        observed: Release -> what the witnesses did there, with the fingerprint
            of this entry: that of the first that violates, or else of the first
            that can be told. Its planner was loaded alone.
        real_config: The same of releases that were really installed, with the
            config that their engine makes. `not-expressible`: it makes none such.
    """

    title: str
    reason: Reason
    explanation: str
    reference: str = ""
    also: list[WireScenario] = msgspec.field(default_factory=list)
    observed: dict[str, Observation] = msgspec.field(default_factory=dict)
    real_config: dict[str, Observation] = msgspec.field(default_factory=dict)


class KnownFinding(msgspec.Struct, frozen=True):
    """A ledger entry, its witnesses decoded, and the file that holds it."""

    entry: Entry
    witness: Scenario
    path: Path
    also: tuple[Scenario, ...] = ()

    def observed(self, version: str, *, real_config: bool = False) -> Observation | None:
        """What `version` did with the witness, None if that was not recorded."""
        entry = self.entry
        return (entry.real_config if real_config else entry.observed).get(version)

    def expected_of(self, target: str, version: str) -> bool:
        """Whether a finding of this fingerprint is no news on a target of that version.

        A version that was not recorded is taken to do
        as the newest recorded one before it; the newest of all, if it cannot
        be placed. It is news on a release whose witness holds: then another
        mix has brought the bug back.
        """
        if not speaks_of(target):
            return False
        nearest = _nearest(self.entry.observed, version)
        return not nearest or self.entry.observed[nearest] == "violates"

    @property
    def range(self) -> str:
        """The releases that violate, in words, from `observed`."""
        releases = sorted(self.entry.observed, key=Version)
        bad = [release for release in releases if self.entry.observed[release] == "violates"]
        if not bad:
            return "no release observed"
        spans: list[list[str]] = []
        for release in bad:
            if spans and releases.index(release) == releases.index(spans[-1][-1]) + 1:
                spans[-1].append(release)
            else:
                spans.append([release])
        words = ", ".join(span[0] if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)
        after = releases[releases.index(bad[-1]) + 1 :]
        return f"{words}; {self.entry.observed[after[0]]} from {after[0]}" if after else words


def ledger_folder() -> Path:
    """The folder with the entries: package data, or the checkout's own."""
    return Path(str(resources.files(__name__)))


@cache
def ledger() -> tuple[KnownFinding, ...]:
    """All entries, ordered by id.

    Raises:
        UsageError: A file is damaged, misnamed, or two share an id.
    """
    known = []
    for path in sorted(ledger_folder().glob("*.json")):
        entry, witness = read_case(path, Entry)
        if entry.id != path.stem or not entry.id.endswith(entry.fingerprint[:8]):
            raise UsageError(f"{path.name} must be named after its id, {entry.id}.")
        also = (scenario_from_wire(wire, entry.surface, path.name) for wire in entry.also)
        known.append(KnownFinding(entry, witness, path, tuple(also)))
    return tuple(known)


def _nearest(releases: Iterable[str], version: str) -> str:
    """The newest of some releases up to a version, else the oldest; the newest of all if the
    version cannot be placed, "" of none.
    """
    ordered = sorted(releases, key=Version)
    try:
        wanted = Version(version)
    except InvalidVersion:
        return ordered[-1] if ordered else ""
    return next((r for r in reversed(ordered) if Version(r) <= wanted), next(iter(ordered), ""))


def stands_for(target: str, version: str) -> str:
    """The release whose record a target is judged by that has none itself; else ""."""
    if not speaks_of(target):
        return ""
    recorded = {release for known in ledger() for release in known.entry.observed}
    own = version in recorded and not target.startswith("vllm@")
    return "" if own else _nearest(recorded, version)


def speaks_of(target: str) -> bool:
    """Whether the ledger has a say on a target: what vLLM does excuses nobody else's planner."""
    return target == "vllm" or target.startswith(("vllm==", "vllm@"))


def find_expected(fingerprint: str, target: str, version: str) -> KnownFinding | None:
    """The entry of that fingerprint if it is no news on the target, else None."""
    known = find_known(fingerprint)
    return known if known is not None and known.expected_of(target, version) else None


def find_known(fingerprint: str) -> KnownFinding | None:
    """The entry of that fingerprint, or None."""
    return next((known for known in ledger() if known.entry.fingerprint == fingerprint), None)


def write_entry(known: KnownFinding, **observations: dict[str, Observation]) -> None:
    """Write the entry back with other `observed` or `real_config`, releases in order."""
    entry = known.entry
    stated = msgspec.to_builtins(entry) | observations
    for field in ("observed", "real_config"):
        seen = stated[field]
        stated[field] = {release: seen[release] for release in sorted(seen, key=Version)}
    data: dict[str, Any] = {
        **{field: value for field, value in stated.items() if value not in ("", {}, [])},
        "scenario": scenario_to_json(known.witness),
    }
    if known.also:
        data["also"] = [scenario_to_json(scenario) for scenario in known.also]
    write_atomically(known.path, msgspec.json.format(msgspec.json.encode(data)) + b"\n")
