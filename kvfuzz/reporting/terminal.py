"""The two consoles: plain by default, so that no text of others is taken for markup."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text


class QuietConsole(Console):
    """A console whose reader may leave: then the command goes on unseen to its exit code."""

    def on_broken_pipe(self) -> None:
        """Send what is still to come nowhere."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if self.stderr else sys.stdout).fileno())

    def say(self, text: str | Text = "", style: str | None = None) -> None:
        """Print a line as it is: not wrapped, so that it can be copied, and without markup."""
        self.print(text, style=style, soft_wrap=True)

    def pairs(self, pairs: Sequence[tuple[str, str]], indent: int = 0) -> None:
        """Print labels in one column, and texts wrapped beside them."""
        column = indent + max((len(label) for label, _ in pairs), default=0) + 2
        for label, text in pairs:
            lines = textwrap.wrap(
                text,
                max(30, self.width - column),
                # Names and paths must stay whole, to be found and copied.
                break_long_words=False,
                break_on_hyphens=False,
            )
            self.say(f"{' ' * indent + label:<{column}}{lines[0] if lines else ''}".rstrip())
            for line in lines[1:]:
                self.say(" " * column + line)


def console(*, stderr: bool = False) -> QuietConsole:
    """A console on standard output or standard error; NO_COLOR and COLUMNS count."""
    return QuietConsole(stderr=stderr, markup=False, highlight=False, emoji=False)
