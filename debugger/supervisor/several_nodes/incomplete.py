"""Nodes that never come: torchrun starts no rank before all are there, so no rank can tell.

Who is the head knows who has come. A node that has nobody to meet (the node with the job's store is
among those that did not come) can say that alone.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping

from ...diagnosis.findings import Finding
from ...diagnosis.limits import Limits
from ...diagnosis.story import rule
from ...node_links.limits import AGAIN_EVERY_S
from ...record.snapshot import Rank
from ...record.wording import printable
from .job import Job


class Incomplete:
    """The wait of one run below torchrun for its nodes; `has_ranks` says whether torchrun has
    started any here, be it that nothing is seen of them yet: then all nodes have come, with
    distdebug or without it."""

    def __init__(
        self, job: Job, has_ranks: Callable[[], bool], limits: Limits, say: Callable[[str], None]
    ) -> None:
        self._job = job
        self._has_ranks = has_ranks
        self._limits = limits
        self._say = say
        self._came: tuple[str, ...] = ()
        self._since_s = 0.0
        self._said: tuple[str, ...] = ()
        self._looked_s = 0.0
        self._over = False

    @rule
    def look(self, ranks: Mapping[int, Rank]) -> Finding | None:
        """Returns what is to be said of it, once it has taken too long since the last node came."""
        several, now_s = self._job.several, time.monotonic()
        if several is None or self._over or now_s - self._looked_s < AGAIN_EVERY_S:
            return None
        if not self._job.rendezvous_s:
            return None  # the launcher itself is about to start
        self._looked_s = now_s
        head = self._job.head
        others = head.nodes.values() if head is not None else ()
        came = (
            socket.gethostname(),
            *(far.host or f"node {far.number}" for far in others if far.there),
        )
        if ranks or len(came) >= several.fewest or self._job.member is not None:
            self._over = True
            return None
        if came != self._came:
            self._came, self._since_s = came, now_s
        waited_s = now_s - self._since_s
        if waited_s < self._limits.notice_after_s:
            return None
        if self._has_ranks():
            self._over = True
            return None
        if waited_s >= self._limits.hang_timeout_s:
            return self._finding(came, several.fewest)
        if came != self._said:
            self._said = came
            self._say(f"{self._who(came, several.fewest)}; no rank starts before all are there")
        return None

    def _who(self, came: tuple[str, ...], wanted: int) -> str:
        names = ", ".join(printable(one, 120) for one in came)
        verb = "has" if len(came) == 1 else "have"
        return f"{len(came)} of {wanted} nodes {verb} come ({names})"

    def _finding(self, came: tuple[str, ...], wanted: int) -> Finding:
        missing = wanted - len(came)
        text = (
            f"{self._who(came, wanted)}, and {missing} more {'has' if missing == 1 else 'have'} "
            f"not within {self._limits.hang_timeout_s:g} s: start distdebug there with the same "
            "--rdzv-endpoint and --rdzv-id, or say a smaller --nnodes"
        )
        if self._job.head is None:
            where = self._job.store_host
            text += (
                f"; this node has met nobody: is the job's store{f' at {where}' if where else ''} "
                "on one of those, or is there no way to it?"
            )
        return Finding(
            kind="join_timeout",
            message=text,
            culprits=(),
            proven=False,
            data={"nodes": list(came), "nodes_missing": missing},
        )
