"""A reader's knowledge of a run at one moment: the only input of the diagnosis.

A `Snapshot` is immutable, but for `History`, which may read a rank's ring only when it is asked,
since most of the time nobody asks. Times are Unix time in nanoseconds, on every host.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from .layout import Activity, CallState, GroupState, Phase
from .layout import CallSite as CallSite
from .ops import POINT_TO_POINT
from .signature import ANY_SOURCE, Signature, place_key

GroupKey = tuple[str, int]
"""torch's group name, and how often this process had created that name before (0, 1, ...)."""


@dataclass(frozen=True, slots=True)
class Place:
    """The user's line that a call comes from and those that led to it, innermost first: `sites` has
    one at least. Places are equal where their `key` is, which is the same on all hosts, wherever
    the program lies there, and never 0."""

    sites: tuple[CallSite, ...] = field(compare=False)
    key: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sites = ((one.file, one.line, one.function, one.through) for one in self.sites)
        object.__setattr__(self, "key", place_key(sites))


@dataclass(frozen=True, slots=True)
class Surprise:
    """A call that came from another place than expected. `place`: None where it is not known. Until
    the next surprise each call came from where the call `period` before it came from."""

    seq: int
    place: Place | None
    period: int


class LineLog(Protocol):
    """The places of the calls of a rank in a group or channel, as surprises: see `record.lines`.

    It has all calls from its first surprise on, which is #0 but where a record has lost the oldest
    ones. `mark`: equal marks of two logs say that their calls came from the same places, up to the
    smaller number of calls. `surprises` are read when they are asked for, since most are not.
    """

    @property
    def mark(self) -> Hashable: ...

    @property
    def surprises(self) -> Sequence[Surprise]: ...


@dataclass(frozen=True, slots=True)
class Call:
    """A collective or point-to-point call of one rank.

    `seq` counts collectives from 0 per group; for send and recv it counts per channel.
    `chain`, `exact` and `balance` are the group's (or channel's) after this call. `agrees`: it
    enters the backend only when all ranks of the group have made it. `bounded`: its thread goes on
    by itself, within `layout.BOUNDED_S`, if they do not; it has done so when the call is STARTED.
    `place`: `site` with its callers; None where other ranks' calls may come from elsewhere, too.
    """

    number: int
    group: GroupKey
    seq: int
    signature: Signature
    site: CallSite | None
    thread: int
    state: CallState
    is_async: bool = False
    agrees: bool = False
    bounded: bool = False
    chain: int = 0
    exact: int = 0
    balance: int = 0
    issued_ns: int = 0
    started_ns: int = 0
    completed_ns: int = 0
    place: Place | None = field(default=None, compare=False, repr=False)


class Timing(NamedTuple):
    """The time when a call was made and when it was over, and no more: what is read of thousands of
    calls.

    `message` is (op, peer, tag) of a send or receive, and None of a collective. `blocks`: the
    thread stayed in the call until it was over. `completed_ns` is 0 as long as it is not over.
    """

    number: int
    group: GroupKey
    message: tuple[str, int, int] | None
    seq: int
    blocks: bool
    issued_ns: int
    completed_ns: int

    @classmethod
    def of(cls, call: Call) -> Timing:
        """Describes a call of which all is known."""
        signature = call.signature
        message = None
        if signature.peer is not None:
            message = (signature.op, signature.peer, signature.tag or 0)
        return cls(
            call.number,
            call.group,
            message,
            call.seq,
            not call.is_async,
            call.issued_ns,
            call.completed_ns,
        )


