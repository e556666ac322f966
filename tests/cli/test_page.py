"""The surface `page` from the command line: found, shrunk, shown, replayed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.helpers import EVERY_REPORT, kvfuzz

FORGETS = "tests.cli.planners:forgets_alignment"


def test_a_page_that_is_not_aligned_from_search_to_replay(tmp_path: Path):
    run = kvfuzz(
        "run", "--target", FORGETS, "--surface", "page", "--examples", "600", "--seed", "1",
        *EVERY_REPORT, cwd=tmp_path,
    )  # fmt: skip
    assert run.code == 1
    assert "got       a page of 8192 bytes" in run.out
    assert "expected  a multiple of 576 bytes" in run.out
    assert "with alignment=576" in run.out
    report = json.loads((tmp_path / "o.json").read_text())
    (finding,) = report["findings"]
    assert (finding["invariant"], finding["surface"]) == ("page-size-arithmetic", "page")
    assert finding["symptom"] == "full_attention page unaligned"
    plain = {"block_size": 16, "num_kv_heads": 1, "head_size": 64, "dtype": "float32"}
    assert finding["scenario"]["mix"] == [
        {"name": "layers.0", "kind": "full_attention", "alignment": 576, **plain}
    ]
    (surface,) = report["targets"][0]["surfaces"]
    assert surface["mixes"] == surface["outcomes"]["plan"] == 600
    for name in ("o.html", "o.md", "o.xml"):
        assert finding["id"] in (tmp_path / name).read_text()
    path = f"reports/cases/{finding['id']}.json"
    shown = kvfuzz("show", path, cwd=tmp_path)
    assert shown.code == 0
    assert "1 layer, surface page\n" in shown.out
    assert "with alignment=576" in shown.out
    again = kvfuzz("replay", path, "--target", FORGETS, cwd=tmp_path)
    assert again.code == 1
    assert "violates" in again.out


def test_a_page_that_cannot_be_told_is_a_crash_and_not_inexpressible(tmp_path: Path):
    layer = {"name": "a", "kind": "full_attention", "block_size": 16, "num_kv_heads": 1}
    layer |= {"head_size": 64, "dtype": "float32", "sliding_window": 128}
    case = {"format": 1, "surface": "page", "scenario": {"mix": [layer]}}
    (tmp_path / "c.json").write_text(json.dumps(case))
    target = "tests.cli.planners:asserts_on_a_window"
    crash = kvfuzz("replay", "c.json", "--target", target, cwd=tmp_path)
    assert crash.code == 1
    assert "  crash    violates  -\n" in crash.out
    none = kvfuzz("replay", "c.json", "--target", "reference", cwd=tmp_path)
    assert none.code == 3
    assert ": reference has no surface page\n" in none.out
