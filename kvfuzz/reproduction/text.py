"""What the pytest files of all surfaces have in common."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
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


def quoted(text: str) -> str:
    """The text as a literal, in double quotes if it needs no escapes in them."""
    plain = text.isascii() and text.isprintable() and '"' not in text and "\\" not in text
    return f'"{text}"' if plain else repr(text)


def enclosed(begin: str, parts: Sequence[str], end: str, before: int, indent: int = 4) -> str:
    """Parts between brackets: on one line if they fit, else a line each.

    Args:
        begin: What stands before the first part.
        parts: The parts.
        end: What stands after the last.
        before: Columns of the first line that stand before all that, and after it.
        indent: Columns by which the statement is indented.
    """
    line = f"{begin}{', '.join(parts)}{end}"
    if len(line) + before <= LINE and "\n" not in line:
        return line
    inner = " " * indent
    return f"{begin}\n" + "".join(f"{inner}    {part},\n" for part in parts) + f"{inner}{end}"
