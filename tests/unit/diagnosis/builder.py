"""Synthetic runs for tests of the diagnosis: ranks make calls, wait, and end, line by line.

    run = Run(4)
    run.each(all_reduce(8))                       # all ranks, completed
    run[0, 1, 3].calls(all_reduce(8), waits=True)
    run[2].calls(broadcast(8, root=0), waits=True)
    found = run.diagnose()

Time stands still unless `run.passes(seconds)` is called; every action takes a millisecond.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from distdebug.diagnosis.diagnose import Diagnosis, diagnose
from distdebug.diagnosis.limits import Limits
from distdebug.record.layout import Activity, CallState, GroupState, Phase
from distdebug.record.lines import PackedLines
from distdebug.record.replicas import PARAMETER
from distdebug.record.signature import (
    MASK,
    Signature,
    agreement_key,
    exact_key,
    hash64,
    split_contribution,
)
from distdebug.record.snapshot import (
    Call,
    CallSite,
    Channel,
    Column,
    Creation,
    Digest,
    Group,
    GroupKey,
    LineLog,
    Note,
    Place,
    Process,
    Rank,
    Snapshot,
    Timing,
    Wait,
    place_of,
)
from tests.support.chains import extend_chain

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
WORLD = "0"


def all_reduce(*shape: int, op: str = "sum", dtype: str = "float32") -> Signature:
    return Signature("all_reduce", ((dtype, shape),), reduce_op=op)


def broadcast(*shape: int, root: int = 0, dtype: str = "float32") -> Signature:
    return Signature("broadcast", ((dtype, shape),), root=root)


def reduce_to(*shape: int, root: int = 0) -> Signature:
    return Signature("reduce", (("float32", shape),), root=root, reduce_op="sum")


def all_gather(*shape: int) -> Signature:
    return Signature("all_gather", (("float32", shape),))


def barrier() -> Signature:
    return Signature("barrier")


def all_to_all(sends: Sequence[int], receives: Sequence[int]) -> Signature:
    return Signature(
        "all_to_all_single",
        (("float32", (sum(sends),)),),
        sends=tuple(sends),
        receives=tuple(receives),
    )


def send(peer: int, *shape: int, tag: int = 0, dtype: str = "float32") -> Signature:
    return Signature("send", ((dtype, shape or (4,)),), peer=peer, tag=tag)


def recv(peer: int, *shape: int, tag: int = 0, dtype: str = "float32") -> Signature:
    return Signature("recv", ((dtype, shape or (4,)),), peer=peer, tag=tag)


@dataclass
class ListHistory:
    """A rank's calls in a list; the first `forgotten` of them count as overwritten."""

    calls: list[Call] = field(default_factory=list)
    forgotten: int = 0

    def call(self, number: int) -> Call | None:
        if self.forgotten <= number < len(self.calls):
            return self.calls[number]
        return None

    def _collectives(self, group: GroupKey) -> Iterator[Call]:
        for call in self.calls[self.forgotten :]:
            if call.group == group and call.signature.peer is None:
                yield call

    def at(self, group: GroupKey, seq: int) -> Call | None:
        return next((call for call in self._collectives(group) if call.seq == seq), None)

    def message(self, channel: Channel, seq: int) -> Call | None:
        wanted = (channel.group, channel.op, channel.peer, channel.tag)
        for call in self.calls[self.forgotten :]:
            signature = call.signature
            key = (call.group, signature.op, signature.peer, signature.tag)
            if key == wanted and call.seq == seq:
                return call
        return None

    def recent(self, count: int, group: GroupKey | None = None) -> Sequence[Call]:
        rows = self.calls[self.forgotten :] if group is None else list(self._collectives(group))
        return rows[-count:] if count > 0 else []

    def timings(self, numbers: Iterable[int]) -> Sequence[Timing]:
        return [Timing.of(call) for call in map(self.call, numbers) if call is not None]

    def chains_after(self, group: GroupKey, issued: int) -> tuple[int, int, int] | None:
        if issued == 0:
            return (0, 0, 0)
        call = self.at(group, issued - 1)
        return (call.chain, call.exact, call.balance) if call else None


@dataclass
class ListReplicas:
    """`Replicas` over lists."""

    group: GroupKey
    key: str
    columns: Sequence[Column]
    axis: str = ""
    unreduced: frozenset[str] = frozenset()
    late: bool = False
    like: Sequence[str] = ()
    use: str = ""
    traits: Sequence[frozenset[str]] = ()
    elements: Sequence[tuple[str, int]] = ()
    rows: list[tuple[Digest, tuple[int, ...]]] = field(default_factory=list)
    sampled: dict[Column, Sequence[float]] = field(default_factory=dict)

    def digests(self) -> Sequence[Digest]:
        return [row for row, _ in self.rows]

    def values(self, moment: tuple[int, int]) -> Sequence[int] | None:
        return next((values for row, values in self.rows if row.moment == moment), None)

    def samples(self, moment: tuple[int, int], column: Column) -> Sequence[float]:
        return self.sampled.get(column, ())


