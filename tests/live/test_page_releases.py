"""Every release: specs of all classes tell their pages, and show nothing that the ledger lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from tests.live.releases import RELEASES
from tests.live.searches import searched

NARROW_DTYPES = "round-trip-c44a47a9"
UNSET_VALUE_HEAD = "round-trip-c2a74b01"


@pytest.mark.live
@pytest.mark.parametrize("version", RELEASES)
def test_specs_of_every_class_tell_their_pages(version: str, tmp_path: Path):
    report = searched(version, "page", tmp_path, examples=10_000, seed=7)
    known = {finding["id"] for finding in report["findings"]}
    # Seen in every release: what an aligned spec loses of its padding, and hands on to copies.
    rules = {name.rpartition("-")[0] for name in known}
    assert rules >= {"page-size-arithmetic", "page-size-scales"}
    assert (NARROW_DTYPES in known) is (Version(version) < Version("0.29.0"))
    assert (UNSET_VALUE_HEAD in known) is (Version(version) < Version("0.28.0"))
    (target,) = report["targets"]
    (surface,) = target["surfaces"]
    outcomes = surface["outcomes"]
    assert outcomes["plan"] + outcomes["crash"] == 10_000
    assert outcomes["crash"] < 30
