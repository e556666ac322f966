"""Fetching releases from an index in a folder: what is sound is cached, nothing else ever is."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from kvfuzz.errors import TargetError
from kvfuzz.targets import archive, index
from kvfuzz.targets.load import Prepared, prepare
from kvfuzz.targets.releases import available_releases, cached_releases, ensure_release

SOURCES: Final = {
    "vllm/__init__.py": b"",
    "vllm/v1/kv_cache_interface.py": b"PAGES = 1\n",
    "vllm/v1/core/kv_cache_utils.py": b"def pack(): ...\n",
}


def sdist(members: dict[str, bytes] | None = None, *extra: tarfile.TarInfo) -> bytes:
    """A .tar.gz with files below one folder, and further members as they are."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in (SOURCES if members is None else members).items():
            member = tarfile.TarInfo(name if name.startswith("/") else f"vllm-1/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in extra:
            tar.addfile(member, io.BytesIO(b"\0" * member.size))
    return buffer.getvalue()


class Repository:
    """A simple index in a folder, of sdists of vllm."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "simple" / "vllm"
        self._links: dict[str, str] = {}
        self.url = (folder / "simple").as_uri()

    def add(self, version: str, content: bytes, digest: str | None = None, note: str = "") -> None:
        """Publish an sdist, with the digest that it has unless told otherwise."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"vllm-{version}.tar.gz"
        (self._folder / name).write_bytes(content)
        if digest is None:
            digest = f"#sha256={hashlib.sha256(content).hexdigest()}"
        self._links[name] = f'<a href="{name}{digest}" {note}>{name}</a>'
        page = "<!DOCTYPE html><html><body>" + "\n".join(self._links.values())
        (self._folder / "index.html").write_text(page)

    def vanish(self) -> None:
        """Be gone, as without network."""
        self._folder.parent.rename(self._folder.parent.with_name("gone"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVFUZZ_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def repository(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    made = Repository(tmp_path)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return made


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Point the index at a port where nobody listens."""

    def cut() -> None:
        monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")

    return cut


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.glob(".*") if not path.name.endswith(".lock")]


def test_release_is_fetched_once(repository: Repository, cache: Path, tmp_path: Path):
    repository.add("1.0", sdist({**SOURCES, "vllm/kernel.cu": b"x", "setup.py": b"x"}))
    seen: list[tuple[int, int | None]] = []
    folder = ensure_release("1.0", progress=lambda done, total: seen.append((done, total)))
    assert folder == cache / "vllm-1.0"
    assert set(files_of(folder)) == {*SOURCES, "manifest.json"}
    assert (folder / "vllm/v1/kv_cache_interface.py").read_bytes() == b"PAGES = 1\n"
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] == (tmp_path / "simple/vllm/vllm-1.0.tar.gz").stat().st_size
    assert leftovers(cache) == []
    repository.vanish()
    assert ensure_release("1.0") == folder
    assert prepare("vllm==1.0") == Prepared("vllm==1.0", str(folder))
    assert cached_releases() == ["1.0"]


def test_versions_are_sorted_as_versions(repository: Repository):
    for version in ("0.10.0", "0.9.0", "0.11.0rc1"):
        repository.add(version, sdist())
    repository.add("0.8.0", sdist(), note='data-yanked="broken"')
    assert available_releases() == ["0.9.0", "0.10.0"]
    for version in ("0.10.0", "0.9.0", "0.11.0rc1", "0.8.0"):
        ensure_release(version)
    assert cached_releases() == ["0.8.0", "0.9.0", "0.10.0", "0.11.0rc1"]


def test_the_latest_release_goes_by_its_number(repository: Repository, cache: Path):
    for version in ("0.9.0", "0.10.0", "0.11.0rc1"):
        repository.add(version, sdist())
    assert prepare("vllm==latest") == Prepared("vllm==0.10.0", str(cache / "vllm-0.10.0"))


def test_unknown_release_names_the_nearest(repository: Repository, cache: Path):
    for version in ("0.1.0", "0.2.0", "0.3.0", "0.5.0", "0.6.0", "0.7.0"):
        repository.add(version, sdist())
    with pytest.raises(TargetError) as caught:
        ensure_release("0.4.0")
    assert str(caught.value) == (
        "The package index has no source of vllm==0.4.0; the nearest releases are "
        "0.2.0, 0.3.0, 0.5.0, 0.6.0."
    )
    assert caught.value.exit_code == 3
    assert cached_releases() == leftovers(cache) == []


def test_extra_index_is_asked_too(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    repository.add("1.0", sdist())
    other = Repository(tmp_path / "other")
    other.add("2.0", sdist())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"http://127.0.0.1:9/ {other.url}")
    assert ensure_release("2.0").name == "vllm-2.0"
    with pytest.raises(TargetError, match=r"The package index 127\.0\.0\.1 cannot be used"):
        ensure_release("3.0")


def test_index_without_the_project(repository: Repository):
    with pytest.raises(TargetError, match="has no source of vllm; set PIP_INDEX_URL to one"):
        ensure_release("1.0")


def test_no_network(repository: Repository, offline: Callable[[], None], cache: Path):
    offline()
    with pytest.raises(TargetError) as caught:
        ensure_release("1.0")
    assert str(caught.value) == (
        "The package index 127.0.0.1 cannot be used: there is no connection; check the network, "
        "or set PIP_INDEX_URL to an index that can be reached. Cached releases need none."
    )
    assert leftovers(cache) == []


def test_torn_download_is_not_used(repository: Repository, cache: Path):
    whole = sdist()
    digest = f"#sha256={hashlib.sha256(whole).hexdigest()}"
    repository.add("1.0", whole[:-20], digest)
    with pytest.raises(TargetError, match=r"vllm-1\.0\.tar\.gz does not have the digest"):
        ensure_release("1.0")
    assert cached_releases() == leftovers(cache) == []
    repository.add("1.0", whole)
    assert ensure_release("1.0").is_dir()


@pytest.mark.parametrize("digest", ["", "#md5=00"])
def test_file_without_a_digest_is_not_used(repository: Repository, digest: str):
    repository.add("1.0", sdist(), digest)
    with pytest.raises(TargetError, match="gives no sha256 digest"):
        ensure_release("1.0")


def test_endless_download_is_cut(repository: Repository, monkeypatch: pytest.MonkeyPatch):
    repository.add("1.0", sdist())
    monkeypatch.setattr(index, "MAX_DOWNLOAD_BYTES", 100)
    with pytest.raises(TargetError, match="that is no sdist"):
        ensure_release("1.0")


def _link(name: str, to: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(f"vllm-1/{name}")
    member.type, member.linkname = kind, to
    return member


def test_hostile_names_and_links_stay_in_the_archive(
    repository: Repository, tmp_path: Path, cache: Path
):
    outside = tmp_path / "outside.py"
    names = [
        str(outside),
        f"/vllm-1{outside}",
        "../vllm/x.py",
        "vllm/../../../outside.py",
        "vllm/./x.py",
        "vllm//x.py",
        "vllm/..\\x.py",
        "vllm/.py",
        "vllm/con:x.py",
        "vllm/\n.py",
        "notvllm/x.py",
    ]
    links = [
        _link("vllm/soft.py", "/etc/passwd", tarfile.SYMTYPE),
        _link("vllm/hard.py", "../outside.py", tarfile.LNKTYPE),
        _link("vllm/folder", "/", tarfile.SYMTYPE),
        _link("vllm/pipe.py", "", tarfile.FIFOTYPE),
    ]
    links[2].name = "vllm-1/vllm/v2"
    inside = tarfile.TarInfo("vllm-1/vllm/v2/x.py")
    repository.add("1.0", sdist(SOURCES | dict.fromkeys(names, b"bad"), *links, inside))
    folder = ensure_release("1.0")
    # The last one would go through the link to /; here it is a plain file.
    assert set(files_of(folder)) == {*SOURCES, "vllm/v2/x.py", "manifest.json"}
    assert not (folder / "vllm/v2").is_symlink()
    assert not outside.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"simple", "cache"}
    assert leftovers(cache) == []


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("MAX_MEMBERS", 2, "it has over 2 members"),
        ("MAX_FILE_BYTES", 12, "a source file in it has 16 bytes"),
        ("MAX_UNPACKED_BYTES", 1 << 20, "it unpacks to over 1 MiB"),
    ],
)
def test_archives_out_of_all_proportion(
    repository: Repository,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    message: str,
):
    filler = tarfile.TarInfo("vllm-1/filler.bin")
    filler.size = 2 << 20
    repository.add("1.0", sdist(None, filler))
    monkeypatch.setattr(archive, limit, value)
    with pytest.raises(TargetError) as caught:
        ensure_release("1.0")
    assert str(caught.value) == f"vllm-1.0.tar.gz is no usable archive: {message}."
    assert cached_releases() == leftovers(cache) == []


def test_giant_header_is_not_read(repository: Repository):
    header = tarfile.TarInfo("vllm-1/pax")
    header.type = tarfile.XHDTYPE
    header.size = 64 << 20
    repository.add("1.0", gzip.compress(header.tobuf() + b"\0" * (1 << 20)))
    with pytest.raises(TargetError, match="a header in it is far too large"):
        ensure_release("1.0")


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(b"no tar" * 500), sdist()[:-200]],
    ids=["empty", "text", "gzip", "cut short"],
)
def test_what_is_no_archive(repository: Repository, cache: Path, content: bytes):
    repository.add("1.0", content)
    with pytest.raises(TargetError, match=r"vllm-1\.0\.tar\.gz"):
        ensure_release("1.0")
    assert cached_releases() == leftovers(cache) == []


def test_sdist_without_sources(repository: Repository):
    repository.add("1.0", sdist({"README": b""}))
    with pytest.raises(TargetError, match=r"vllm-1\.0\.tar\.gz holds no Python source of vllm"):
        ensure_release("1.0")


def _change(folder: Path) -> None:
    (folder / "vllm/v1/kv_cache_interface.py").write_bytes(b"PAGES = 2\n")


def _truncate(folder: Path) -> None:
    (folder / "vllm/v1/kv_cache_interface.py").write_bytes(b"")


def _remove(folder: Path) -> None:
    (folder / "vllm/v1/core/kv_cache_utils.py").unlink()


def _plant(folder: Path) -> None:
    (folder / "vllm/v1/extra.py").write_bytes(b"")


def _forget(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _tear(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b'{"sdist": "vl')


@pytest.mark.parametrize("damage", [_change, _truncate, _remove, _plant, _forget, _tear])
def test_damaged_release_is_fetched_again(
    repository: Repository,
    offline: Callable[[], None],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
):
    repository.add("1.0", sdist())
    folder = ensure_release("1.0")
    sound = files_of(folder)
    damage(folder)
    offline()
    with pytest.raises(TargetError) as caught:
        ensure_release("1.0")
    assert str(caught.value).startswith(
        f"The cached release in {folder} is damaged and could not be fetched again: "
        "The package index 127.0.0.1 cannot be used"
    )
    monkeypatch.setenv("PIP_INDEX_URL", repository.url)
    assert ensure_release("1.0") == folder
    assert files_of(folder) == sound
    assert leftovers(cache) == []


def test_bytecode_is_no_damage(repository: Repository):
    repository.add("1.0", sdist())
    folder = ensure_release("1.0")
    (folder / "vllm/__pycache__").mkdir()
    (folder / "vllm/__pycache__/x.cpython-311.pyc").write_bytes(b"x")
    repository.vanish()
    assert ensure_release("1.0") == folder


def test_what_a_killed_process_left_is_cleared(repository: Repository, cache: Path):
    repository.add("1.0", sdist())
    torn = cache / ".vllm-1.0.part-abc" / "vllm-1.0" / "vllm"
    torn.mkdir(parents=True)
    ensure_release("1.0")
    assert leftovers(cache) == []


def test_cache_that_cannot_be_written(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    repository.add("1.0", sdist())
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVFUZZ_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(TargetError, match=r"cannot be written \(Not a directory\).*KVFUZZ_CACHE"):
        ensure_release("1.0")


def test_two_processes_at_once(repository: Repository, cache: Path):
    repository.add("1.0", sdist())
    code = (
        "from kvfuzz.targets.releases import ensure_release; seen = []; "
        "folder = ensure_release('1.0', progress=lambda done, total: seen.append(done)); "
        "print(folder, bool(seen))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = sorted(process.communicate()[0] for process in running)
    folder = cache / "vllm-1.0"
    # One of them fetched; the others waited, or came later.
    assert said == [f"{folder} False\n", f"{folder} False\n", f"{folder} True\n"]
    assert set(files_of(folder)) == {*SOURCES, "manifest.json"}
    assert leftovers(cache) == []
