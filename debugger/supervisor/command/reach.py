"""Tells which Python processes of the command are watched, and what is known of the others: why
they are not, asked of the kernel, and of what the hook has left where it has failed; how their
parent saw them end; and what their stacks show from outside.

A run in which nothing was observed must not look like one in which all was well.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...diagnosis.facts.exceptions import COMMUNICATION
from ...diagnosis.findings import Finding, RankEvidence
from ...diagnosis.limits import Limits
from ...diagnosis.story import rule, step
from ...record.exits import POLITE_SIGNALS, ExitLog, ExitStatus
from ...record.safe_files import read_regular
from ...record.safe_text import clean, whole_number
from ...record.secret_words import masked
from ...record.wording import ranks_text, verb
from ...reports.stored import Document
from ...system.proc import PROC, command_line, environment, executable, has_torch, read_stat

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
            words: list[str] = []
            with contextlib.suppress(OSError):
                words = command_line(pid, self._proc)
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


@step("unrecorded death")
def early_death(
    found: Finding | None,
    reach: Reach,
    recorded: Collection[int],
    exits: ExitLog,
    oom_killed: Callable[[int], bool] = lambda _: False,
    orphaned: bool = False,
) -> Finding | None:
    """The first death among the processes that are ranks, of those ranks that have no record: where
    nothing was found, or no more than that another rank has lost a peer. Else what was found.
    `oom_killed`: whether the kernel killed that process for want of memory; `orphaned`: their
    launcher was killed, and whoever was asked to end then is no culprit."""
    if found and not (found.kind == "rank_exception" and COMMUNICATION.search(found.message)):
        return found
    dead: list[tuple[bool, int, int, int, ExitStatus]] = []
    for pid, rank in reach.ranks.items():
        status = exits.find(pid)
        if rank in recorded or status is None or status.shell_code == 0:
            continue
        if orphaned and status.signal in POLITE_SIGNALS:
            continue
        dead.append((status.signal in POLITE_SIGNALS, status.time_ns, rank, pid, status))
    if not dead:
        return found
    _, time_ns, rank, pid, status = min(dead, key=lambda one: one[:4])
    memory = status.signal == signal.SIGKILL and oom_killed(pid)
    how = f"ended with {status}" if status.signal is None else f"was killed by {status}"
    how += " (out of memory)" if memory else ""
    return Finding(
        kind="rank_died",
        message=f"rank {rank} {how}; it was not watched: {reach.why(pid)}",
        culprits=(rank,),
        victims=tuple(sorted({*recorded, *reach.ranks.values()} - {rank})),
        observable_ns=time_ns,
        ranks={rank: RankEvidence(f"{how}, not watched (process {pid})")},
        data={"signal": status.signal, "exit_code": status.code, "oom_killed": memory},
    )


Inspect = Callable[[Collection[int], float], tuple[Document, Finding | None]]
"""Looks at the job of these processes, as `distdebug inspect` does, and judges it with that limit
in seconds. Takes a second or two."""


@dataclass(slots=True)
class FromOutside:
    """The look from outside at one run, in a thread of its own, and only where the hook has missed
    a process. `seen` is the report of the last look."""

    inspect: Inspect | None
    reach: Reach
    limits: Limits
    say: Callable[[str], None]
    seen: Document = field(default_factory=lambda: {"ranks": {}, "world_size": 0})
    _finding: Finding | None = None
    _since_s: float = 0.0
    _next_s: float = 0.0
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _looking: Future[tuple[Document, Finding | None]] | None = None
    _named: set[int] = field(default_factory=set)

    @rule
    def look(self, alive: Collection[int], watched: Collection[int]) -> Finding | None:
        """Returns what is suspected now, while none of the ranks that live is watched. `alive`: all
        processes of the command; `watched`: those of them that are ranks with a record."""
        now_s = time.monotonic()
        if self.inspect is None or self.reach.unwatched.keys().isdisjoint({*alive} - {*watched}):
            self._since_s, self._finding = 0.0, None
            return None
        self._since_s = self._since_s or now_s
        if self._looking is None:
            if now_s >= max(self._since_s + self.limits.notice_after_s, self._next_s):
                limit_s = self.limits.hang_timeout_s
                self._next_s = now_s + limit_s / 3  # it takes 0.1 s of a core for each rank
                self._looking = self._thread.submit(self.inspect, list(alive), limit_s)
        elif self._looking.done():
            looking, self._looking = self._looking, None
            self.seen, self._finding = looking.result()
            missed = self.reach.missed.keys() - set(watched)
            pid_of = {int(rank): one["pid"] for rank, one in self.seen["ranks"].items()}
            ranks = [rank for rank in sorted(pid_of) if pid_of[rank] in missed]
            if not self._named.issuperset(ranks):
                self._named.update(ranks)
                pids = [pid_of[rank] for rank in ranks]
                self.say(
                    f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} not watched: "
                    f"{self.reach.why_not(pids)}; what can be seen from outside is shown by "
                    f"`distdebug inspect --pid {pids[0]}`"
                )
        if self._finding is None or not {*alive}.isdisjoint(watched):
            return None
        why = self.reach.why_not(one["pid"] for one in self.seen["ranks"].values())
        told = f"no rank is watched, and this is what their stacks show from outside: {why}"
        return replace(self._finding, details=[*self._finding.details, told])
