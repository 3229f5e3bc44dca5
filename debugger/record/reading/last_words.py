"""The words that a process wrote of itself as a fatal signal ended it: the lines on which it
stood."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from ..requests import stack_dump, supervision
from ..safe_files import end_of
from ..safe_text import clean
from ..snapshot import CallSite, Process, is_own

_REASONS = {
    signal.SIGSEGV: "Segmentation fault",
    signal.SIGABRT: "Aborted",
    signal.SIGFPE: "Floating",
    signal.SIGILL: "Illegal instruction",
    signal.SIGBUS: "Bus error",
}
"""The names that `faulthandler` gives them, or begins with."""
_FATAL = "Fatal Python error: "
_MOST_BYTES = 256 * 1024
_MOST_FRAMES = 100
_MOST_TEXT = 512
_NOT_THE_USERS = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3\.\d+[/\\]|^<")


@dataclass(frozen=True, slots=True)
class LastWords:
    """`stack`: `file:line in function`, outermost call first, as an exception's. `site`: the
    innermost line of the user's own code."""

    stack: tuple[str, ...]
    site: CallSite | None


def last_words(stacks: Path, pid: int, number: int) -> LastWords | None:
    """Returns the words of the process that this signal has ended; None where it wrote none, or not
    of that signal.

    Raises nothing: the file may be damaged, or somebody else's.
    """
    text = _fatal(stacks, pid)
    if number not in _REASONS or not text.startswith(_REASONS[signal.Signals(number)]):
        return None
    # Of a thread that runs no Python there is no `Current thread`: then nobody knows who it was.
    if "Current thread 0x" not in text:
        return None
    for thread in stack_dump.threads(text[text.index("Current thread 0x") :]):
        frames = [
            (clean(file, _MOST_TEXT), line, clean(function, _MOST_TEXT))
            for file, line, function in thread.frames[:_MOST_FRAMES]
        ]
        stack = tuple(f"{file}:{line} in {function}" for file, line, function in reversed(frames))
        users = next(
            (one for one in frames if not (_NOT_THE_USERS.search(one[0]) or is_own(one[0]))), None
        )
        return LastWords(stack, None if users is None else CallSite(*users)) if stack else None
    return None


class WrittenLastWords:
    """The last words of the processes of a run, in the folder of its stacks, each read once."""

    def __init__(self, stacks: Path) -> None:
        self._stacks = stacks
        self._found: dict[tuple[int, int, int], LastWords | None] = {}
        self._signals: dict[tuple[int, int], int | None] = {}

    def of(self, pid: int, start_ticks: int, process: Process) -> tuple[Process, LastWords | None]:
        """Returns what this process said, if a signal has ended it; and it itself, with that signal
        where nobody has told how it ended but its words do: mpiexec keeps to itself how its ranks
        end."""
        number = process.signal
        if number is None and process.exit_code is None and process.ended_ns is not None:
            if (pid, start_ticks) not in self._signals:
                text = _fatal(self._stacks, pid)
                found = (one for one, reason in _REASONS.items() if text.startswith(reason))
                self._signals[pid, start_ticks] = next(found, None)
            number = self._signals[pid, start_ticks]
        if number is None:
            return process, None
        key = (pid, start_ticks, number)
        if key not in self._found:
            self._found[key] = last_words(self._stacks, pid, number)
        return replace(process, signal=number), self._found[key]


def _fatal(stacks: Path, pid: int) -> str:
    """Returns what the process has written of the fatal signal that ended it; "" for nothing."""
    try:
        data, _ = end_of(supervision.dump_path(stacks, pid), _MOST_BYTES)
    except OSError:
        return ""
    _, found, text = data.decode("utf-8", "replace").rpartition(_FATAL)
    return text if found else ""
