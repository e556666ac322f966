"""The surface `merge` from the command line: found, shrunk, shown, replayed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.helpers import EVERY_REPORT, kvfuzz

FORGETS = "tests.cli.planners:forgets_a_field"


def test_a_lost_field_from_search_to_replay(tmp_path: Path):
    run = kvfuzz(
        "run", "--target", FORGETS, "--surface", "merge", "--examples", "600", "--seed", "1",
        *EVERY_REPORT, cwd=tmp_path,
    )  # fmt: skip
    assert run.code == 1
    assert "got       mode=its default in the planned full_attention spec" in run.out
    assert "full attention     16      -   64  float32" in run.out
    assert "with mode=half" in run.out
    report = json.loads((tmp_path / "o.json").read_text())
    (finding,) = report["findings"]
    assert (finding["invariant"], finding["surface"]) == ("nothing-lost", "merge")
    spec = {"block_size": 16, "dtype": "float32", "head_size": 64, "mode": "half"}
    assert finding["scenario"]["mix"] == [{"name": "layers.0", "kind": "full_attention", **spec}]
    (surface,) = report["targets"][0]["surfaces"]
    assert surface["mixes"] == surface["outcomes"]["plan"] == 600
    for name in ("o.html", "o.md", "o.xml"):
        assert finding["id"] in (tmp_path / name).read_text()
    path = f"reports/cases/{finding['id']}.json"
    shown = kvfuzz("show", path, cwd=tmp_path)
    assert shown.code == 0
    assert "1 layer, surface merge\n" in shown.out
    assert "with mode=half" in shown.out
    again = kvfuzz("replay", path, "--target", FORGETS, cwd=tmp_path)
    assert again.code == 1
    assert "violates" in again.out


def test_what_has_no_such_surface_or_class(tmp_path: Path):
    words = ("--surface", "merge", "--examples", "9")
    run = kvfuzz("run", "--target", "reference", *words, cwd=tmp_path)
    assert run.code == 2
    assert "reference has no surface merge" in run.err + run.out
    layer = {"name": "a", "kind": "tomorrows", "block_size": 16}
    case = {"format": 1, "surface": "merge", "scenario": {"mix": [layer]}}
    (tmp_path / "c.json").write_text(json.dumps(case))
    lacking = kvfuzz("replay", "c.json", "--target", FORGETS, cwd=tmp_path)
    assert lacking.code == 3
    assert "no spec class for the kind tomorrows" in lacking.out
    none = kvfuzz("replay", "c.json", "--target", "reference", cwd=tmp_path)
    assert none.code == 3
    assert ": reference has no surface merge\n" in none.out