@dataclass(frozen=True, slots=True)
class Group:
    """A group as one of its ranks sees it.

    `ranks` are global ranks in group order. `issued` collectives were called, so the next one
    has that sequence number. `last` is the number of the last call, or None.

    From a record whose ranks issue calls ahead of their devices: `begun` of the issued collectives
    are not behind an older call of the rank that pends, and `completed` are over (None: as many as
    are issued). Without `members_known`, `ranks` are those who have called in the group. `lines`:
    None where the lines of its calls are not known.
    """

    key: GroupKey
    desc: str
    ranks: tuple[int, ...]
    backend: str
    state: GroupState
    issued: int = 0
    chain: int = 0
    exact: int = 0
    balance: int = 0
    last: int | None = None
    timeout_s: float | None = None
    begun: int | None = None
    completed: int | None = None
    members_known: bool = True
    lines: LineLog | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Channel:
    """The sends (or receives) of a rank to (or from) one peer with one tag.

    `peer` is a global rank, -1 for any source. `chain` covers dtype and count of each call.
    `begun` and `lines` are as those of a `Group`. `taken`: further messages of the
    peer with this tag, which receives from any source have taken.
    """

    group: GroupKey
    op: str
    peer: int
    tag: int
    issued: int
    chain: int
    last: int | None
    begun: int | None = None
    taken: int = 0
    lines: LineLog | None = field(default=None, compare=False, repr=False)

    @property
    def place(self) -> Hashable:
        """The same as `place_of` its calls."""
        return (self.group, self.op, self.peer, self.tag)


def place_of(call: Call) -> Hashable:
    """Returns the group or channel in which calls of a rank have an order."""
    signature = call.signature
    if signature.peer is None:
        return call.group
    return (call.group, signature.op, signature.peer, signature.tag)


@dataclass(frozen=True, slots=True)
class Creation:
    """A group creation that every rank must take part in, the `index`-th of this process.

    `world_seq`: how many collectives of the default group had been issued before it.
    """

    index: int
    group: GroupKey
    ranks: tuple[int, ...]
    backend: str
    site: CallSite | None
    world_seq: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The activity of one thread in the layer right now (`Activity.NONE`: nothing).

    `call` is the number of the call it is in. `detail` describes any other wait: `op`, and
    `key`, `store`, `address`, `ranks`, ... as fits. `serial` changes with every change of the
    thread's activity: the same serial in two snapshots means that it never moved in between.
    `inferred`: nothing reported this wait to the layer; the thread was seen idle below its call.
    `guessed`: even that is a guess: the thread stands still while its call is under way on a GPU,
    or `asks` again and again whether the call is over; it counts among the rank's free threads, so
    that nothing is proven by it.
    """

    thread: int
    activity: Activity
    serial: int
    since_ns: int
    call: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    site: CallSite | None = None
    inferred: bool = False
    guessed: bool = False
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """Something a rank put on record. `notes` has a type for each kind, which reads its `data`."""

    kind: str
    time_ns: int
    message: str
    site: CallSite | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Digest:
    """The state of a replica and its optimiser at one moment, in 64 bits.

    `moment`: how many collectives of the group had been issued, and how many-th digest since then
    it is: the same on all ranks, whatever steps they have left out. `step`: steps made so far.
    `alone`: the rank made this step without the others; `apart`: this one, or one before it.
    `busy`: ranks may have made it equal themselves since the first digest, or since the first step
    that they made alone. `no_sync`: alone since it was below DDP's no_sync().
    `loaded`: a state was loaded since the step before.
    """

    moment: tuple[int, int]
    step: int
    total: int
    time_ns: int
    site: CallSite | None
    alone: bool = False
    apart: bool = False
    busy: bool = False
    no_sync: bool = False
    loaded: bool = False


class Column(NamedTuple):
    """The quantity that a value of a replica belongs to: a parameter, a gradient, ..."""

    quantity: str
    name: str


class Replicas(Protocol):
    """The parameters of one optimiser that must be the same on all ranks of a group, and what else
    must be so for that: see `record.replicas`.

    `key` tells them apart from others: it is the same on all ranks that have the same parameters.
    `columns`: quantity and name of each of the `values`. `axis`: that of a device mesh along which
    they are equal, if they are a part of something. `unreduced`: the parameters that their DDP
    never had, for they were frozen, or did not exist, when it was made. `like`: they only seem to
    be replicas, since the program treats these parameters, which are like them, as such. `late`:
    they were looked at within a precheck, from whose begin steps are counted. `use`: these are all
    parameters beside an optimiser's, of which the first digest tells which may be replicas on a
    group of this use, by the `traits` of each column (see `record.replicas`); "": replicas.
    `elements`: dtype and count of those of the first columns, as far as known.
    """

    group: GroupKey
    key: str
    axis: str
    columns: Sequence[Column]
    unreduced: frozenset[str]
    like: Sequence[str]
    late: bool
    use: str
    traits: Sequence[frozenset[str]]
    elements: Sequence[tuple[str, int]]

    def digests(self) -> Sequence[Digest]:
        """The last ones, oldest first."""

    def values(self, moment: tuple[int, int]) -> Sequence[int] | None:
        """64 bits for each column at that moment; None when they were overwritten."""

    def samples(self, moment: tuple[int, int], column: Column) -> Sequence[float]:
        """Elements of a column at that moment, the same ones on all ranks (NaN: there was none)."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A place in the user's code at which it goes on in one of several ways: the `source` line, and
    the `part` of it that decides ("": all of it). `names`: what its condition reads, as it is
    written; `shown`: the texts before, between and behind these in the condition (nothing where it
    is no comparison)."""

    file: str
    line: int
    function: str
    source: str
    part: str = ""
    names: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()

    @property
    def key(self) -> Hashable:
        """The same on all hosts, wherever the program lies there."""
        return (*re.split(r"[/\\]", self.file)[-2:], self.line, self.function, self.part)


ITEM, NO_MORE = "an item", "no more items"
"""The outcomes of a loop over things."""
OFF_AND_ON = "off"
"""The outcome of a branch that is taken too often to be followed: nothing is known of it in that
interval."""


class Taken(NamedTuple):
    """A branch that a rank took, and the values of its names then: each None where nothing but the
    user's code could tell it; None where they are not on record."""

    branch: Branch
    outcome: str
    values: tuple[str | None, ...] | None


