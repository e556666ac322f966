"""Unpacking the Python sources of a package from an sdist that nobody vouches for."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from pathlib import Path
from typing import Final

from kvfuzz.errors import TargetError

# Limits: several times what any vLLM sdist has needed (130 MiB and 10,000
# members unpacked, 0.4 MiB the largest source file, 41 MiB of sources).
MAX_UNPACKED_BYTES: Final = 1 << 30
MAX_MEMBERS: Final = 100_000
MAX_FILE_BYTES: Final = 8 << 20
# A tar header can ask for its whole extension at once, in memory.
_MAX_READ_BYTES: Final = 16 << 20


class _Bounded:
    """A gzip stream that ends with an error where a bomb would go on."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file

    def _check(self, position: int) -> None:
        if position > MAX_UNPACKED_BYTES:
            raise tarfile.ReadError(f"it unpacks to over {MAX_UNPACKED_BYTES >> 20} MiB")

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, which must be few."""
        if not 0 <= size <= _MAX_READ_BYTES:
            raise tarfile.ReadError("a header in it is far too large")
        self._check(self._file.tell() + size)
        return self._file.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        """Go to an absolute position."""
        assert whence == 0
        self._check(position)
        return self._file.seek(position)

    def tell(self) -> int:
        """The position in the unpacked stream."""
        return self._file.tell()


def _module_path(name: str, package: str) -> Path | None:
    """Where a member goes: `package/.../module.py` below the sdist's folder, else None.

    Every part must be a Python identifier, so no name can lead elsewhere:
    absolute names, "..", separators of other systems and the like are not
    modules and stay in the archive.
    """
    parts = name.split("/")[1:]
    if len(parts) < 2 or parts[0] != package or not parts[-1].endswith(".py"):
        return None
    if not all(part.isidentifier() for part in (*parts[:-1], parts[-1].removesuffix(".py"))):
        return None
    return Path(*parts)


def unpack_sources(sdist: Path, package: str, folder: Path) -> int:
    """Write the .py files of `package` from a .tar.gz into `folder`; how many there were.

    Only regular files are written, and only what a module may be called;
    links, modes and owners in the archive have no effect.

    Raises:
        TargetError: The archive is damaged, or larger than anything sensible.
        OSError: The folder cannot be written.
    """
    count = 0
    try:
        with gzip.open(sdist) as stream:
            archive = tarfile.open(fileobj=_Bounded(stream), mode="r:")  # type: ignore[call-overload]  # noqa: SIM115
            for number, member in enumerate(archive):
                if number >= MAX_MEMBERS:
                    raise tarfile.ReadError(f"it has over {MAX_MEMBERS} members")
                path = _module_path(member.name, package)
                if path is None or not member.isreg() or member.sparse is not None:
                    continue
                if member.size > MAX_FILE_BYTES:
                    raise tarfile.ReadError(f"a source file in it has {member.size} bytes")
                source = archive.extractfile(member)
                assert source is not None
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read())
                count += 1
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise TargetError(f"{sdist.name} is no usable archive: {error}.") from None
    return count
