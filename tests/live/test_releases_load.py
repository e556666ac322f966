"""Every release that has the surface: it loads, packs the seeds, and sizes pages as kvfuzz does.

One process holds one planner, so each release is looked at in a process of
its own (this file, run as a module), which says what it saw as JSON.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packaging.version import Version

from kvfuzz.pages import DEFAULTS, Dialect, page_size_bytes
from kvfuzz.specs import (
    DTYPE_BYTES,
    KINDS,
    QUANT_MODES,
    LayerSpec,
    MLAAttentionSpec,
    Scenario,
    SlidingWindowMLASpec,
)
from kvfuzz.targets.base import Target
from kvfuzz.targets.load import load, prepare
from tests.live.releases import RELEASES

#: What is asked of surfaces that read nothing of it.
ASKED = Scenario(())

pytestmark = [pytest.mark.live, pytest.mark.parametrize("version", RELEASES)]

ROOT = Path(__file__).parents[2]
RANDOM_SPECS = 3_000

#: Field -> values other than the base spec's. A refused spec is compared too.
VALUES: dict[str, tuple[Any, ...]] = {
    "block_size": (1, 64, 256),
    "num_kv_heads": (2, 7),
    "head_size": (1, 64, 1024),
    "dtype": tuple(name for name in DTYPE_BYTES if name != "bfloat16"),
    "head_size_v": (0, 1, 128),
    "kv_quant_mode": QUANT_MODES[1:],
    "page_size_padded": (1, 18_432, 20_000, 1 << 20),
    "indexes_kv_by_block_stride": (True,),
    "num_head_slots": (1, 3),
    "state_content_bytes": (1, 656),
    "cache_dtype_str": ("auto", "fp8", "fp8_ds_mla"),
    "alignment": (1, 576, 1000),
    "compress_ratio": (4, 128),
    "model_version": ("deepseek_v4",),
    "sliding_window": (1, 128),
    "attention_chunk_size": (64,),
    "non_causal": (True,),
    "non_causal_multi_token_decode": (True,),
    "extra_retained_tokens": (1, 100),
}


def base_spec(kind: str, **fields: Any) -> LayerSpec:
    plain = {"block_size": 16, "num_kv_heads": 1, "head_size": 576, "dtype": "bfloat16"}
    if kind == "sliding_window_mla":
        plain["sliding_window"] = 4096
    return KINDS[kind](**(plain | fields))


def specs(kind: str, dialect: Dialect) -> Iterator[LayerSpec]:
    """Each field at each value alone, in pairs of fields, and at random."""
    names = [name for name in DEFAULTS[kind] if name in dialect.fields[kind]]
    single = [(name, value) for name in names for value in VALUES[name]]
    yield base_spec(kind)
    for name, value in single:
        yield base_spec(kind, **{name: value})
    for (one, a), (other, b) in itertools.combinations(single, 2):
        if one != other:
            yield base_spec(kind, **{one: a, other: b})
    rng = random.Random(kind)
    for _ in range(RANDOM_SPECS):
        chosen = rng.sample(names, rng.randint(3, len(names)))
        yield base_spec(kind, **{name: rng.choice(VALUES[name]) for name in chosen})


def compare_pages(target: Target) -> dict[str, Any]:
    """Count specs by what both sides say; keep the first few that they disagree on."""
    counts = dict.fromkeys(("equal", "refused", "not-expressible"), 0)
    used: set[str] = set()
    wrong = []
    for kind in KINDS:
        for spec in specs(kind, target.dialect):
            if target.dialect.lacks(spec) is not None:
                counts["not-expressible"] += 1
                continue
            try:
                real = target.translate(spec).page_size_bytes
            except AssertionError:
                real = None
            try:
                ours = page_size_bytes(spec, target.dialect.rules)
            except ValueError:
                ours = None
            if real != ours:
                wrong.append(f"{real} is not {ours} for {spec!r}")
            counts["refused" if real is None else "equal"] += 1
            base = base_spec(kind)
            used |= {
                f"{kind}.{name}"
                for name in DEFAULTS[kind]
                if getattr(spec, name) != getattr(base, name)
            }
    return {"counts": counts, "wrong": wrong[:5], "wrong_count": len(wrong), "used": sorted(used)}


def seed(target: Target, specs: dict[str, LayerSpec]) -> Any:
    """The plan for a mix as lists of layers and pages; None if the planner takes none of it."""
    natives = {name: target.translate(spec) for name, spec in specs.items()}
    before = [target.state(native) for native in natives.values()]
    plan = target.normalise("pack", target.call("pack", natives, ASKED), natives, {})
    assert [target.state(native) for native in natives.values()] == before
    return None if plan.groups is None else msgspec.to_builtins(plan.groups)


def seeds(target: Target) -> dict[str, Any]:
    """What the target does with the three tests of vLLM pull request 48256."""
    plain: Any = {"block_size": 16, "num_kv_heads": 1, "dtype": "float32"}
    small = MLAAttentionSpec(head_size=576, **plain)
    large = SlidingWindowMLASpec(head_size=1024, sliding_window=128, **plain)
    same = SlidingWindowMLASpec(head_size=576, sliding_window=128, **plain)
    return {
        "no window": seed(target, {"a": small, "b": MLAAttentionSpec(head_size=64, **plain)}),
        "one page size": seed(target, {"a": small, "b": same}),
        "two page sizes": seed(target, {"a": small, "b": small, "c": large}),
    }


@functools.cache
def seen(version: str) -> dict[str, Any]:
    """What a process of its own saw of a release."""
    uri = f"vllm=={version}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.live.test_releases_load", uri],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_loads(version: str):
    report = seen(version)
    assert report["version"] == version
    assert report["surfaces"] == ["pack", "groups", "config", "merge", "page"]
    assert report["torch_only"] == []


def test_no_window_is_none_until_0_28(version: str):
    plan = seen(version)["seeds"]["no window"]
    if Version(version) < Version("0.29.0"):
        assert plan is None
    else:  # packs whatever has several pages
        assert plan == [{"layers": ["a", "b"], "pages": [36_864, 4096]}]


def test_one_page_size_is_none_since_0_26(version: str):
    plan = seen(version)["seeds"]["one page size"]
    if Version(version) >= Version("0.26.0"):
        assert plan is None
    else:
        page = 16 * 576 * 4
        assert plan == [
            {"layers": ["a"], "pages": [page]},
            {"layers": ["b"], "pages": [page]},
        ]


def test_two_page_sizes_are_two_groups(version: str):
    assert seen(version)["seeds"]["two page sizes"] == [
        {"layers": ["a", "b"], "pages": [36_864, 36_864]},
        {"layers": ["c"], "pages": [65_536]},
    ]


def test_page_sizes_are_those_of_the_real_classes(version: str):
    report = seen(version)
    assert report["pages"]["wrong"] == []
    assert report["pages"]["wrong_count"] == 0
    counts = report["pages"]["counts"]
    assert counts["equal"] > 3_000
    assert counts["refused"] > 100
    # Every field that the release has was used.
    assert set(report["pages"]["used"]) == set(report["fields"])


def main(uri: str) -> None:
    """Look at one release, and print what was seen."""
    target = load(prepare(uri))
    report = {
        "version": target.version,
        "surfaces": target.surfaces,
        "seeds": seeds(target),
        "pages": compare_pages(target),
        "fields": sorted(
            f"{kind}.{name}"
            for kind, names in target.dialect.fields.items()
            for name in names & set(DEFAULTS[kind])
        ),
        # What the whole of vLLM would have brought along.
        "torch_only": sorted({"transformers", "ray", "triton"} & set(sys.modules)),
        "rules": msgspec.to_builtins(target.dialect.rules),
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
