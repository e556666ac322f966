"""Scenarios that were worth keeping: cases in a folder, in an example database, in the ledger.

A search may begin with them, so that what was found elsewhere, or by an
earlier run, is found again at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kvfuzz.cases import Case, case_text, decode_case, read_case
from kvfuzz.engine.events import Event, FindingMade
from kvfuzz.errors import UsageError
from kvfuzz.files import MAX_BYTES, printable
from kvfuzz.ledger import ledger
from kvfuzz.specs import Scenario

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

#: Surface -> scenarios to begin with.
Corpus = dict[str, tuple[Scenario, ...]]

#: What our entries are kept under, apart from those of pytest runs.
_KEY = b"kvfuzz cases, format 1"
_REDIS = ("redis", "rediss", "unix")


def open_database(where: str) -> ExampleDatabase:
    """Hypothesis's example database: a Redis server's URL, or a folder.

    Raises:
        UsageError: The package redis is missing, or the server cannot be reached.
    """
    # Hypothesis takes its time to be imported, and most runs have no database.
    from hypothesis.database import DirectoryBasedExampleDatabase

    scheme, mark, _ = where.partition("://")
    if not mark:
        return DirectoryBasedExampleDatabase(where)
    if scheme not in _REDIS:
        raise UsageError(
            f"--database {printable(where)!r} is neither a folder nor redis://HOST:PORT."
        )
    try:
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis
        from redis.exceptions import RedisError
    except ImportError:
        raise UsageError(
            "--database redis://... needs the package redis: pip install 'kvfuzz[redis]'."
        ) from None
    try:
        client = Redis.from_url(where, socket_timeout=10, socket_connect_timeout=10)
        client.ping()
    except (RedisError, ValueError, OSError) as error:
        raise UsageError(
            f"The database {_without_password(where)} cannot be used: {_said(error)}; "
            "start the server, or leave out --database."
        ) from None
    return RedisExampleDatabase(client)


def _said(error: Exception) -> str:
    return printable(str(error)).rstrip(".")


def _without_password(where: str) -> str:
    try:
        parts = urlsplit(where)
    except ValueError:  # it is no URL
        return f"{where.partition('://')[0]}://..."
    return printable(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")


def cases_in(folder: Path) -> tuple[list[tuple[str, Scenario]], list[str]]:
    """Surface and scenario of each case file in a folder, and what is wrong with the others."""
    found, wrong = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            case, scenario = read_case(path, Case)
        except UsageError as error:
            wrong.append(str(error))
        else:
            found.append((case.surface, scenario))
    return found, wrong


def cases_of_ledger() -> list[tuple[str, Scenario]]:
    """Surface and witness of each entry of the ledger."""
    return [(known.entry.surface, known.witness) for known in ledger()]


class SharedCases:
    """The cases in an example database, which other runs read and write too.

    Args:
        database: The database.

    Attributes:
        trouble: Why a case could not be saved, or "". It is in its file all the same.
    """

    def __init__(self, database: ExampleDatabase) -> None:
        self._database = database
        self.trouble = ""

    def cases(self) -> list[tuple[str, Scenario]]:
        """Surface and scenario of each; what is not a case is passed over.

        Raises:
            UsageError: They cannot be read.
        """
        try:
            entries = sorted(self._database.fetch(_KEY))
        except Exception as error:  # whatever a server's library raises
            raise UsageError(
                f"The cases in the database cannot be read: {_said(error)}; see to the server, or "
                "leave out --database."
            ) from None
        found = []
        for data in entries:
            try:
                case, scenario = decode_case(data[:MAX_BYTES], "the database", Case)
            except UsageError:
                continue  # of another version, or not ours
            found.append((case.surface, scenario))
        return found

    def take(self, event: Event) -> None:
        """Save a finding that is new and shrunk."""
        match event:
            case FindingMade(finding) if finding.shrunk and finding.status == "new":
                try:
                    self._database.save(_KEY, case_text(finding))
                except Exception as error:  # whatever a server's library raises
                    self.trouble = f"A case could not be saved in the database: {_said(error)}."


def corpus(*cases: list[tuple[str, Scenario]]) -> Corpus:
    """The scenarios by surface, each once, in order."""
    found: dict[str, dict[Scenario, None]] = {}
    for surface, scenario in (pair for some in cases for pair in some):
        found.setdefault(surface, {})[scenario] = None
    return {surface: tuple(scenarios) for surface, scenarios in found.items()}
