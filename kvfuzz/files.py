"""Reading and writing files so that neither a hostile nor a full disk surprises anyone."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from kvfuzz.errors import UsageError

#: Far above any case file; a larger one is not read at all.
MAX_BYTES = 4 << 20

T = TypeVar("T")


def printable(text: str) -> str:
    """`text` with everything escaped that could move a terminal's cursor or break a line."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _opened_at_once(path: str, flags: int) -> int:
    """Open without waiting, as for a FIFO, for someone to write."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_bytes(path: Path) -> bytes:
    """The bytes of a case file.

    Raises:
        UsageError: It is missing, no regular file, empty, or over MAX_BYTES.
    """
    shown = printable(str(path))
    try:
        with open(path, "rb", opener=_opened_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{shown} is not a regular file.")
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror}.") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{shown} is over {MAX_BYTES >> 20} MiB: that is no case file.")
    if not data.strip():
        raise UsageError(f"{shown} is empty: a case file holds one JSON object.")
    return data


def decode_json(data: bytes, where: str, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON strictly.

    Args:
        data: The bytes.
        where: What they are of, for the error's message.
        decoder: Says the form.

    Raises:
        UsageError: They are no JSON, or not of that form; the message says where.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: {printable(str(error))}.") from None
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply for a case file.") from None


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file or nothing: readers never see half of it.

    Raises:
        UsageError: The folder is missing, read-only or full.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp keeps others out; a case is meant to be shared.
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise UsageError(
            f"{printable(str(path))} cannot be written: {error.strerror}; "
            "choose another folder or make room."
        ) from None


def check_writable(folder: Path) -> None:
    """Find out before a run whether its folder can take what it may find.

    Raises:
        UsageError: A file of 64 KiB cannot be written there.
    """
    probe = folder / f".probe-{os.getpid()}"
    write_atomically(probe, b"\0" * (64 << 10))
    probe.unlink(missing_ok=True)