class RankBuilder:
    """One rank's record as it grows."""

    def __init__(self, run: Run, rank: int) -> None:
        self.run = run
        self.rank = rank
        self.pid = 1000 + rank
        self.process = Process(alive=True, state="S")
        self.phase = Phase.RUNNING
        self.exit_code: int | None = None
        self.exiting_ns = 0
        self.node = 0
        self.groups: dict[GroupKey, Group] = {}
        self.channels: dict[tuple[GroupKey, str, int, int], Channel] = {}
        self.creations: list[Creation] = []
        self.history = ListHistory()
        self.waits: dict[int, Wait] = {}
        self.notes: list[Note] = []
        self.serial = 0
        self.free_threads = 1
        self.location: CallSite | None = CallSite("/home/user/train.py", 40, "step")
        self.heartbeat_ns: int | None = None
        self.job = ""
        self.world_size = 0
        """As this rank was told; 0: the size of the run."""
        self.replicas: list[ListReplicas] = []
        self.restarts = (0, 0)
        """How often its launcher has restarted it, and how often it does so at most."""

    # -- what it does --------------------------------------------------------------------------

    def calls(
        self,
        signature: Signature,
        *,
        group: str = WORLD,
        incarnation: int = 0,
        waits: bool = False,
        fails: bool = False,
        thread: int = 1,
        line: int = 88,
        is_async: bool = False,
        agrees: bool = False,
        bounded: bool = False,
    ) -> Call:
        """Issue a call; it completes unless it `waits`, `fails` or is asynchronous. `bounded`: its
        thread is still in it, but not for long."""
        run, key = self.run, (group, incarnation)
        run.tick()
        number = len(self.history.calls)
        state = CallState.COMPLETED
        if waits or is_async:
            state = CallState.STARTED
        if bounded:
            state = CallState.ISSUED
        if fails:
            state = CallState.FAILED
        site = CallSite("/home/user/train.py", line, "step")
        if signature.peer is None:
            seq, chain, exact, balance = self._collective(key, signature, number, state)
        else:
            seq, chain = self._message(key, signature, number)
            exact = balance = 0
        call = Call(
            number=number,
            group=key,
            seq=seq,
            signature=signature,
            site=site,
            thread=thread,
            state=state,
            is_async=is_async,
            agrees=agrees,
            bounded=bounded,
            chain=chain,
            exact=exact,
            balance=balance,
            issued_ns=run.now_ns,
            started_ns=run.now_ns,
            completed_ns=run.now_ns if state >= CallState.COMPLETED else 0,
        )
        self.history.calls.append(call)
        if waits:
            self.waits_in(call, thread=thread)
        return call

    def _collective(
        self, key: GroupKey, signature: Signature, number: int, state: CallState
    ) -> tuple[int, int, int, int]:
        group = self.groups[key]
        seq = group.issued
        share = split_contribution(signature, group.ranks.index(self.rank)) * (2 * seq + 1)
        chain = extend_chain(group.chain, hash64(agreement_key(signature)))
        exact = extend_chain(group.exact, hash64(exact_key(signature)))
        balance = (group.balance + share) & MASK
        self.groups[key] = replace(
            group,
            issued=seq + 1,
            chain=chain,
            exact=exact,
            balance=balance,
            last=number,
        )
        return seq, chain, exact, balance

    def _message(self, key: GroupKey, signature: Signature, number: int) -> tuple[int, int]:
        assert signature.peer is not None
        row = (key, signature.op, signature.peer, signature.tag)
        channel = self.channels.get(row) or Channel(*row, issued=0, chain=0, last=None)
        counts = tuple(prod(shape) for shape in signature.shapes)
        chain = extend_chain(channel.chain, hash64((signature.dtypes, counts)))
        self.channels[row] = replace(channel, issued=channel.issued + 1, chain=chain, last=number)
        return channel.issued, chain

    def waits_in(
        self,
        what: Call | Activity,
        *,
        thread: int = 1,
        free: int = 0,
        since_ns: int | None = None,
        **detail: Any,
    ) -> None:
        """A thread begins to wait; afterwards `free` threads could still act."""
        self.serial += 1
        in_call = isinstance(what, Call)
        self.waits[thread] = Wait(
            thread=thread,
            activity=Activity.IN_CALL if isinstance(what, Call) else what,
            serial=self.serial,
            since_ns=self.run.now_ns if since_ns is None else since_ns,
            call=what.number if isinstance(what, Call) else None,
            detail=detail,
            site=what.site if in_call and isinstance(what, Call) else self.location,
        )
        self.free_threads = free

    def goes_on(self, thread: int = 1) -> None:
        """The thread's wait ends; its call completes."""
        wait = self.waits.pop(thread)
        self.serial += 1
        self.free_threads = max(1, self.free_threads)
        if wait.call is None:
            return
        call = self.history.calls[wait.call]
        self.history.calls[wait.call] = replace(
            call, state=CallState.COMPLETED, completed_ns=self.run.now_ns
        )

    def takes(self, source: int, *, group: str = WORLD, tag: int = 0) -> None:
        """A receive from any source is over, and has taken a message of this one."""
        row = ((group, 0), "recv", source, tag)
        channel = self.channels.get(row) or Channel(*row, issued=0, chain=0, last=None)
        self.channels[row] = replace(channel, taken=channel.taken + 1)

    def has_group(
        self,
        name: str,
        ranks: Sequence[int],
        *,
        incarnation: int = 0,
        desc: str = "",
        state: GroupState = GroupState.READY,
    ) -> None:
        """The rank has the group, without a creation that all ranks take part in."""
        key = (name, incarnation)
        self.groups[key] = Group(key, desc, tuple(ranks), "gloo", state)

    def creates(self, name: str, ranks: Sequence[int], *, waits: bool = False) -> None:
        """`new_group(ranks)` as the next creation of this rank."""
        self.run.tick()
        creation = Creation(
            index=len(self.creations),
            group=(name, 0),
            ranks=tuple(ranks),
            backend="gloo",
            site=CallSite("/home/user/train.py", 12, "main"),
            world_seq=self.groups[WORLD, 0].issued if (WORLD, 0) in self.groups else 0,
            time_ns=self.run.now_ns,
        )
        self.creations.append(creation)
        if waits:
            self.waits_in(Activity.NEW_GROUP, name=name)
        elif self.rank in ranks:
            self.has_group(name, ranks)

    def destroys(self, name: str = WORLD, incarnation: int = 0) -> None:
        key = (name, incarnation)
        self.groups[key] = replace(self.groups[key], state=GroupState.DESTROYED)

    def notes_down(self, kind: str, message: str = "", line: int = 50, **data: Any) -> None:
        site = CallSite("/home/user/train.py", line, "step")
        self.notes.append(Note(kind, self.run.tick(), message, site, data))

    def begins_to_exit(self) -> None:
        """Its handlers run from here on, for as long as they take."""
        self.phase, self.exiting_ns = Phase.EXITING, self.run.tick()

    def exits(self, code: int | None = 0, *, signal: int | None = None, oom: bool = False) -> None:
        """The process ends: with a status, by a signal, or (code None) unseen."""
        ended = self.run.tick()
        self.process = Process(
            alive=False,
            exit_code=None if signal is not None else code,
            signal=signal,
            oom_killed=oom,
            ended_ns=ended,
        )
        if signal is None and code is not None:
            self.phase = Phase.ENDED
            self.exit_code = code

    def raises(self, message: str, line: int = 50, *, exits: bool = True, **data: Any) -> None:
        """An uncaught exception; the process ends with status 1 soon after."""
        self.notes_down("exception", message, line, **data)
        self.waits.clear()
        if exits:
            self.exits(1)

    def steps(
        self,
        moment: int,
        values: Sequence[int],
        *,
        turn: int = 0,
        key: str = "",
        line: int = 90,
        columns: Sequence[Column] = (),
    ) -> None:
        """An optimiser's columns (its parameters) have these values after its next step."""
        found = next((one for one in self.replicas if one.key == key), None)
        if found is None:
            names = [f"layer{number}.weight" for number in range(len(values))]
            found = ListReplicas(
                (WORLD, 0), key, columns or [Column(PARAMETER, name) for name in names]
            )
            self.replicas.append(found)
        site = CallSite("/home/user/train.py", line, "step")
        step = len(found.rows) + 1
        row = Digest((moment, turn), step, hash64(tuple(values)), self.run.tick(), site)
        found.rows.append((row, tuple(values)))

    def is_stopped(self) -> None:
        self.process = replace(self.process, state="T")

    # -- what a reader sees --------------------------------------------------------------------

    def _lines(self, of: Hashable) -> LineLog | None:
        calls = (call for call in self.history.calls if place_of(call) == of)
        return PackedLines([(one.seq, Place((one.site,)) if one.site else None) for one in calls])

    def frozen(self) -> Rank:
        heartbeat = self.run.now_ns if self.heartbeat_ns is None else self.heartbeat_ns
        return Rank(
            rank=self.rank,
            world_size=self.world_size or self.run.size,
            pid=self.pid,
            process=self.process,
            host="node0",
            job=self.job,
            restart_count=self.restarts[0],
            max_restarts=self.restarts[1],
            phase=self.phase,
            started_ns=START_NS,
            heartbeat_ns=heartbeat,
            calls=len(self.history.calls),
            exit_code=self.exit_code,
            exiting_ns=self.exiting_ns,
            layer_serial=self.serial,
            free_threads=self.free_threads,
            location=self.location,
            groups={key: replace(one, lines=self._lines(key)) for key, one in self.groups.items()},
            channels=tuple(
                replace(one, lines=self._lines(one.place)) for one in self.channels.values()
            ),
            creations=tuple(self.creations),
            waits=tuple(self.waits.values()),
            notes=tuple(self.notes),
            replicas=tuple(self.replicas),
            history=ListHistory(list(self.history.calls), self.history.forgotten),
            node=self.node,
        )


