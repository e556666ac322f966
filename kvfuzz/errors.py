"""The errors that end a command, each with its documented exit code.

Every message is one sentence or two for the person at the keyboard: what is
wrong, where, and what to do. The command line prints it as it is.
"""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes that scripts rely on."""

    OK = 0
    NEW_FINDING = 1
    USAGE = 2
    HARNESS = 3
    LEDGER_DRIFT = 4
    INTERRUPTED = 130
    TERMINATED = 143


class KvfuzzError(Exception):
    """Base of the errors below; `exit_code` is what the process ends with."""

    exit_code = Exit.HARNESS


class UsageError(KvfuzzError):
    """The caller's words, files or folders are off."""

    exit_code = Exit.USAGE


class TargetError(KvfuzzError):
    """A target could not be fetched, loaded or driven."""

    exit_code = Exit.HARNESS


class HarnessFault(BaseException):
    """kvfuzz itself is at fault in the middle of a planner's call.

    Not an Exception, so that no planner's own handler swallows it and it is
    never taken for something that the planner did.
    """
