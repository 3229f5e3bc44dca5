"""What distdebug raises: the type says whose fault it is, and carries the exit code."""

from __future__ import annotations


class DistdebugError(Exception):
    """The tool itself failed; the message is one sentence for the terminal."""

    exit_code = 96


class UsageError(DistdebugError):
    """The command line, or a file it names, is wrong; the message says what to write instead."""

    exit_code = 2