class Interval(NamedTuple):
    """The branches that a thread took up to a call: of a `group`, with this sequence number, or a
    message (`seq`: None). Without `called` it has made none yet."""

    group: GroupKey | None
    seq: int | None
    thread: int
    called: bool
    taken: tuple[Taken, ...]


class Branches(Protocol):
    """The branches that a rank took between its calls: see `record.writing.branch_writer`."""

    @property
    def on_record(self) -> bool:
        """Whether there are any."""

    def intervals(self, group: GroupKey, after: int) -> Sequence[Interval] | None:
        """Returns those after call `after` of the group (-1: from the start), oldest first; None
        where they are not all on record."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """The look of a process from outside while no process of its run uses a core or moves.

    `since_ns`: it has stood where it stands for as long as that, at least. `site` is the user's
    line in its `thread` ("": the main thread), and `call` what that line has called. `leaving`: the
    main thread has run the program to its end, and waits for this thread, or in an exit handler.
    `locked`: it waits for a lock, a queue or another thread of its process. `awaits`: `for
    127.0.0.1:80`, or `with /tmp/lock in hand` where it has that path among its variables; `others`:
    where further threads of the program stand. `goes_on`: why the run may go on by itself all the
    same, as `rank 0 waits for its input`; "" where nothing was seen of that.
    """

    since_ns: int
    thread: str = ""
    site: CallSite | None = None
    call: str = ""
    leaving: bool = False
    locked: bool = False
    awaits: str = ""
    others: tuple[str, ...] = ()
    goes_on: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """A process as the operating system sees it; a reader of a dead run only has `alive=False`.

    `state` is the letter of /proc (R, S, D, T, Z), "" when unknown. `exit_code` is None and
    `signal` is None while it lives, or when nobody could tell. `asked`: the signal came from its
    parent, who ends its own children so (multiprocessing's `terminate`); `replaced`: a launcher's,
    for a world of another size, though the rank had not failed. `standstill`: None where it may
    move, or nobody has looked.
    """

    alive: bool
    state: str = ""
    exit_code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    ended_ns: int | None = None
    cpu_busy: bool | None = None
    asked: bool = False
    replaced: bool = False
    standstill: Standstill | None = None


class History(Protocol):
    """A rank's last calls. Every method answers None (or less) for what was overwritten."""

    def call(self, number: int) -> Call | None:
        """The call with this number."""

    def at(self, group: GroupKey, seq: int) -> Call | None:
        """The collective with this sequence number."""

    def message(self, channel: Channel, seq: int) -> Call | None:
        """The send or receive with this number in its channel."""

    def recent(self, count: int, group: GroupKey | None = None) -> Sequence[Call]:
        """The last calls, oldest first, of the whole rank or of one group's collectives."""

    def timings(self, numbers: Iterable[int]) -> Sequence[Timing]:
        """Returns when those of these calls were made that are still on record, and that the
        backend did not refuse."""

    def chains_after(self, group: GroupKey, issued: int) -> tuple[int, int, int] | None:
        """chain, exact and balance after that many collectives of the group."""


class RecalledHistory(History, ABC):
    """The history of a rank whose calls are known from elsewhere: a plan, the dump of another
    recorder. Each is made when it is asked for, since of most nobody asks."""

    @abstractmethod
    def numbers(self, group: GroupKey | None) -> Sequence[int]:
        """The numbers of the calls, oldest first; those of a group may have others among them."""

    @abstractmethod
    def number_of(self, place: Hashable, seq: int) -> int | None:
        """The number of a call, by its `place_of` and its sequence number there."""

    def at(self, group: GroupKey, seq: int) -> Call | None:
        """The collective with this sequence number."""
        number = self.number_of(group, seq)
        return None if number is None else self.call(number)

    def message(self, channel: Channel, seq: int) -> Call | None:
        """The send or receive with this number in its channel."""
        number = self.number_of(channel.place, seq)
        return None if number is None else self.call(number)

    def recent(self, count: int, group: GroupKey | None = None) -> Sequence[Call]:
        """The last calls, oldest first, of the whole rank or of one group's collectives."""
        found: list[Call] = []
        for number in reversed(self.numbers(group)):
            if len(found) >= count:
                break
            call = self.call(number)
            if call is not None and group in (None, place_of(call)):
                found.append(call)
        return found[::-1]

    def timings(self, numbers: Iterable[int]) -> Sequence[Timing]:
        """Returns when those of these calls were made that are on record."""
        return [Timing.of(call) for call in map(self.call, numbers) if call is not None]


@dataclass(frozen=True, slots=True)
class Rank:
    """The record of a rank. `heartbeat_ns` is when its heartbeat thread last ran (0: never),
    `exiting_ns` when it began to leave (0: it has not): its process may take long to end after
    that.

    `free_threads`: threads with user code on their stack that are in no recorded wait (-1: not
    counted since the last change), so that the rank as a whole may still act. `location` is where
    the main thread stood at the last heartbeat. `layer_serial` changes when any wait changes.
    `joins`: it has begun to make a group as this rank, and is not only named so by its environment,
    which its helper processes share. `max_restarts`: so often its launcher restarts it, at most.
    `node`: the node of the job that reported it; 0: this one.
    """

    rank: int
    world_size: int
    pid: int
    process: Process
    host: str = ""
    job: str = ""
    joins: bool = True
    local_rank: int = -1
    restart_count: int = 0
    max_restarts: int = 0
    started_ns: int = 0
    phase: Phase = Phase.RUNNING
    heartbeat_ns: int = 0
    calls: int = 0
    exit_code: int | None = None
    exiting_ns: int = 0
    layer_serial: int = 0
    free_threads: int = 0
    location: CallSite | None = None
    groups: Mapping[GroupKey, Group] = field(default_factory=dict)
    channels: Sequence[Channel] = ()
    creations: Sequence[Creation] = ()
    waits: Sequence[Wait] = ()
    notes: Sequence[Note] = ()
    replicas: Sequence[Replicas] = ()
    history: History | None = None
    branches: Branches | None = field(default=None, compare=False, repr=False)
    node: int = 0


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node of the job whose supervisor has fallen silent. `heard_ns`: when it was heard last;
    `ranks`: those on it, as far as that is known. `others`: the hosts of further nodes that are
    lost, where it is not known which of these ranks are on which of them."""

    host: str
    heard_ns: int
    ranks: tuple[int, ...]
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Knows:
    """The questions that the entrance of a snapshot can answer; a rule abstains from the others.

    `clock`: there is a moment that is now, so that waits have lasted. `sequence`: which calls of a
    group belong together, and not only what each rank is in. `root`: which rank a
    broadcast comes from. `messages`: sends and receives are on record. `completion`: a call that
    is over is known to have been completed, and not only put away. A snapshot of our own records
    has it all.
    """

    clock: bool = True
    sequence: bool = True
    root: bool = True
    messages: bool = True
    completion: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All ranks of one world at one moment.

    `ranks` holds one process per rank that has said which rank it is. `rivals` are further
    processes that claim one of these ranks and were there at the same time.
    `world_size` is the expected size (0: unknown).
    `finished`: no process of the run is left, nothing more will come.
    `over`: so it is, and the ranks are as they were when the run was killed; who has no record then
    has lost it.
    `lost`: the nodes of the job that have fallen silent. `clock_errors_ns`: of each other node, how
    far its times may be off, which are given by this node's clock.
    `unreadable`: ranks that are there, as their records' names say, and whose records nobody can
    read: why, each as the note of a layer that is off.
    `knows`: the questions that its entrance can answer.
    """

    taken_ns: int
    world_size: int
    ranks: Mapping[int, Rank]
    rivals: Sequence[Rank] = ()
    finished: bool = False
    over: bool = False
    lost: Sequence[LostNode] = ()
    clock_errors_ns: Mapping[int, int] = field(default_factory=dict)
    unreadable: Mapping[int, Note] = field(default_factory=dict)
    knows: Knows = Knows()

    @property
    def world(self) -> tuple[str, int]:
        """Tells one world of a run from another, in all its snapshots; it must have ranks."""
        first = next(iter(self.ranks.values()))
        return (first.job, min(rank.started_ns for rank in self.ranks.values()))

    def between_clocks_ns(self, ranks: Iterable[int], others: Iterable[int]) -> int:
        """Returns by how much the times of one of these ranks may be off those of one of the
        others."""
        errors, known = self.clock_errors_ns, self.ranks
        ours, theirs = (
            {known[one].node for one in some if one in known} for some in (ranks, others)
        )
        return max(
            (errors.get(a, 0) + errors.get(b, 0) for a in ours for b in theirs if a != b), default=0
        )


def tie_of(rank: int, call: Call, group: GroupKey) -> tuple[Hashable, ...]:
    """Returns what calls of several ranks have in common that belong together: a collective's, or a
    send and its receive. `group`: what the call's is to be taken for. Of a receive from any source
    nobody knows what it belongs to."""
    signature = call.signature
    if signature.op not in POINT_TO_POINT:
        return ("collective", group, call.seq)
    if signature.peer in (None, ANY_SOURCE):
        return ("alone", group, rank, call.number)
    ends = (rank, signature.peer) if signature.op == "send" else (signature.peer, rank)
    return ("message", group, ends, signature.tag, call.seq)


_PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir))
_HERE = tuple(
    os.path.join(folder, "")
    for folder in (
        _PACKAGE,
        *(os.path.join(os.path.dirname(_PACKAGE), name) for name in ("distcore", "tui")),
    )
)
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\](?:distdebug|distcore)[/\\]")


def is_own(file: str) -> bool:
    """Whether the file, or a line that begins with one, is of this tool."""
    return file.startswith(_HERE) or _INSTALLED.search(file) is not None
