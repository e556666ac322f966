"""Releases of vLLM by name: fetched from the package index once, kept as Python sources.

A cached release is a folder of the user cache with `vllm/` and a manifest in
it. It comes there in one rename, after the sdist's digest has been checked,
so that half a release is never seen; it is read whole and compared with its
manifest each time, so that a damaged one is never used.
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import platformdirs
from packaging.version import InvalidVersion, Version

from kvfuzz.errors import TargetError

if TYPE_CHECKING:
    from kvfuzz.targets.index import Progress

#: Environment variable that names the cache's folder.
CACHE_VARIABLE: Final = "KVFUZZ_CACHE_DIR"

_PACKAGE: Final = "vllm"
_MANIFEST: Final = "manifest.json"
_NEAREST: Final = 2


class _Manifest(msgspec.Struct, frozen=True):
    """What a cached release holds.

    Attributes:
        sdist: Name of the file that it was unpacked from.
        sdist_sha256: Its digest, as the index gave it.
        files: Source files.
        sha256: Digest of their names and contents.
    """

    sdist: str
    sdist_sha256: str
    files: int
    sha256: str


def cache_folder() -> Path:
    """Where releases are kept."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path(platformdirs.user_cache_dir("kvfuzz"))


def _digest(folder: Path) -> tuple[int, str]:
    """Number of source files below `folder`, and a digest of their names and contents."""
    files = sorted(folder.rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return len(files), digest.hexdigest()


def _intact(folder: Path) -> bool:
    """Whether a cached release is what its manifest says."""
    try:
        manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=_Manifest)
        return _digest(folder / _PACKAGE) == (manifest.files, manifest.sha256)
    except (OSError, ValueError):  # missing, unreadable, or no manifest
        return False


def _release_folder(version: Version) -> Path:
    return cache_folder() / f"{_PACKAGE}-{version}"


def cached_releases() -> list[str]:
    """Versions of the releases in the cache, oldest first. Whether they are intact is left open."""
    found = []
    for manifest in cache_folder().glob(f"{_PACKAGE}-*/{_MANIFEST}"):
        with contextlib.suppress(InvalidVersion):
            found.append(Version(manifest.parent.name.removeprefix(f"{_PACKAGE}-")))
    return [str(version) for version in sorted(found)]


def available_releases() -> list[str]:
    """Final releases that the package index has an sdist of, oldest first, without yanked ones.

    Raises:
        TargetError: The index cannot be asked.
    """
    from kvfuzz.targets.index import Index

    with Index() as index:
        sdists = index.sdists(_PACKAGE)
    return [
        str(version)
        for version, package in sorted(sdists.items())
        if not version.is_prerelease and not package.is_yanked
    ]


def _unknown(version: Version, sdists: Mapping[Version, Any]) -> TargetError:
    known = sorted(sdists)
    at = bisect.bisect(known, version)
    near = known[max(0, at - _NEAREST) : at + _NEAREST]
    return TargetError(
        f"The package index has no source of vllm=={version}; the nearest releases are "
        f"{', '.join(map(str, near))}."
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the release's lock: of two processes at once, one fetches and one waits.

    The system releases it when a process dies.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(version: Version, folder: Path, progress: Progress | None) -> None:
    """Put a release into the cache; its lock must be held."""
    from kvfuzz.targets.archive import unpack_sources
    from kvfuzz.targets.index import Index

    prefix = f".{folder.name}.part-"
    for stale in folder.parent.glob(f"{prefix}*"):  # of a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    with (
        Index() as index,
        tempfile.TemporaryDirectory(
            dir=folder.parent, prefix=prefix, ignore_cleanup_errors=True
        ) as temporary,
    ):
        sdists = index.sdists(_PACKAGE, version)
        package = sdists.get(version)
        if package is None:
            raise _unknown(version, sdists)
        sdist = Path(temporary) / "sdist.tar.gz"
        index.download(package, sdist, progress)
        fresh = Path(temporary) / folder.name
        try:
            count = unpack_sources(sdist, _PACKAGE, fresh)
        except TargetError as error:
            raise TargetError(str(error).replace(sdist.name, package.filename)) from None
        if count == 0:
            raise TargetError(f"{package.filename} holds no Python source of {_PACKAGE}.")
        files, sha256 = _digest(fresh / _PACKAGE)
        manifest = _Manifest(package.filename, package.digests["sha256"], files, sha256)
        (fresh / _MANIFEST).write_bytes(msgspec.json.encode(manifest))
        # A rename cannot replace a folder that has something in it.
        if folder.exists():
            folder.rename(Path(temporary) / "damaged")
        fresh.rename(folder)


def ensure_release(version: str, *, progress: Progress | None = None) -> Path:
    """The folder with the `vllm/` of a release, fetched if the cache does not have it intact.

    Args:
        version: Its version (PEP 440).
        progress: Called while it is fetched, with bytes done and bytes in all.

    Raises:
        TargetError: The index does not have it or cannot be asked, what it
            sent is unusable, or the cache cannot be written.
    """
    wanted = Version(version)
    folder = _release_folder(wanted)
    if _intact(folder):
        return folder
    try:
        with _locked(folder):
            if not _intact(folder):
                damaged = folder.exists()
                try:
                    _fetch(wanted, folder, progress)
                except TargetError as error:
                    if not damaged:
                        raise
                    raise TargetError(
                        f"The cached release in {folder} is damaged and could not be fetched "
                        f"again: {error}"
                    ) from None
    except OSError as error:
        raise TargetError(
            f"The cache folder {cache_folder()} cannot be written ({error.strerror or error}); "
            f"make room, or name another one in {CACHE_VARIABLE}."
        ) from None
    return folder