class Several:
    """Some ranks that do the same, one after the other."""

    def __init__(self, ranks: Iterable[RankBuilder]) -> None:
        self.ranks = list(ranks)

    def __getattr__(self, name: str) -> Any:
        def each(*args: Any, **kwargs: Any) -> None:
            for rank in self.ranks:
                getattr(rank, name)(*args, **kwargs)

        return each


class Run:
    """A world of `size` ranks, all of which have the default group (unless `joined` is False)."""

    def __init__(self, size: int, *, joined: bool = True, limits: Limits | None = None) -> None:
        self.size = size
        self.now_ns = START_NS
        self.limits = limits or Limits()
        self.finished = False
        self.clock_errors_ns: dict[int, int] = {}
        self.rivals: list[RankBuilder] = []
        self.ranks: dict[int, RankBuilder] = {}
        members = tuple(range(size))
        if joined:
            for rank in members:
                self.starts(rank).has_group(WORLD, members, desc="default_pg")

    def starts(self, rank: int) -> RankBuilder:
        """A process says that it is this rank."""
        found = self.ranks[rank] = RankBuilder(self, rank)
        return found

    def __getitem__(self, ranks: int | tuple[int, ...] | slice) -> Any:
        if isinstance(ranks, int):
            return self.ranks[ranks]
        chosen = range(self.size)[ranks] if isinstance(ranks, slice) else ranks
        return Several(self.ranks[rank] for rank in chosen)

    def each(self, signature: Signature, **kwargs: Any) -> None:
        """All ranks make the call."""
        for rank in self.ranks.values():
            rank.calls(signature, **kwargs)

    def new_group(self, name: str, ranks: Sequence[int]) -> None:
        """All ranks create the group, as they should."""
        for rank in self.ranks.values():
            rank.creates(name, ranks)

    def on_nccl(self) -> None:
        """The groups that there are make their calls on GPUs."""
        for rank in self.ranks.values():
            groups = rank.groups
            groups.update({key: replace(one, backend="nccl") for key, one in groups.items()})

    def tick(self) -> int:
        self.now_ns += MS
        return self.now_ns

    def passes(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            taken_ns=self.now_ns,
            world_size=self.size,
            ranks={number: rank.frozen() for number, rank in self.ranks.items()},
            rivals=tuple(rival.frozen() for rival in self.rivals),
            finished=self.finished,
            clock_errors_ns=dict(self.clock_errors_ns),
        )

    def diagnose(self, *, settled: bool = True) -> Diagnosis:
        """Two looks in which nobody moves. `settled`: long enough after for held-back evidence."""
        previous = self.snapshot()
        self.passes(1.0 if settled else 0.05)
        return diagnose(self.snapshot(), previous, self.limits)

    def errors(self, *, settled: bool = True) -> list[Any]:
        findings = self.diagnose(settled=settled).findings
        return [finding for finding in findings if finding.severity == "error"]

    @contextmanager
    def between(self) -> Iterator[list[Diagnosis]]:
        """What happens inside the block happens between the two looks."""
        previous = self.snapshot()
        result: list[Diagnosis] = []
        yield result
        self.passes(0.05)
        result.append(diagnose(self.snapshot(), previous, self.limits))


def summary(finding: Any) -> tuple[str, tuple[int, ...], tuple[int, ...], Mapping[str, Any]]:
    """kind, culprits, victims, and the rest that tests assert most."""
    rest = {"seq": finding.seq, "proven": finding.proven, "cause": finding.cause}
    return finding.kind, finding.culprits, finding.victims, rest
