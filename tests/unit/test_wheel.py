"""What is built: the wheel holds all of kvfuzz, works alone, and the sdist makes the same one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: All that a build reads: building in the checkout itself would leave files there.
_SOURCES = ("kvfuzz", "strategies", "pyproject.toml", "README.md", "LICENSE")


def _missing() -> str:
    """Why nothing can be built here without network, or ""."""
    for name in ("build", "setuptools"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    version = importlib.metadata.version("setuptools")
    return "" if int(version.split(".")[0]) >= 77 else f"setuptools {version} is too old"


pytestmark = pytest.mark.skipif(bool(_missing()), reason=f"cannot build offline: {_missing()}")


def _python(*words: str, cwd: Path, path: Path | None = None) -> str:
    """What Python prints with these words; `path` alone is added to its modules."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _build(what: str, source: Path, out: Path) -> Path:
    _python("-m", "build", "--no-isolation", what, "--outdir", str(out), str(source), cwd=out)
    (built,) = out.glob("*.whl" if what == "--wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("--wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("--sdist", source, tmp_path_factory.mktemp("sdist"))


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def _expected() -> set[str]:
    """The files of the packages, as installed: strategies/ moves."""
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "kvfuzz").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    return package | {
        f"kvfuzz/strategies/{path.name}" for path in (ROOT / "strategies").glob("*.py")
    }


def test_the_wheel_holds_all_of_the_package(wheel: Path):
    names = _names(wheel)
    assert {name for name in names if name.startswith("kvfuzz/")} == _expected()
    assert "kvfuzz/py.typed" in names
    assert "kvfuzz/strategies/__init__.py" in names
    assert any(name.startswith("kvfuzz/ledger/") and name.endswith(".json") for name in names)
    # Nothing else: no tests, and no top-level `strategies`.
    others = {name.split("/")[0] for name in names} - {"kvfuzz"}
    assert [name.endswith(".dist-info") for name in others] == [True]


def test_the_wheel_has_its_licence_and_entry_points(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {n.split("/")[0] for n in archive.namelist() if ".dist-info/" in n}
        licence = archive.read(f"{info}/licenses/LICENSE").decode()
        points = ConfigParser()
        points.read_string(archive.read(f"{info}/entry_points.txt").decode())
        metadata = archive.read(f"{info}/METADATA").decode()
    assert licence == (ROOT / "LICENSE").read_text()
    assert dict(points["console_scripts"]) == {"kvfuzz": "kvfuzz.cli:main"}
    assert dict(points["pytest11"]) == {"kvfuzz": "kvfuzz.pytest_plugin"}
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata


def test_the_wheel_works_where_it_is_installed(wheel: Path, tmp_path: Path):
    site = tmp_path / "site"
    neutral = tmp_path / "neutral"
    neutral.mkdir()
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target")
    _python(*pip, str(site), str(wheel), cwd=neutral)
    # The dependencies are those of this environment; kvfuzz is the wheel's.
    shown = "import kvfuzz.strategies as s, kvfuzz as k; print(k.__file__); print(s.__file__)"
    files = _python("-c", shown, cwd=neutral, path=site).splitlines()
    assert files == [
        str(site / "kvfuzz" / "__init__.py"),
        str(site / "kvfuzz" / "strategies" / "__init__.py"),
    ]
    listed = _python("-m", "kvfuzz.cli", "list", "invariants", cwd=neutral, path=site)
    assert "uniform-is-none" in listed
    run = ("run", "--target", "reference", "--examples", "50", "--seed", "1", "--jobs", "1")
    said = _python("-m", "kvfuzz.cli", *run, cwd=neutral, path=site)
    assert said.endswith("0 new findings, 0 known. Seed 1.\n")


def test_the_sdist_makes_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    out = tmp_path / "out"
    out.mkdir()
    again = _build("--wheel", unpacked, out)
    assert again.name == wheel.name
    assert _names(again) == _names(wheel)
