"""The errors of distdebug: the type says whose fault it is, and carries the exit code.

What is raised in the ranks derives from torch's errors, and is there as soon as a program asks for
it (`distdebug.errors.FindingRaised`): no torch is imported for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class DistdebugError(Exception):
    """The tool itself failed; the message is one sentence for the terminal."""

    exit_code = 96


class UsageError(DistdebugError):
    """The command line, or a file it names, is wrong; the message says what to write instead."""

    exit_code = 2

    def __init__(self, sentence: str, below: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.below = tuple(below)
        """Further lines: what was written, a mark under the wrong word, what is possible."""


def __getattr__(name: str) -> Any:
    if name[:1].isupper():  # a class: nobody asks for one by chance, and has torch imported
        from . import in_ranks

        if name in in_ranks.__all__:
            return getattr(in_ranks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
