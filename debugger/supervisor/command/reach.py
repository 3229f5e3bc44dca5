"""Which Python processes of the command the hook can reach, and why not the others: asked of /proc.

A run in which nothing was observed must not look like one in which all was well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...record.safe_text.sanitize import clean
from ...record.safe_text.secret_words import masked

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_WITH_ARGUMENT = "WX"
_ENDS_FLAGS = "cm"
_MOST_REASONS = 8
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_CHILD = "DISTDEBUG_RANK_PID"


@dataclass(frozen=True, slots=True)
class _Process:
    words: tuple[str, ...]
    environment: dict[str, str] | None
    """None where it belongs to somebody else."""


class Reach:
    """What was seen of the command's Python processes. `marker` is the run directory that a reached
    one has in its environment, `site` the folder that its PYTHONPATH begins with."""

    def __init__(self, marker: str, site: str, proc: Path = Path("/proc")) -> None:
        self._marker = marker
        self._site = site
        self._proc = proc
        self._known: dict[int, bytes] = {}
        self._missed: dict[int, str] = {}
        """By pid, for as long as it is the same program."""
        self.reached = 0
        """Python processes that the hook was started in."""
        self.ranks: dict[int, int] = {}
        """Those of them that a launcher had made a rank, by pid."""

    def look(self, pids: Iterable[int]) -> None:
        """Judge the processes that are new, or have become another program since the last look."""
        for pid in pids:
            line = _read(self._proc / str(pid) / "cmdline")
            if not line or self._known.get(pid) == line:
                continue
            self._known[pid] = line
            self._missed.pop(pid, None)  # what it was has become what it is: a wrapper, by exec
            if _PYTHON.fullmatch(self._program(pid)):
                words = tuple(os.fsdecode(word) for word in line.rstrip(b"\0").split(b"\0"))
                self._judge(pid, _Process(words, self._environment(pid)))

    @property
    def missed(self) -> bool:
        """Whether there were Python processes that could not be reached."""
        return bool(self._missed)

    def why_nothing(self) -> str:
        """Why no rank was seen, as far as it is known."""
        if self._missed:
            return "; ".join(self._missed.values())
        if self.reached:
            return (
                "the Python processes that the command started here made no process group; "
                "ranks in a container or on another host are not seen from here"
            )
        return "the command started no Python process here, or none that lived for half a second"

    def _judge(self, pid: int, process: _Process) -> None:
        why = self._why_missed(process)
        if why is None:
            self.reached += 1
            environment = process.environment or {}
            # A child of a rank has its RANK, too.
            rank = next((environment[name] for name in _RANKS if name in environment), "")
            if rank.isdecimal() and _CHILD not in environment:
                self.ranks[pid] = int(rank)
        elif len(self._missed) < _MOST_REASONS:
            command = clean(" ".join(masked(process.words)), 120)
            self._missed[pid] = f"process {pid} ({command}) {why}"

    def _why_missed(self, process: _Process) -> str | None:
        flag = _isolating_flag(process.words)
        if flag is not None:
            return f"could not be reached: Python's {flag} keeps PYTHONPATH or sitecustomize out"
        environment = process.environment
        if environment is None:
            return "could not be reached: it belongs to another user"
        if environment.get("DISTDEBUG_RUN_DIR") != self._marker:
            return (
                "could not be reached: it was started with an environment of its own, "
                "without DISTDEBUG_RUN_DIR and PYTHONPATH"
            )
        if self._site not in environment.get("PYTHONPATH", "").split(os.pathsep):
            return "could not be reached: its PYTHONPATH was replaced"
        return None

    def _program(self, pid: int) -> str:
        try:
            return os.path.basename(os.readlink(self._proc / str(pid) / "exe"))
        except OSError:
            return ""

    def _environment(self, pid: int) -> dict[str, str] | None:
        try:
            raw = (self._proc / str(pid) / "environ").read_bytes()
        except OSError:
            return None
        pairs = (os.fsdecode(one).partition("=") for one in raw.split(b"\0") if one)
        return {name: value for name, _, value in pairs}


def _isolating_flag(words: tuple[str, ...]) -> str | None:
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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
