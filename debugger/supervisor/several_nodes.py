"""A run that may be a part of a job of several nodes: how its ranks are read, looked into and ended
(`watch.LocalReader` of all nodes), and what the job orders."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..diagnosis.findings import Finding
from ..diagnosis.rules.node_lost import lost_without_ranks
from ..nodes.job import Job
from ..nodes.limits import THERE_AND_BACK_S
from ..nodes.many_nodes import came_to_it, in_question, nodes_to_look_into
from ..nodes.missing import Incomplete, LateMeeting, Unwatched, lost_nodes, unseen
from ..nodes.several import MOST, Several
from ..record import steady_clock
from ..record.exits import ExitStatus
from ..record.limits import MOST_RANKS
from ..record.reading.copies import FEW_NODES
from ..record.reading.plain_data import WRONG, made_of
from ..record.reading.reader import FlightReader
from ..record.reading.records import Records
from ..record.runs.run_directory import RunDirectory
from ..record.snapshot import LostNode, Rank, Snapshot
from ..reports.stored import Document, received
from .command.interrupts import Interrupts
from .command.launch import Launch, end_tree, forward
from .limits import ASKED_STACKS_S
from .machine.processes import ProcessTable
from .stacks.evidence import Evidence, gather, keep
from .stacks.stacks import ThreadStack
from .watch import LocalReader

if TYPE_CHECKING:
    from ..nodes.head import Head  # with it comes ZeroMQ, which a run on one node does without


@dataclass(slots=True)
class _Asked:
    """A question to the nodes about a finding that was first seen at `since_s` by the monotonic
    clock and by our steady one. `ranks`: whose calls; None: everybody's. `twice`: those who came to
    be in question meanwhile were asked, too."""

    since_s: float
    since_ns: int
    ranks: frozenset[int] | None
    twice: bool = False


class JobReader(LocalReader):
    """The reader of a run directory that has the copies of other nodes' records, too. Where it is
    told no size of the world (0), one is believed as soon as all nodes are there."""

    def __init__(
        self,
        records: Records,
        table: ProcessTable,
        world_size: int | None,
        job: Job,
        late: LateMeeting,
    ) -> None:
        super().__init__(records, table, world_size)
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
            before, self._seen = self._seen, (head.news, self.here())
            self._records.at_rest = before == self._seen
            head.stirred_ns = 0
        self.trust_size = self._complete()
        snapshots = super().look(finished)
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
        return self._seen == (head.news, self.here())

    def all_told(self) -> bool:
        head = self._job.head
        self._job.take()
        return head is not None and head.all_told

    def ask(self) -> bool:
        head = self._job.head
        return head is not None and head.pacing.ask()

    @property
    def change_mark(self) -> tuple[object, ...]:
        return (super().change_mark, self._lost)

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


MOST_FRAMES = 1024
MOST_TEXT = 500


def merged(own: Evidence, others: Iterable[Mapping[str, Any]]) -> Evidence:
    """Merges our evidence with what other nodes have told. What of it makes no sense is left
    out."""
    stacks: dict[int, Sequence[ThreadStack]] = dict(own.stacks)
    for one in others:
        ranks = one.get("ranks")
        for text, threads in ranks.items() if isinstance(ranks, Mapping) else ():
            try:
                rank = int(text)
                found = [made_of(ThreadStack, row, MOST_TEXT, MOST_FRAMES) for row in threads]
            except WRONG:
                continue
            if 0 <= rank < MOST_RANKS and found:
                stacks.setdefault(rank, found)
    return Evidence(dict(sorted(stacks.items())))


def _thread_to_json(one: ThreadStack) -> list[Any]:
    return [
        one.thread_id,
        one.native_id,
        one.name,
        one.holds_gil,
        one.active,
        [[f.function, f.file, f.line, f.native] for f in one.frames[:MOST_FRAMES]],
        one.wait,
        one.source,
    ]


class JobRanks:
    """The ranks of a run: the processes below the command on this node, and those of others."""

    def __init__(self, launch: Launch, job: Job, directory: RunDirectory) -> None:
        self._launch = launch
        self._job = job
        self._directory = directory
        self._taken: Evidence | None = None
        self._grace_s = 0.0
        self._hasten: Callable[[], bool] = lambda: False

    def stacks(
        self, ranks: Mapping[int, Rank], numbers: Mapping[int, int], native: bool, timeout_s: float
    ) -> Evidence:
        """The stacks of those that are alive, kept in the run directory. `numbers`: the ranks of
        processes with or without a record."""
        head, began_s = self._job.head, time.monotonic()
        if head is None and self._taken is not None:
            return self._taken  # the head has asked for them already
        if head is not None:
            head.ask_stacks(native, timeout_s, nodes_to_look_into(ranks))
        here = {number: rank for number, rank in ranks.items() if not rank.node}
        unrecorded = {pid: number for pid, number in numbers.items() if number not in ranks}
        evidence = gather(self._directory, here, native, timeout_s, unrecorded)
        if head is not None:
            others = head.stacks(began_s + timeout_s + THERE_AND_BACK_S)
            evidence = merged(evidence, others)
            keep(self._directory, evidence.stacks, (), time.monotonic() - began_s)
        return evidence

    def answer(self, ranks: Mapping[int, Rank]) -> None:
        """The head wants the stacks of the ranks here."""
        member = self._job.member
        if member is None or member.stacks_wanted is None:
            return
        wanted = member.stacks_wanted
        asked_s = wanted.get("timeout_s")
        timeout_s = (
            min(float(asked_s), ASKED_STACKS_S)
            if isinstance(asked_s, int | float)
            else ASKED_STACKS_S
        )
        native = wanted.get("native") is True
        self._taken = gather(self._directory, ranks, native, timeout_s)
        rows = {
            str(rank): [_thread_to_json(one) for one in threads]
            for rank, threads in self._taken.stacks.items()
        }
        member.tell_stacks({"ranks": rows})

    def tell(self, finding: Finding) -> bool:
        """Has every rank that can still run Python raise the finding; False where none hears."""
        if self._job.head is not None:
            self._job.head.tell(
                {
                    "kind": finding.kind,
                    "cause": finding.cause,
                    "message": finding.message,
                    "culprits": list(finding.culprits)[:4096],
                }
            )
        return self._directory.raise_in_ranks(finding.kind, finding.message, finding.cause)

    def left(self) -> bool:
        """Whether any process of the run is left on this node."""
        return bool(self._launch.descendants())

    def forward(self, number: int, grace_s: float, hasten: Callable[[], bool]) -> None:
        """Hands a signal on to the command, which gets that time to end; or until `hasten()`."""
        self._grace_s, self._hasten = grace_s, hasten
        if self._job.head is not None:
            self._job.head.stop(number)
        elif self._job.member is not None:
            self._job.member.interrupted(number)
        forward(self._launch, number, grace_s, hasten)

    def end(self, grace_s: float, quiet: bool = False, spared: Collection[int] = ()) -> None:
        """Ends what is left but `spared`: asks politely, and kills after `grace_s`. `quiet`: the
        launcher first, so that it prints nothing about the ranks it loses."""
        end_tree(self._launch, grace_s, silence_launcher=quiet, spared=spared)
        if self._job.head is not None:
            # The ranks of other nodes may take as long to end as those here.
            self._job.head.end(self._grace_s, self._hasten)


@dataclass(slots=True)
class Orders:
    """The orders to one run. `incomplete`: of a job that may wait for nodes before it has ranks.
    `over`: it is to end, with `finding` if there is one."""

    job: Job
    ranks: JobRanks
    interrupts: Interrupts
    say: Callable[[str], None]
    late: LateMeeting
    incomplete: Incomplete | None = None
    finding: Finding | None = None
    over: bool = False
    _lost_s: float = 0.0
    _abandoned: ExitStatus | None = None

    def look(self, ranks: Mapping[int, Rank]) -> bool:
        """Do what is asked; whether the run is over. `ranks`: as of the last look."""
        head, member = self.job.head, self.job.member
        if head is not None and head.interrupted is not None and self.interrupts.signal is None:
            number, who = head.interrupted
            self.interrupts.signal = number
            self.say(f"{self.interrupts.name} came to {who}: all nodes end")
        if head is not None and head.abandoned is not None and not self.over:
            self._abandoned, who = head.abandoned
            self.say(f"the command on {who} ended with {self._abandoned}: all nodes end")
            self.over = True
        if member is None:
            found = self.incomplete.look(ranks) if self.incomplete is not None else None
            if found is not None:
                self.finding, self.over = found, True
            return self.over
        if member.lost:
            return self._without_head(ranks)
        if member.stacks_wanted is not None:
            self.ranks.answer(ranks)
        if member.finding is not None or member.document is not None:
            self.finding, self.over = member.finding, True
        elif member.stop_signal and self.interrupts.signal is None:
            self.interrupts.signal = member.stop_signal
            self.say(f"{self.interrupts.name} came to another node: all nodes end")
        elif member.ends:
            self.over = True  # there is no finding, and yet it is over: a fault cannot be made
        return self.over

    def _without_head(self, ranks: Mapping[int, Rank]) -> bool:
        """A head that was there and is silent ends the run here; what is seen here comes first."""
        member = self.job.member
        if member is None or not member.welcomed:
            return False  # there never was one: this node is judged by itself
        self._lost_s = self._lost_s or time.monotonic()
        # What is seen on this node alone counts as soon as it is confirmed: it gets 0.3 s for that.
        if time.monotonic() - self._lost_s > 0.3:
            lost = member.lost_node(ranks)
            self.finding, self.over = lost_without_ranks(lost), True
        return self.over

    def may_end(self, status: ExitStatus | None, ended: bool, ranks: Mapping[int, Rank]) -> bool:
        """The command has ended, and `ended`: nothing of the run is left here, or nobody waits for
        it. Whether that is so on all nodes, or the job is over for them, too: a command that has
        failed has left ranks behind, which nobody would end."""
        head, member = self.job.head, self.job.member
        left = bool(
            status is not None
            and status.shell_code
            and any(rank.process.alive for rank in ranks.values() if not rank.node)
        )
        if left and status is not None and status.signal is not None:
            ended = True  # it had no chance to end them
        if not ended:
            return False
        if head is not None:
            return left or head.all_over
        if member is not None and not member.lost:
            member.tell_end(status, not left)
            return False  # the head says when
        failed = status is not None and bool(status.shell_code)
        return not (failed and self.late.goes_on(ranks))

    def status(self, own: ExitStatus | None) -> ExitStatus | None:
        """Returns how the command ended, on the node where it ended worst."""
        head = self.job.head
        if self._abandoned is not None:
            return self._abandoned  # ours was ended for it
        if head is None or (own is not None and own.shell_code):
            return own
        return head.worst or own

    def document(self, status: ExitStatus | None) -> Document | None:
        """The head's report, if this node has a head that gives one."""
        member = self.job.member
        if member is None or member.lost or not member.welcomed:
            return None
        member.tell_end(status, True)
        grace_s = self.interrupts.grace_s if self.interrupts.signal is not None else 0.0
        return received(member.report(lambda: self.interrupts.at_once, grace_s))
