"""What the pytest files of all surfaces have in common."""

from __future__ import annotations

import textwrap
from typing import Final

from kvfuzz.files import printable
from kvfuzz.findings import Finding

#: Columns of vLLM's own source.
LINE: Final = 88


def opening(finding: Finding) -> str:
    """The file's first lines: the claim, and which finding it shows."""
    claim = textwrap.fill(finding.claim, LINE - 6)
    version = printable(finding.version)
    return f'"""{claim}"""\n\n# {finding.id}, found by kvfuzz on version {version}.\n\n'


def beginning(finding: Finding) -> str:
    """The test's first lines: its name, and what was seen."""
    got = printable(finding.got)
    return (
        f"def test_{finding.invariant.replace('-', '_')}():\n"
        f"    # Seen: {got if len(got) <= 75 else got[:74] + '…'}\n"
    )
