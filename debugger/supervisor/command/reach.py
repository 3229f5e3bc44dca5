"""Tells which Python processes of the command are watched, and why the others are not: asked of the
kernel, and of what the hook has left where it has failed.

A run in which nothing was observed must not look like one in which all was well.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from ...record.safe_files import read_regular
from ...record.safe_text import clean, whole_number
from ...record.secret_words import masked
from ...system.proc import (
    PROC,
    command_line,
    environment,
    executable,
    has_torch,
    read_stat,
)

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_WITH_ARGUMENT = "WX"
_ENDS_FLAGS = "cm"
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_CHILD = "DISTDEBUG_RANK_PID"
_MOST_BYTES = 1 << 12
_Environment = dict[str, str] | None
"""The environment of a process; None where the process belongs to another user."""


class Reach:
    """The command's Python processes, as far as they were seen. `marker` is the run directory that
    a reached one has in its environment, `site` the folder that its PYTHONPATH begins with."""

    def __init__(self, marker: str, site: str, proc: Path = PROC) -> None:
        self._marker = marker
        self._site = site
        self._proc = proc
        self._known: dict[int, list[str]] = {}
        self._commands: dict[int, str] = {}
        self._missed: dict[int, str] = {}
        """By pid, for as long as it is the same program."""
        self.reached = 0
        """Python processes that the hook was started in."""
        self.ranks: dict[int, int] = {}
        """The processes that a launcher had made a rank, reached or not, by pid."""
        self._with_torch: set[int] = set()
        """The processes of `ranks` that had torch's library loaded when they were looked at."""

    def look(self, pids: Iterable[int]) -> None:
        """Judge the processes that are new, or have become another program since the last look."""
        for pid in pids:
            words = self._command_line(pid)
            if pid in self.ranks and pid not in self._with_torch and has_torch(pid, self._proc):
                self._with_torch.add(pid)
            if not words or self._known.get(pid) == words:
                continue
            self._known[pid] = words
            self._missed.pop(pid, None)  # what it was has become what it is: a wrapper, by exec
            if _PYTHON.fullmatch(os.path.basename(executable(pid, self._proc))):
                self._judge(pid, words)

    @property
    def missed(self) -> dict[int, str]:
        """The Python processes that could not be reached, or in which the hook has failed, and
        why."""
        found = dict(self._missed)
        for path in Path(self._marker).glob("unobserved-*.txt"):
            with contextlib.suppress(OSError, ValueError):
                why = read_regular(path, _MOST_BYTES).decode(errors="replace")
                found[int(path.stem.partition("-")[2])] = clean(why, 300)
        return found

    @property
    def unwatched(self) -> dict[int, str]:
        """The processes that are not watched, unless they have a record, and why: those that the
        hook missed, and ranks that have loaded torch."""
        why = "it had loaded torch, and has left no record"
        return {**dict.fromkeys(self._with_torch, why), **self.missed}

    def why(self, pid: int) -> str:
        """Tells why there is no record of this process, as far as it is known."""
        return self.unwatched.get(pid, "it had no record yet: one is made when torch is imported")

    def why_not(self, pids: Iterable[int]) -> str:
        """Tells why these processes have no record; "" of none."""
        reasons: dict[str, list[int]] = {}
        for pid in pids:
            reasons.setdefault(self.why(pid), []).append(pid)
        return "; ".join(map(self._sentence, reasons.values()))

    def why_nothing(self, watched: Collection[int] = ()) -> str:
        """Tells why no rank was seen but for these, as far as it is known."""
        lost = [pid for pid in self.unwatched or self.ranks if self.ranks.get(pid) not in watched]
        if lost or watched:
            return self.why_not(sorted(lost))
        if self.reached:
            return (
                "the Python processes that the command started here made no process group; "
                "ranks in a container or on another host are not seen from here"
            )
        return "the command started no Python process here, or none that lived for half a second"

    def _sentence(self, pids: list[int]) -> str:
        first = min(pids, key=lambda pid: (pid not in self.ranks, pid))
        command = self._commands.get(first, "")
        more = f" and {len(pids) - 1} more" if len(pids) > 1 else ""
        verb = "could not be reached" if first in self._missed else "could not be watched"
        return f"process {first} ({command}){more} {verb}: {self.why(first)}"

    def _judge(self, pid: int, words: Sequence[str]) -> None:
        told: _Environment = None
        with contextlib.suppress(OSError):
            told = environment(pid, self._proc)
        if told and told.get("DISTDEBUG_RUN_DIR", self._marker) != self._marker:
            return  # another distdebug below this one watches it
        why = self._why_missed(words, told)
        self._commands[pid] = clean(" ".join(masked(words)), 120)
        if why is None:
            self.reached += 1
        else:
            self._missed[pid] = why
        told = told or {}
        # A child of a rank has its RANK, too. The kernel shows a forked one with the environment
        # that its parent was started with.
        rank = whole_number(next((told[one] for one in _RANKS if one in told), ""))
        stat = read_stat(pid, self._proc)
        forked = stat is not None and self.ranks.get(stat.parent) == rank
        if rank is not None and _CHILD not in told and not forked:
            self.ranks[pid] = rank

    def _why_missed(self, words: Sequence[str], told: _Environment) -> str | None:
        flag = _isolating_flag(words)
        if flag is not None:
            return f"Python's {flag} keeps PYTHONPATH or sitecustomize out: leave it out"
        if told is None:
            return "it belongs to another user"
        if told.get("DISTDEBUG_RUN_DIR") != self._marker:
            return (
                "it was started with an environment of its own, without DISTDEBUG_RUN_DIR and "
                "PYTHONPATH: hand on both"
            )
        path = told.get("PYTHONPATH", "")
        if self._site not in path.split(os.pathsep):
            return (
                "its PYTHONPATH was replaced: write "
                f"`export PYTHONPATH={clean(path, 80) + os.pathsep if path else ''}$PYTHONPATH`"
            )
        return None

    def _command_line(self, pid: int) -> list[str]:
        with contextlib.suppress(OSError):
            return command_line(pid, self._proc)
        return []


def _isolating_flag(words: Sequence[str]) -> str | None:
    """The interpreter's flag that makes it leave out what we put on its path."""
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-") or word == "-":
            return None  # the script, or standard input
        if word.startswith("--"):
            if "=" not in word:
                next(rest, None)
            continue
        for place, letter in enumerate(word[1:], 1):
            if letter in "IES":
                return f"-{letter}"
            if letter in _ENDS_FLAGS:
                return None
            if letter in _WITH_ARGUMENT:
                if place == len(word) - 1:
                    next(rest, None)
                break
    return None
