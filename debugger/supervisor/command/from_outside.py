"""Ranks below the command that are not watched: they are named, and judged by what can be seen of
them from outside, which is their processes and stacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ...diagnosis.findings import Finding
from ...diagnosis.limits import Limits
from ...diagnosis.story import rule
from ...record.wording import ranks_text, verb
from ...reports.stored import Document
from .reach import Reach

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
