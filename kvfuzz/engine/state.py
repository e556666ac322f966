"""The state of campaigns: one SQLite file, from which one that was interrupted goes on.

A campaign is a row; so is each of its searches, and each finding of a search.
A save is one transaction that holds counts together with the places that they
are of: whenever the process is killed, the file is right, and what it does not
tell yet is done again. Several campaigns may write to one file; a campaign is
run by one process at a time. What the file holds is decoded as data.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TextIO

import msgspec

from kvfuzz import __version__
from kvfuzz.engine.events import PastRun
from kvfuzz.engine.messages import decode
from kvfuzz.engine.records import Pair, Past, Plan, Snapshot, Stored, Totals
from kvfuzz.errors import UsageError
from kvfuzz.files import printable
from kvfuzz.findings import Finding

#: Name of the file in a run's folder.
STATE_FILE = "state.sqlite"

_FORMAT = 1
#: Seconds that a writer waits for another.
_WAIT_SECONDS = 30.0
_TABLES = """
CREATE TABLE campaign (
    id INTEGER PRIMARY KEY, kvfuzz TEXT, kind TEXT, plan TEXT, started TEXT,
    seconds REAL, finished INTEGER,
    searched REAL, mixes INTEGER, new INTEGER, known INTEGER
) STRICT;
CREATE TABLE search (
    campaign INTEGER, target TEXT, surface TEXT, snapshot TEXT,
    PRIMARY KEY (campaign, target, surface)
) STRICT;
CREATE TABLE finding (
    campaign INTEGER, target TEXT, surface TEXT, fingerprint TEXT, finding TEXT,
    PRIMARY KEY (campaign, target, surface, fingerprint)
) STRICT;
"""


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what SQLite and the decoder raise into a sentence that says what to do."""
    shown = printable(str(path))
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise UsageError(
            f"{shown} cannot be read and written: {printable(str(error))}; make room, wait for "
            "whoever holds it, or choose another folder with --out."
        ) from None
    except (sqlite3.Error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{shown} is damaged: {printable(str(error))}; move it away to begin anew. "
            "The case files beside it do not need it."
        ) from None


class State:
    """The state file of a folder, open.

    Args:
        folder: Where it is, or is to be made.

    Raises:
        UsageError: It is damaged, is of another version of kvfuzz, or cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / STATE_FILE
        with _told(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        """Make the tables of a new file; see that those of an old one can be read."""
        with _told(self.path):
            self._db.execute("PRAGMA trusted_schema = OFF")
            with self._transaction():
                (form,) = self._db.execute("PRAGMA user_version").fetchone()
                if form == 0:
                    for statement in _TABLES.split(";")[:-1]:
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA user_version = {_FORMAT}")
        if form not in (0, _FORMAT):
            raise UsageError(
                f"{printable(str(self.path))} is of another version of kvfuzz: choose another "
                "folder with --out, or move it away."
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write all or nothing; nobody else writes meanwhile."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # the first trouble is what is told
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def history(self, before: int) -> list[PastRun]:
        """The runs that began before the campaign of that number, oldest first.

        Raises:
            UsageError: The file is damaged.
        """
        with _told(self.path):
            rows = self._db.execute(
                "SELECT plan, started, searched, finished, mixes, new, known FROM campaign "
                "WHERE kind = 'run' AND id < ? AND mixes > 0 ORDER BY id",
                (before,),
            ).fetchall()
            return [
                PastRun(
                    started=started,
                    seconds=seconds,
                    mixes=mixes,
                    new=new,
                    known=known,
                    interrupted=not finished,
                    label=", ".join(decode(plan, Plan).targets),
                )
                for plan, started, seconds, finished, mixes, new, known in rows
            ]

    def begin(self, plan: Plan) -> Campaign:
        """A campaign that has done nothing yet.

        Raises:
            UsageError: The file cannot be written.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with _told(self.path), self._transaction():
            cursor = self._db.execute(
                "INSERT INTO campaign VALUES (NULL, ?, ?, ?, ?, 0.0, 0, 0.0, 0, 0, 0)",
                (__version__, plan.kind, msgspec.json.encode(plan).decode(), now),
            )
            number = cursor.lastrowid
        assert number is not None
        return Campaign(self, Past(number, plan, 0.0, finished=False))

    def go_on(self, past: Past) -> Campaign:
        """A campaign to go on with.

        Raises:
            UsageError: Another process runs it, or the file is damaged.
        """
        return Campaign(self, past)

    def latest(self, kind: str, plan: Plan | None = None) -> Past | None:
        """The last campaign of a kind, and with that plan if one is given; None if there is none.

        Raises:
            UsageError: The file is damaged.
        """
        with _told(self.path):
            rows = self._db.execute(
                "SELECT id, plan, seconds, finished FROM campaign "
                "WHERE kind = ? AND kvfuzz = ? ORDER BY id DESC",
                (kind, __version__),
            ).fetchall()
            for number, text, seconds, finished in rows:
                past = Past(number, decode(text, Plan), seconds, finished=bool(finished))
                if plan is None or past.plan == plan:
                    return past
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()


