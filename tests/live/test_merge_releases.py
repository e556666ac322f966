"""Every release: specs of all its classes merge, and show nothing that the ledger lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.helpers import kvfuzz
from tests.live.releases import RELEASES
from tests.live.searches import searched

#: Kinds that every release has.
KINDS = {
    "full_attention",
    "mla_attention",
    "chunked_local_attention",
    "sliding_window",
    "sliding_window_mla",
    "mamba",
    "encoder_only_attention",
    "cross_attention",
    "sink_full_attention",
}


@pytest.mark.live
@pytest.mark.parametrize("version", RELEASES)
def test_specs_of_every_class_merge(version: str, tmp_path: Path):
    report = searched(version, "merge", tmp_path, examples=5_000, seed=1)
    known = {finding["id"] for finding in report["findings"]}
    # Seen in every release: what the windows of MLA lose.
    assert {"nothing-lost-3cbaf2d6", "nothing-lost-60844e86", "nothing-lost-33fde4ac"} <= known
    assert all(len(finding["scenario"]["mix"]) == 1 for finding in report["findings"])
    (target,) = report["targets"]
    (surface,) = target["surfaces"]
    outcomes = surface["outcomes"]
    assert outcomes["plan"] > 4_750
    assert outcomes["not-expressible"] < 100
    # An enumeration of kernels, which stands in another module.
    assert surface["never_set"] in ([], ["mamba.mamba_type"])


@pytest.mark.live
@pytest.mark.parametrize("version", RELEASES)
def test_every_class_is_found(version: str, tmp_path: Path):
    # A class that is there is one that a spec of no field but the required ones is told.
    plain = {"block_size": 16, "num_kv_heads": 1, "head_size": 64, "dtype": "float32"}
    more = {
        "chunked_local_attention": {"attention_chunk_size": 8192},
        "sliding_window": {"sliding_window": 128},
        "sliding_window_mla": {"sliding_window": 128},
    }
    names = []
    for kind in sorted(KINDS):
        fields = {**plain, **more.get(kind, {})}
        if kind == "mamba":
            fields = {"block_size": 16, "shapes": [[16, 16]], "dtypes": ["float32"]}
        layers = [{"name": f"layers.{i}", "kind": kind, **fields} for i in range(2)]
        case = {"format": 1, "surface": "merge", "scenario": {"mix": layers}}
        (tmp_path / f"{kind}.json").write_text(json.dumps(case))
        names.append(f"{kind}.json")
    result = kvfuzz("replay", *names, "--target", f"vllm=={version}", cwd=tmp_path)
    assert result.code == 0, result.out
    assert result.out.count("  plan     holds") == len(KINDS)
