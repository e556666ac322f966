"""The ledger's witnesses for the packer, replayed on the target: what was fixed stays fixed."""

from __future__ import annotations

import pytest

from kvfuzz.engine.session import Session
from kvfuzz.findings import fingerprint
from kvfuzz.ledger import KnownFinding, ledger

KNOWN = [known for known in ledger() if known.entry.surface == "pack"]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.entry.id)
def test_witness_does_what_the_ledger_says(known: KnownFinding, kvfuzz_session: Session):
    found = {fingerprint("pack", v) for v in kvfuzz_session.judge(known.witness)}
    expected = known.observed(kvfuzz_session.target.version)
    if kvfuzz_session.target.uri == "reference":
        assert found == set()
    elif expected is None:
        pytest.skip(f"the ledger has no observation of {kvfuzz_session.target.version}")
    else:
        assert (known.entry.fingerprint in found) == (expected == "violates")
