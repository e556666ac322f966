"""What is kept of one search: its findings, and what its workers have told.

Of each fingerprint the smallest finding, in memory and as a case file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvfuzz.cases import write_case
from kvfuzz.engine.calls import PASSING
from kvfuzz.engine.events import Event, FindingMade
from kvfuzz.engine.messages import Job, ShrinkJob
from kvfuzz.engine.places import Place
from kvfuzz.engine.records import Unshrunk
from kvfuzz.errors import UsageError
from kvfuzz.files import write_atomically
from kvfuzz.findings import Finding
from kvfuzz.ledger import find_expected
from kvfuzz.outcomes import Crash


class Told(msgspec.Struct):
    """What a task's worker has told, and when it was started.

    A mix that is counted is not judged again by the worker that follows; the
    others are, but for the one in hand at the end.

    Attributes:
        seconds: How long it may take, as planned, or 0.
        last: The last mix that it counted.
        pending: Fingerprint -> place of what it is shrinking.
    """

    started: float
    seconds: float
    last: Place | None = None
    pending: dict[str, Place] = msgspec.field(default_factory=dict)

    def unshrunk(self, crash: Crash) -> Iterator[Unshrunk]:
        """What another worker is to shrink, if this one ended with that crash."""
        for digest, place in self.pending.items():
            yield Unshrunk(place=place, fingerprint=digest, crash=crash)


class Findings(dict[str, Finding]):
    """Fingerprint -> finding.

    Args:
        cases: Folder for the case files of new findings.
        use_ledger: Whether the ledger says what is known.

    Attributes:
        trouble: Why a case file could not be written, or None. What is found is
            taken all the same, so that it can be told.
    """

    def __init__(self, cases: Path, *, use_ledger: bool) -> None:
        super().__init__()
        self._cases = cases
        self._use_ledger = use_ledger
        self._before: dict[Path, bytes | None] = {}  # case file -> what an earlier run left there
        self.trouble: UsageError | None = None

    def keep(self, finding: Finding) -> Iterator[Event]:
        """Take a finding, and write its case, unless a smaller one is there."""
        before = self.get(finding.fingerprint)
        if before is not None and before.shrunk and len(before.scenario) <= len(finding.scenario):
            return
        known = None
        if self._use_ledger:
            known = find_expected(finding.fingerprint, finding.target, finding.version)
        if known is not None:
            finding = msgspec.structs.replace(finding, status="known", ledger=known.entry.id)
        self[finding.fingerprint] = finding
        path = ""
        if finding.status == "new":
            try:
                path = self._write(finding)
            except UsageError as error:
                self.trouble = self.trouble or error
        yield FindingMade(finding, path)

    def did_not_come_back(self, digest: str, job: Job) -> None:
        """Drop a finding if the machine, not the planner, can have made it.

        It was slow or large, once; or its process was killed, which is what
        a system short of memory does, or a user.
        """
        if digest not in self:
            return
        killed = (
            isinstance(job, ShrinkJob)
            and job.fingerprint is None
            and job.crash.exception == "SIGKILL"
        )
        if killed or self[digest].symptom in PASSING:
            self.drop(digest)

    def drop(self, digest: str) -> None:
        """Forget a finding, and leave its case file as an earlier run left it."""
        path = self._path(self.pop(digest))
        before = self._before.pop(path, None)
        if before is None:
            path.unlink(missing_ok=True)
        else:  # all time-outs share a name
            write_atomically(path, before)

    def _path(self, finding: Finding) -> Path:
        return self._cases / f"{finding.id}.json"

    def _write(self, finding: Finding) -> str:
        path = self._path(finding)
        if path not in self._before:
            self._before[path] = path.read_bytes() if path.is_file() else None
        if not finding.shrunk and self._before[path] is not None:
            return str(path)  # an earlier run's case of this bug may be minimal
        return str(write_case(finding, self._cases))