class Campaign:
    """One campaign, held by this process until it is closed.

    Args:
        state: The file, open.
        past: How far it has come.

    Attributes:
        state: The file.
        number: Its number in the file.
        seconds: Wall-clock seconds that it has taken so far.
        stored: What the file held of its searches when it was opened.

    Raises:
        UsageError: Another process runs it, or the file is damaged.
    """

    def __init__(self, state: State, past: Past) -> None:
        self.state = state
        self.number = number = past.number
        self.seconds = past.seconds
        self._path = state.path
        self._db = state._db
        self._lock = self._locked()
        self.stored: dict[Pair, Stored] = {}
        self._saved: dict[tuple[str, str, str], Finding] = {}
        try:
            self._read(number)
        except BaseException:
            self._lock.close()
            raise

    def _read(self, number: int) -> None:
        """Take what the file holds."""
        with _told(self._path):
            for target, surface, text in self._db.execute(
                "SELECT target, surface, snapshot FROM search WHERE campaign = ?", (number,)
            ):
                self.stored[target, surface] = Stored(decode(text, Snapshot), [])
            for target, surface, text in self._db.execute(
                "SELECT target, surface, finding FROM finding WHERE campaign = ? ORDER BY rowid",
                (number,),
            ):
                finding = decode(text, Finding)
                self.stored[target, surface].findings.append(finding)
                self._saved[target, surface, finding.fingerprint] = finding

    def _locked(self) -> TextIO:
        """The lock of the campaign; the system releases it when the process dies."""
        with _told(self._path):
            lock = self._path.with_name(f".{STATE_FILE}.lock").open("w")
        try:
            # A byte of the file for each campaign.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self.number)
        except OSError:
            lock.close()
            raise UsageError(
                f"Another kvfuzz runs campaign {self.number} of {printable(str(self._path))}: "
                "wait for it, or choose another folder with --out."
            ) from None
        return lock

    def save(
        self,
        seconds: float,
        totals: Totals,
        snapshots: Mapping[Pair, Snapshot],
        findings: Mapping[Pair, Iterable[Finding]],
        *,
        finished: bool,
    ) -> None:
        """Write how far the campaign has come: all of it or nothing.

        Args:
            seconds: Wall-clock seconds that it has taken.
            totals: Sums, for those who look back.
            snapshots: How far each search has come.
            findings: All of them, by search; those that have changed are written.
            finished: Whether it has done all that it was told.

        Raises:
            UsageError: The file cannot be written, or is damaged.
        """
        now = {(*pair, f.fingerprint): f for pair, some in findings.items() for f in some}
        changed = {key: f for key, f in now.items() if self._saved.get(key) is not f}
        gone = [key for key in self._saved if key not in now]
        with _told(self._path), self.state._transaction():
            self._db.execute(
                "UPDATE campaign SET seconds = ?, finished = ?, searched = ?, mixes = ?, new = ?, "
                "known = ? WHERE id = ?",
                (seconds, finished, *totals, self.number),
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO search VALUES (?, ?, ?, ?)",
                [
                    (self.number, *pair, msgspec.json.encode(snapshot).decode())
                    for pair, snapshot in snapshots.items()
                ],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO finding VALUES (?, ?, ?, ?, ?)",
                [
                    (self.number, *key, msgspec.json.encode(finding).decode())
                    for key, finding in changed.items()
                ],
            )
            self._db.executemany(
                "DELETE FROM finding WHERE campaign = ? AND target = ? AND surface = ? "
                "AND fingerprint = ?",
                [(self.number, *key) for key in gone],
            )
        self._saved = now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()
