"""Ranks below the command that are not watched: they are named, and judged by what can be seen of them
from outside, which is their processes and stacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from ...diagnosis.findings import Finding
from ...diagnosis.limits import Limits
from ...record.wording import ranks_text, verb
from ...reports.stored import Document
from .reach import Reach

Inspect = Callable[[Collection[int], float], tuple[Document, Finding | None] | None]
"""Looks at the job of these processes, as `distdebug inspect` does, and judges it with that limit in
seconds; None where there is none. Takes a second or two."""

LONGEST_PAUSE_S = 20.0
"""Between two looks: py-spy takes a tenth of a second of a core for each rank."""


class FromOutside:
    """Of one run. It looks in a thread of its own, and only where the hook has missed somebody."""

    def __init__(
        self, inspect: Inspect | None, reach: Reach, limits: Limits, say: Callable[[str], None]
    ) -> None:
        self._inspect = inspect
        self._reach = reach
        self._limits = limits
        self._say = say
        self._since_s = self._next_s = 0.0
        self._looking: threading.Thread | None = None
        self._fault: Exception | None = None
        self._found: tuple[Document, Finding | None] | None = None
        self._named: set[int] = set()

    @property
    def ranks(self) -> dict[str, Any]:
        """How each rank of the job was seen last, as the report has ranks."""
        return self._found[0]["ranks"] if self._found is not None else {}

    @property
    def world_size(self) -> int:
        return self._found[0]["world_size"] if self._found is not None else 0

    def look(self, pids: Collection[int], watched: Collection[int]) -> Finding | None:
        """What is suspected now, while none of the ranks that live is watched. `pids`: all processes
        of the command; `watched`: those of them that are ranks with a record."""
        now_s = time.monotonic()
        if self._inspect is None or not self._reach.unwatched.intersection(pids).difference(watched):
            self._since_s, self._found = 0.0, None
            return None
        self._since_s = self._since_s or now_s
        if self._looking is None:
            if now_s >= max(self._since_s + self._limits.notice_after_s, self._next_s):
                wanted = (self._inspect, list(pids))
                self._looking = threading.Thread(target=self._take, args=wanted, daemon=True)
                self._looking.start()
        elif not self._looking.is_alive():
            self._looking = None
            self._next_s = now_s + min(LONGEST_PAUSE_S, self._limits.hang_timeout_s / 3)
            if self._fault is not None:
                raise self._fault
            self._name(watched)
        if self._found is None or self._found[1] is None or set(pids).intersection(watched):
            return None
        why = self._reach.why_nothing(one["pid"] for one in self.ranks.values())
        told = f"no rank is watched, and this is what their stacks show from outside: {why}"
        return replace(self._found[1], details=[*self._found[1].details, told])

    def _take(self, inspect: Inspect, pids: Collection[int]) -> None:
        try:
            self._found = inspect(pids, self._limits.hang_timeout_s)
        except Exception as error:
            self._fault = error

    def _name(self, watched: Collection[int]) -> None:
        """Say once who is not watched, and why, where that is known."""
        unwatched = {
            int(rank): one["pid"]
            for rank, one in self.ranks.items()
            if one["pid"] in self._reach.missed and one["pid"] not in watched
        }
        if unwatched.keys() <= self._named:
            return
        self._named |= unwatched.keys()
        ranks, pids = sorted(unwatched), list(unwatched.values())
        given = " ".join(f"--pid {pid}" for pid in pids[:4])
        self._say(
            f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} not watched: "
            f"{self._reach.why_nothing(pids)}; they are judged from outside now, as by "
            f"`distdebug inspect {given}`"
        )
