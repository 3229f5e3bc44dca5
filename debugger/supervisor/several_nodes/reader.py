"""Reads the ranks of all nodes: those here, and what other nodes have told of theirs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...diagnosis.findings import Finding
from ...node_links.several import MOST, Several
from ...record import steady_clock
from ...record.reading.copies import FEW_NODES
from ...record.reading.reader import FlightReader
from ...record.snapshot import LostNode, Rank, Snapshot
from ..run_reader import LocalReader
from .job import Job
from .late_meeting import LateMeeting
from .lost_ranks import lost_nodes
from .questions import came_to_it, in_question
from .unwatched import Unwatched, unseen

if TYPE_CHECKING:
    from .head import Head  # with it comes ZeroMQ, which a run on one node does without


@dataclass(slots=True)
class _Asked:
    """A question to the nodes about a finding that was first seen at `since_s` by the monotonic
    clock and by our steady one. `ranks`: whose calls; None: everybody's. `twice`: those who came to
    be in question meanwhile were asked, too."""

    since_s: float
    since_ns: int
    ranks: frozenset[int] | None
    twice: bool = False


class JobReader:
    """`local` reads the run directory, which has the copies of other nodes' records, too. Where it
    is told no size of the world (0), one is believed as soon as all nodes are there."""

    def __init__(self, local: LocalReader, job: Job, late: LateMeeting) -> None:
        self._local = local
        self._job = job
        self._late = late
        self._lost: tuple[LostNode, ...] = ()
        self._told: tuple[int, ...] = ()
        self._ranks: Mapping[int, Rank] = {}
        self._asked: _Asked | None = None
        self._seen: tuple[object, ...] = ()
        self._doubtful: set[str] = set()
        self.unwatched = Unwatched(job.say)

    def look(self, finished: bool = False) -> Sequence[Snapshot]:
        self._job.take()
        head, member = self._job.head, self._job.member
        if head is not None and len(head.nodes) > FEW_NODES:
            before, self._seen = self._seen, (head.news, self._local.here())
            self._local.rests(before == self._seen)
            head.stirred_ns = 0
        self._local.trust_size = self._complete()
        snapshots = self._local.look(finished)
        self._ranks = snapshots[-1].ranks if snapshots else {}
        if head is not None and snapshots:
            newest = snapshots[-1]
            ranks_of: dict[int, list[int]] = {}
            for number, rank in newest.ranks.items():
                ranks_of.setdefault(rank.node, []).append(number)
            own = tuple(ranks_of.get(0, ()))
            if own != self._told:
                self._told = own
                head.tell_ranks(own)
            self._lost = self._lost_nodes(head, newest, ranks_of)
        elif member is not None and member.lost and member.welcomed:
            self._lost = (member.lost_node(snapshots[-1].ranks if snapshots else ()),)
        several = self._job.several
        if several is not None and not several.guessed and member is None and snapshots:
            lost = {rank for node in self._lost for rank in node.ranks}
            if all(node.ranks for node in self._lost):  # else one of them may have who is unseen
                self.unwatched.look(snapshots[-1], lost)
        if snapshots and (self._lost or head is not None):
            errors_ns = head.clock_errors_ns() if head is not None else {}
            newest = replace(snapshots[-1], lost=self._lost, clock_errors_ns=errors_ns)
            return [*snapshots[:-1], newest]
        return snapshots

    def only_calling(self) -> bool:
        """Whether ranks only go on calling: to look at 16,384 takes most of a second, and 200
        digests come in each."""
        head = self._job.head
        if head is None or len(head.nodes) <= FEW_NODES:
            return False
        self._job.take()
        return self._seen == (head.news, self._local.here())

    def all_told(self) -> bool:
        head = self._job.head
        self._job.take()
        return head is not None and head.all_told

    def ask(self) -> bool:
        head = self._job.head
        return head is not None and head.ask_for_progress()

    @property
    def change_mark(self) -> tuple[object, ...]:
        return (self._local.change_mark, self._lost)

    def starting(self) -> bool:
        return self._local.starting()

    def settled(self, since_s: float, about: Finding) -> bool:
        """Whether all nodes have told what had happened by then, of the monotonic clock, and those
        calls that may show another cause."""
        head = self._job.head
        if head is None:
            return not self._late.goes_on(self._ranks, about.message)
        asked = self._asked
        if asked is None or asked.since_s != since_s:
            since_ns = int(since_s * 1e9) - time.monotonic_ns() + steady_clock.now_ns()
            wanted = in_question(about, self._ranks)
            asked = self._asked = _Asked(since_s, since_ns, wanted)
            return head.settled(since_ns, None if wanted is None else self._files(wanted))
        if not head.settled(asked.since_ns):
            return False
        if asked.ranks is None or asked.twice:
            return True
        asked.twice = True
        more = came_to_it(about, self._ranks, asked.ranks)
        if more:
            head.ask_more(self._files(more))
        return not more

    def _files(self, ranks: Iterable[int]) -> list[Path]:
        return [_path(self._ranks[rank]) for rank in ranks]

    def _lost_nodes(
        self, head: Head, newest: Snapshot, told: Mapping[int, Sequence[int]]
    ) -> tuple[LostNode, ...]:
        if not (head.given_up_ns or any(far.lost_ns for far in head.nodes.values())):
            return ()
        found = lost_nodes(head, self._job.several or Several(1, MOST), told, unseen(newest))
        for host in found.doubtful:
            if host not in self._doubtful:
                self._doubtful.add(host)
                self._job.say(
                    f"{host or 'a node'} has fallen silent before it has told of a rank: "
                    "whether any rank of this world is on it is not known"
                )
        return found.nodes

    def _complete(self) -> bool:
        several, head = self._job.several, self._job.head
        if several is None:
            return True
        if several.guessed:
            return head is None or not head.nodes
        return head is not None and several.fewest == several.most == len(head.nodes) + 1


def _path(rank: Rank) -> Path:
    """The record that it was read from."""
    return rank.history.path if isinstance(rank.history, FlightReader) else Path()
