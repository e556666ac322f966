"""Who may import whom: CONTRIBUTING's table, enforced over every import in the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_ROW = re.compile(r"^\| `([^`]+)` \|([^|]*)\|([^|]*)\|", re.MULTILINE)
#: Packages outside the standard library whose use the table rations.
RATIONED = {"torch", "hypothesis", "typer", "rich", "pytest", "pypi_simple", "jinja2"}


def _table() -> dict[str, tuple[set[str], set[str]]]:
    """Part -> (parts, rationed packages) that it may import."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Who may import whom")[1]
    return {
        part: (set(re.findall(r"`([^`]+)`", mine)), set(re.findall(r"`([^`]+)`", others)))
        for part, mine, others in _ROW.findall(section.split("\n## ")[0])
    }


def _modules() -> dict[str, Path]:
    modules = {}
    for base, prefix in ((ROOT / "kvfuzz", "kvfuzz"), (ROOT / "strategies", "kvfuzz.strategies")):
        for path in base.rglob("*.py"):
            parts = path.relative_to(base).with_suffix("").parts
            modules[".".join((prefix, *(p for p in parts if p != "__init__")))] = path
    return modules


def _imports(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, wherever it does so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            # `from kvfuzz.engine import calls` imports a module too.
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _part(module: str) -> str | None:
    """The row of the table that a module of kvfuzz falls under; None for others."""
    pieces = module.split(".")
    if pieces[0] != "kvfuzz" or len(pieces) == 1 or pieces[1] == "__version__":
        return None
    return pieces[1]


MODULES = _modules()
TABLE = _table()


def test_the_table_has_a_row_for_every_part():
    assert set(TABLE) == {_part(module) for module in MODULES if _part(module)}


@pytest.mark.parametrize("module", sorted(m for m in MODULES if _part(m)))
def test_imports_are_allowed(module: str):
    part = _part(module)
    assert part is not None
    parts, packages = TABLE[part]
    for name in _imports(MODULES[module]):
        other = _part(name)
        if other is not None:
            assert other == part or other in parts, f"{module} imports {name}"
        top = name.split(".")[0]
        assert top not in RATIONED or top in packages, f"{module} imports {name}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_modules_are_short(module: str):
    assert len(MODULES[module].read_text().splitlines()) <= 400
