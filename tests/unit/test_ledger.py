"""The ledger: what it says of versions it has not seen, and that its own files are in order."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvfuzz.engine.session import Session
from kvfuzz.findings import finding_id
from kvfuzz.invariants import get_invariant
from kvfuzz.ledger import (
    Entry,
    KnownFinding,
    Observation,
    find_expected,
    ledger,
    stands_for,
    write_entry,
)
from kvfuzz.reference import group_and_unify_kv_cache_specs
from kvfuzz.targets.base import NeutralTarget
from tests.live.releases import RELEASES

KNOWN = ledger()


def _known(**observed: Observation) -> KnownFinding:
    first = KNOWN[0]
    versions = {key.removeprefix("v").replace("_", "."): value for key, value in observed.items()}
    entry = Entry(**{f: getattr(first.entry, f) for f in Entry.__struct_fields__})
    fields = {f: getattr(entry, f) for f in Entry.__struct_fields__} | {"observed": versions}
    return KnownFinding(Entry(**fields), first.witness, Path("x"))


FIXED = _known(v1_0="violates", v1_1="violates", v1_2="holds", v1_10="holds")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.0", True),
        ("1.0.5", True),  # as 1.0 before it
        ("0.9", True),  # as the oldest, since none is before it
        ("1.2", False),
        ("1.3", False),  # as 1.2
        ("2.0", False),  # a bug that was fixed and is back is news
        ("unknown", False),  # a checkout: as the newest
    ],
)
def test_versions_do_as_the_newest_recorded_one_before_them(version: str, expected: bool):
    assert FIXED.expected_of("vllm@checkout", version) is expected


@pytest.mark.parametrize("target", ["reference", "mine:factory", "vllmish:factory"])
def test_the_ledger_excuses_nobody_but_vllm(target: str):
    assert FIXED.expected_of("vllm==1.0", "1.0") is True
    assert FIXED.expected_of(target, "1.0") is False


@pytest.mark.parametrize(
    ("target", "version", "release"),
    [
        ("vllm==0.33.0", "0.33.0", ""),
        ("vllm", "0.28.0", ""),
        ("vllm==0.33.1", "0.33.1", "0.33.0"),
        ("vllm==0.19.0", "0.19.0", "0.20.0"),
        ("vllm", "0.28.1.dev3", "0.28.0"),
        ("vllm@checkout", "0.28.0", "0.28.0"),  # it may have been changed
        ("vllm@checkout", "unknown", "0.33.0"),
        ("reference", "0.1.0", ""),
    ],
)
def test_whose_record_a_target_is_judged_by(target: str, version: str, release: str):
    assert stands_for(target, version) == release


def test_an_entry_without_observations_expects_itself():
    assert _known().expected_of("vllm", "1.0") is True


def test_ranges_are_derived():
    assert FIXED.range == "1.0-1.1; holds from 1.2"
    assert _known(v1_0="holds", v1_1="violates").range == "1.1"
    assert _known(v1_0="violates", v1_1="holds", v1_2="violates").range == "1.0, 1.2"
    assert _known().range == "no release observed"


def test_an_unknown_fingerprint_is_not_expected():
    assert find_expected("0" * 64, "vllm==0.25.1", "0.25.1") is None


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.entry.id)
class TestEntries:
    def test_names_agree(self, known: KnownFinding):
        entry = known.entry
        assert entry.invariant is not None
        assert entry.id == finding_id(entry.invariant, entry.fingerprint)
        assert get_invariant(entry.invariant).id == entry.invariant

    def test_every_release_is_observed(self, known: KnownFinding):
        assert list(known.entry.observed) == list(RELEASES)

    def test_it_says_why(self, known: KnownFinding):
        assert len(known.entry.explanation.split()) >= 10

    def test_it_was_replayed_with_configs_that_engines_make(self, known: KnownFinding):
        if known.entry.surface not in ("groups", "config"):
            pytest.skip("it reads no config")
        observed = known.entry.observed
        assert {release: observed[release] for release in ("0.28.0", "0.32.0")} == dict(
            known.entry.real_config
        )

    def test_its_reason_is_that_of_the_newest_release(self, known: KnownFinding):
        live = known.entry.observed[RELEASES[-1]] == "violates"
        assert known.entry.reason != ("upstream-fixed" if live else "upstream-open")

    def test_the_reference_keeps_the_rule_on_its_witness(self, known: KnownFinding):
        if known.entry.surface != "pack":
            pytest.skip("the reference is a packer")
        session = Session(NeutralTarget("r", group_and_unify_kv_cache_specs, "0"), "pack")
        assert session.judge(known.witness) == []


def test_fingerprints_are_distinct():
    assert len({known.entry.fingerprint for known in KNOWN}) == len(KNOWN) == 190


def test_further_witnesses_are_read_and_written(tmp_path: Path):
    known = next(known for known in KNOWN if known.also)
    assert known.witness not in known.also
    assert {len(s) > 0 for s in known.also} == {True}
    moved = msgspec.structs.replace(known, path=tmp_path / known.path.name)
    write_entry(moved)
    assert moved.path.read_bytes() == known.path.read_bytes()
