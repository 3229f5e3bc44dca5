"""Nodes and ranks that are missing: lost with their node, not watched by anybody, or never come.

Which ranks are on nodes that have fallen silent, be it that a node was lost before it told? Rules,
for the ranks of the newest world that nobody has told of:
1. A node owes ranks if it has told of fewer than it starts; where nobody has said how many it
   starts, if it has told of none. One whose command has ended owes nothing.
2. They are on the lost nodes that owe ranks, where no other node does, and either all nodes of the
   job have come, or these nodes owe just as many. Which of them is on which node is not known.
3. Else a lost node that has told of none has some of them in a job that has as many nodes from its
   beginning to its end, and nobody knows which; in an elastic job it may be in no world at all.

torchrun starts no rank before all nodes are there, so of one that never comes no rank can tell. A
head knows who has come. A node that has nobody to meet (the node with the job's store is among
those that did not come) can say that alone.

A node may be missing to the others whose ranks have ended before any of them met those of other
nodes, which wait for them. A rank that dies before it imports torch has been to no store, and a
supervisor imports no torch: its node would say alone what happened, and the others that they wait
for ever. So a short-lived process of ours goes to the store where the ranks were to meet, and has
this node join the head that it finds there. Where nobody serves that store, or has met in it, the
node stays alone.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..diagnosis.findings import Finding
from ..diagnosis.limits import Limits
from ..diagnosis.story import rule
from ..hook.loading import command
from ..record.layout import GroupState, Phase
from ..record.limits import MOST_RANKS
from ..record.safe_text import endpoint
from ..record.snapshot import LostNode, Rank, Snapshot
from ..record.wording import printable, ranks_text, verb
from .interfaces import is_here
from .job import Job
from .limits import AGAIN_EVERY_S, ANSWERS_S, COMES_S
from .presence import Role
from .several import Several

if TYPE_CHECKING:
    from .head import Head


@dataclass(frozen=True, slots=True)
class Lost:
    """`nodes`: those that have, or had, ranks. `doubtful`: the hosts of others, of which nobody can
    tell whether any of the unseen ranks are on them."""

    nodes: tuple[LostNode, ...] = ()
    doubtful: tuple[str, ...] = ()


def lost_nodes(
    head: Head, several: Several, told: Mapping[int, Sequence[int]], unseen: Collection[int]
) -> Lost:
    """Returns the lost nodes of this job. `told`: the ranks of the newest world by the number of
    the node that has told of them (0: the head's own), `unseen`: those of which none has."""
    lost = {
        far.number: LostNode(far.host, far.lost_ns, tuple(told.get(far.number, ())))
        for far in head.nodes.values()
        if far.lost_ns
    }
    if head.given_up_ns:
        lost[0] = LostNode(socket.gethostname(), head.given_up_ns, tuple(told.get(0, ())))
    owed = _owed(head, several, told)
    owing = [node for number, node in lost.items() if number in owed]
    have = tuple(one for one in lost.values() if one.ranks)
    if not owing or not unseen:
        return Lost(have)
    came, fixed = len(head.nodes) + 1, several.fewest == several.most
    counts = [owed[number] for number in lost if number in owed]
    as_many = all(counts) and sum(counts) == len(unseen)
    if owed.keys() <= lost.keys() and (as_many or (fixed and came == several.most)):
        others = (one for one in have if one not in owing)
        return Lost((*others, _together(owing, unseen)))
    without = [one for one in owing if not one.ranks]
    if fixed and came <= several.most:
        return Lost((*have, *without))
    return Lost(have, tuple(one.host for one in without))


def _owed(head: Head, several: Several, told: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Returns by node how many ranks it owes, if any; 0: that number is not known."""
    starts = {0: several.ranks}
    starts |= {one.number: one.starts for one in head.nodes.values() if not (one.over or one.left)}
    found = {}
    for number, count in starts.items():
        has = len(told.get(number, ()))
        if has < (count or 1):
            found[number] = count - has if count else 0
    return found


def _together(nodes: Sequence[LostNode], unseen: Collection[int]) -> LostNode:
    ranks = {rank for one in nodes for rank in one.ranks}
    hosts = tuple(dict.fromkeys(one.host for one in nodes))
    heard_ns = min(one.heard_ns for one in nodes)
    return LostNode(hosts[0], heard_ns, tuple(sorted({*ranks, *unseen})), hosts[1:])


DEFAULT_GROUP = "default_pg"


class Unwatched:
    """Says once who is not watched: members of the default group, made by those who are."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._ranks: tuple[int, ...] = ()
        self._since_s = 0.0
        self._said: tuple[int, ...] = ()

    def look(self, newest: Snapshot, lost: Collection[int] = ()) -> None:
        """Looks at the newest world; `lost`: who is on nodes that were watched, and have been
        lost."""
        ranks = tuple(rank for rank in _of_group(newest) or () if rank not in lost)
        if ranks != self._ranks:
            self._ranks, self._since_s = ranks, time.monotonic()
        if time.monotonic() - self._since_s >= ANSWERS_S:
            self.tell()

    def tell(self) -> None:
        """Tells it now, if any rank is unseen."""
        ranks = self._ranks
        if ranks and ranks != self._said:
            self._said = ranks
            self._say(
                f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} not watched: "
                "no distdebug of this job watches their node, and nothing is concluded from that"
            )


def unseen(snapshot: Snapshot) -> tuple[int, ...]:
    """The ranks of this world that nobody has told of: as its default group has it, or before that
    is made, as its ranks were told."""
    found = _of_group(snapshot)
    if found is None:
        size = max((rank.world_size for rank in snapshot.ranks.values()), default=0)
        found = tuple(sorted(set(range(min(size, MOST_RANKS))) - snapshot.ranks.keys()))
    return found


def _of_group(snapshot: Snapshot) -> tuple[int, ...] | None:
    for rank in snapshot.ranks.values():
        for group in rank.groups.values():
            if group.desc == DEFAULT_GROUP and group.state is GroupState.READY:
                return tuple(sorted(set(group.ranks) - snapshot.ranks.keys()))
    return None


@dataclass(slots=True)
class Incomplete:
    """The wait of one run below torchrun for its nodes; `has_ranks` says whether torchrun has
    started any here, be it that nothing is seen of them yet: then all nodes have come, with
    distdebug or without it."""

    job: Job
    has_ranks: Callable[[], bool]
    limits: Limits
    say: Callable[[str], None]
    _came: tuple[str, ...] = ()
    _since_s: float = 0.0
    _said: tuple[str, ...] = ()
    _looked_s: float = 0.0
    _over: bool = False

    @rule
    def look(self, ranks: Mapping[int, Rank]) -> Finding | None:
        """Returns what is to be said of it, once it has taken too long since the last node came."""
        several, now_s = self.job.several, time.monotonic()
        if several is None or self._over or now_s - self._looked_s < AGAIN_EVERY_S:
            return None
        if not self.job.rendezvous_s:
            return None  # the launcher itself is about to start
        self._looked_s = now_s
        head = self.job.head
        others = head.nodes.values() if head is not None else ()
        came = (
            socket.gethostname(),
            *(far.host or f"node {far.number}" for far in others if far.there),
        )
        if ranks or len(came) >= several.fewest or self.job.member is not None:
            self._over = True
            return None
        if came != self._came:
            self._came, self._since_s = came, now_s
        waited_s = now_s - self._since_s
        if waited_s < self.limits.notice_after_s:
            return None
        if self.has_ranks():
            self._over = True
            return None
        if waited_s >= self.limits.hang_timeout_s:
            return self._finding(came, several.fewest)
        if came != self._said:
            self._said = came
            self.say(f"{self._who(came, several.fewest)}; no rank starts before all are there")
        return None

    def _who(self, came: tuple[str, ...], wanted: int) -> str:
        names = ", ".join(printable(one, 120) for one in came)
        verb = "has" if len(came) == 1 else "have"
        return f"{len(came)} of {wanted} nodes {verb} come ({names})"

    def _finding(self, came: tuple[str, ...], wanted: int) -> Finding:
        missing = wanted - len(came)
        text = (
            f"{self._who(came, wanted)}, and {missing} more {'has' if missing == 1 else 'have'} "
            f"not within {self.limits.hang_timeout_s:g} s: start distdebug there with the same "
            "--rdzv-endpoint and --rdzv-id, or say a smaller --nnodes"
        )
        if self.job.head is None:
            where = self.job.store_host
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


class LateMeeting:
    """The late meeting of one run."""

    def __init__(
        self, job: Job, directory: Path, say: Callable[[str], None], within_s: float = COMES_S
    ) -> None:
        """`within_s`: for how long the others wait for the ranks here before they say so."""
        self._job = job
        self._directory = directory
        self._say = say
        self._within_s = min(within_s, COMES_S)
        self._process: subprocess.Popen[bytes] | None = None
        self._until_s = 0.0
        self._looked_again = self._over = False

    def goes_on(self, ranks: Mapping[int, Rank], what: str = "") -> bool:
        """Something is wrong here, `what` if that is known: whether others may still come to hear
        of it, so that it is not judged here yet. `ranks`: as of the last look."""
        if self._job.judged_elsewhere:
            return True
        if self._over or self._job.role in (Role.HEAD, Role.MEMBER, Role.ORPHAN):
            return False
        if self._process is None:
            here = {number: rank for number, rank in ranks.items() if not rank.node}
            if not (here or self._looked_again) and self._may_look:
                self._looked_again = True  # they may have come and gone since the last look
                return True
            place = self._place(here)
            if place is None:
                return False
            self._begin(what, *place, 0.0 if 0 in here else self._within_s)
        elif self._process.poll() is not None or time.monotonic() > self._until_s:
            self.close()
            self._say("no other node is reached: what is said here is of this node alone")
        return not self._over

    @property
    def _may_look(self) -> bool:
        """Whether there may be nodes that were not met."""
        several = self._job.several
        return several is not None and several.agreed is None and self._job.role is Role.ALONE

    def _place(self, here: Mapping[int, Rank]) -> tuple[str, int] | None:
        """Returns where the ranks of all nodes were to meet; None where that is not known, where
        one of those here may still come to it, and where there are no other nodes."""
        several = self._job.several
        if several is None or not self._may_look:
            return None
        if any(rank.process.alive and rank.phase < Phase.EXITING for rank in here.values()):
            return None
        told = {rank.job for rank in here.values()}
        if several.task and not told:  # what is started here is a rank, which has left no record
            told = {":".join(os.environ.get(one, "") for one in ("MASTER_ADDR", "MASTER_PORT"))}
        if not told:
            return None
        host, port = endpoint(told.pop())
        if told or not host or port is None:
            return None
        return None if several.guessed and is_here(host) else (host, port)

    def _begin(self, what: str, host: str, port: int, within_s: float) -> None:
        self._say(
            f"{what}{'; ' if what else ''}the ranks here have ended before they met those of other "
            f"nodes: these are told of it at {printable(host, 120)} port {port}, where they meet, "
            f"if they are there within {within_s:.0f} s"
        )
        words = [str(self._directory), host, str(port), str(within_s)]
        self._until_s = time.monotonic() + within_s + COMES_S
        try:
            self._process = subprocess.Popen(
                command("rank.process.meeting", *words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        except OSError:
            self._over = True

    def close(self) -> None:
        """Ends the meeting: no node is to be met any more."""
        self._over = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
