"""The findings of one search: the smallest of each fingerprint, in memory and as case files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvfuzz.cases import write_case
from kvfuzz.engine.events import Event, FindingMade
from kvfuzz.errors import UsageError
from kvfuzz.files import write_atomically
from kvfuzz.findings import Finding
from kvfuzz.ledger import find_expected


class Findings(dict[str, Finding]):
    """Fingerprint -> finding.

    Args:
        cases: Folder for the case files of new findings.
        use_ledger: Whether the ledger says what is known.
    """

    def __init__(self, cases: Path, *, use_ledger: bool) -> None:
        super().__init__()
        self._cases = cases
        self._use_ledger = use_ledger
        self._before: dict[Path, bytes | None] = {}  # case file -> what an earlier run left there

    def keep(self, finding: Finding) -> Iterator[Event]:
        """Take a finding, and write its case, unless a smaller one is there.

        Raises:
            UsageError: The case cannot be written; the finding has been yielded.
        """
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
            except UsageError:
                yield FindingMade(finding, "")
                raise
        yield FindingMade(finding, path)

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
