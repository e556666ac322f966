"""Names that people give on the command line, and what they mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from kvfuzz.engine.replay import Item, case_item, known_item
from kvfuzz.errors import UsageError
from kvfuzz.files import printable
from kvfuzz.ledger import ledger
from kvfuzz.surfaces import SURFACES


def near(word: str, words: Iterable[str]) -> str:
    """` Did you mean X?` if a word is near, else ""."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def check_surfaces(surfaces: Sequence[str]) -> None:
    """Raise UsageError if one of them does not exist."""
    for surface in surfaces:
        if surface not in SURFACES:
            raise UsageError(
                f"There is no surface {surface!r}.{near(surface, SURFACES)} "
                "`kvfuzz list surfaces` shows them all."
            )


def _means_file(name: str) -> bool:
    try:
        return name.endswith(".json") or "/" in name or Path(name).exists()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def find_item(name: str, out: Path) -> Item:
    """The case that `name` means: a file, a ledger id, or the id of a case in `out`.

    The beginning of an id will do if no other begins like it.

    Raises:
        UsageError: There is none, or several; or the file is no case.
    """
    if _means_file(name):
        return case_item(Path(name))
    entries = {known.entry.id: known for known in ledger()}
    known_ids = [name] if name in entries else [i for i in entries if i.startswith(name)]
    if len(known_ids) == 1:
        return known_item(entries[known_ids[0]])
    files = {file.stem: file for file in sorted((out / "cases").glob("*.json"))}
    ids = [name] if name in files else [i for i in files if i.startswith(name)]
    if len(ids) == 1 and not known_ids:
        return case_item(files[ids[0]])
    if known_ids or ids:
        choice = ", ".join(dict.fromkeys([*known_ids, *ids]))
        raise UsageError(f"{name!r} begins several ids: {choice}.")
    raise UsageError(
        f"There is no case file {name!r}, and neither the ledger nor {printable(str(out))}/cases "
        f"has that id.{near(name, [*entries, *files])}"
    )
