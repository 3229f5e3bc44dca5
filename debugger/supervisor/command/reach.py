"""Which Python processes of the command are watched, and why not the others: asked of /proc, and of
what the hook has left where it has failed.

A run in which nothing was observed must not look like one in which all was well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from ...record.process_stat import has_torch, read_stat
from ...record.safe_files.bounds import read_regular
from ...record.safe_files.json_objects import object_of
from ...record.safe_text.sanitize import clean
from ...record.safe_text.secret_words import masked
from ...record.safe_text.whole_numbers import whole_number

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_WITH_ARGUMENT = "WX"
_ENDS_FLAGS = "cm"
_MOST_REASONS = 8
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_CHILD = "DISTDEBUG_RANK_PID"
_FAILED = "unobserved.jsonl"
"""What the hook appends to, in the run directory, in a process in which it has failed."""
_MOST_BYTES = 1 << 16


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
        self._commands: dict[int, str] = {}
        self._missed: dict[int, str] = {}
        """By pid, for as long as it is the same program."""
        self.reached = 0
        """Python processes that the hook was started in."""
        self.ranks: dict[int, int] = {}
        """Those that a launcher had made a rank, reached or not, by pid."""
        self.world_size = 0
        """Of how many ranks the launcher says that there are; 0 where it does not."""
        self._with_torch: set[int] = set()
        """Those of `ranks` that had torch's library loaded when they were looked at."""

    def look(self, pids: Iterable[int]) -> None:
        """Judge the processes that are new, or have become another program since the last look."""
        for pid in pids:
            line = _read(self._proc / str(pid) / "cmdline")
            if pid in self.ranks and pid not in self._with_torch and has_torch(pid, self._proc):
                self._with_torch.add(pid)
            if not line or self._known.get(pid) == line:
                continue
            self._known[pid] = line
            self._missed.pop(pid, None)  # what it was has become what it is: a wrapper, by exec
            if _PYTHON.fullmatch(self._program(pid)):
                words = tuple(os.fsdecode(word) for word in line.rstrip(b"\0").split(b"\0"))
                self._judge(pid, _Process(words, self._environment(pid)))

    @property
    def missed(self) -> Collection[int]:
        """The Python processes that could not be reached, or in which the hook has failed."""
        return self._missed.keys() | self._failed().keys()

    @property
    def is_without_torch(self) -> bool:
        """Whether there were ranks, and the hook was in all of them and had nothing to do."""
        return bool(self.ranks) and self.unwatched.isdisjoint(self.ranks)

    @property
    def unwatched(self) -> set[int]:
        """Those that are not watched, unless they have a record: who is missed, and ranks that have
        loaded torch."""
        return {*self.missed, *self._with_torch}

    def why(self, pid: int) -> str:
        """Why there is no record of this process, as far as it is known."""
        failed = self._failed().get(pid)
        if failed or pid in self._missed:
            return failed or self._missed[pid]
        if pid in self._with_torch:
            return "it had loaded torch, and has left no record"
        return "it had no record yet: one is made when torch is imported"

    def why_nothing(self, pids: Iterable[int] = ()) -> str:
        """Why no rank was seen, as far as it is known; `pids`: why these processes are not."""
        reasons: dict[str, list[int]] = {}
        for pid in pids or sorted({*self.missed, *self.ranks}):
            reasons.setdefault(self.why(pid), []).append(pid)
        if reasons:
            return "; ".join(map(self._sentence, reasons.values()))
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

    def _failed(self) -> dict[int, str]:
        """By pid, what the hook has said where it could not do its work."""
        try:
            lines = read_regular(Path(self._marker) / _FAILED, _MOST_BYTES).splitlines()
        except OSError:
            return {}
        found = {}
        for line in lines:
            try:
                told = object_of(line)
                found.setdefault(int(told["pid"]), clean(str(told["why"]), 300))
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def _judge(self, pid: int, process: _Process) -> None:
        why = self._why_missed(process)
        self._commands[pid] = clean(" ".join(masked(process.words)), 120)
        if why is None:
            self.reached += 1
        elif len(self._missed) < _MOST_REASONS:
            self._missed[pid] = why
        environment = process.environment or {}
        # A child of a rank has its RANK, too.
        rank = next((environment[name] for name in _RANKS if name in environment), "")
        if rank.isdecimal() and _CHILD not in environment and not self._is_forked(pid, int(rank)):
            sizes = (whole_number(environment.get(name)) for name in _SIZES)
            self.ranks[pid] = int(rank)
            self.world_size = max(self.world_size, next(filter(None, sizes), 0))

    def _is_forked(self, pid: int, rank: int) -> bool:
        """Whether its parent is that rank: of a forked child, the kernel shows the environment that
        its parent was started with."""
        stat = read_stat(pid, self._proc)
        return stat is not None and self.ranks.get(stat.parent) == rank

    def _why_missed(self, process: _Process) -> str | None:
        flag = _isolating_flag(process.words)
        if flag is not None:
            return f"Python's {flag} keeps PYTHONPATH or sitecustomize out: leave it out"
        environment = process.environment
        if environment is None:
            return "it belongs to another user"
        if environment.get("DISTDEBUG_RUN_DIR") != self._marker:
            return (
                "it was started with an environment of its own, without DISTDEBUG_RUN_DIR and "
                "PYTHONPATH: hand on both"
            )
        path = environment.get("PYTHONPATH", "")
        if self._site not in path.split(os.pathsep):
            return (
                "its PYTHONPATH was replaced: write "
                f"`export PYTHONPATH={clean(path, 80) + os.pathsep if path else ''}$PYTHONPATH`"
            )
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
