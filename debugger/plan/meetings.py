"""Meetings of the ranks of a simulation: collectives, messages, and the creation of groups; what
each rank has done so far, and what its threads stand in.

An `End` is what a thread waits for. A call that ends alike for all of its ranks is one `End` that
they share (the `Meeting` itself); where it ends for each in its own time they have others.

For whom a call waits is told by the diagnosis' model of blocking (`Model`). Which calls meet is
not: `diagnosis/facts/needs` compares how many both sides have made when all stand still, and has no
order of events; here each call meets its other side as it is made. Of the waits in which 600 random
plans end it lets a third go on: those in calls to which all have come that do not fit, whose
message another receive has taken, or whose sender has ended without it. Other rules judge these.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..diagnosis.facts.blocking import (
    Model,
    WaitsFor,
    backend_of,
    on_device,
    tree_children,
    tree_parent,
)
from ..record.layout import Activity
from ..record.ops import op_of
from ..record.signature import (
    ANY_SOURCE,
    CHAIN_STEP,
    MASK,
    Signature,
    agreement_hash,
    call_bytes,
    exact_hash,
    hash64,
)
from ..record.snapshot import Call, CallSite, Creation, GroupKey, Note
from .program import CutOff, Ended, Made, Program, Waited


@dataclass(slots=True, eq=False)
class End:
    """The end of a call: `done_ns` is 0 until then. Threads are parked at it (see `simulation`)."""

    done_ns: int = 0


@dataclass(slots=True, eq=False)
class Meeting(End):
    """A collective of a group. `bad`: its ranks do not fit, and nobody who waits gets out.
    `ready`: all have come; on a device the group's calls before this one may still be under way.
    `of_root`: for those who wait for the root alone. `splits`: by place in the group, where what
    one sends must be what the other expects."""

    agree: int = 0
    bad: bool = False
    came: int = 0
    ready: bool = False
    of_root: End | None = None
    tree: Tree | None = None
    splits: dict[int, Signature] = field(default_factory=dict)

    def splits_fit(self) -> bool:
        """Whether each rank receives what the others send to it; all have come."""
        rows = sorted(self.splits)
        expected = [self.splits[row].receives for row in rows]
        sent = [self.splits[row].sends for row in rows]
        if any(len(row) != len(rows) for row in (*expected, *sent)):
            return not any(expected) and not any(sent)
        return list(zip(*expected, strict=True)) == sent


@dataclass(slots=True)
class Tree:
    """A broadcast from hand to hand: each place of the group has an end of its own."""

    _size: int
    _root: int
    _ends: dict[int, End] = field(default_factory=dict)
    _with_data: set[int] = field(default_factory=set)

    def comes(self, place: int) -> tuple[End, list[End]]:
        """A rank comes: its end, and all ends that this brings about (its own may be one)."""
        own = self._ends[place] = End()
        parent = tree_parent(place, self._root, self._size)
        touched = [place] if parent is None else [place, parent]
        todo = [place] if parent is None or parent in self._with_data else []
        while todo:
            at = todo.pop()
            self._with_data.add(at)
            touched.append(at)
            children = tree_children(at, self._root, self._size)
            todo += [child for child in children if child in self._ends]
        return own, [
            self._ends[one]
            for one in touched
            if one in self._with_data
            and not self._ends[one].done_ns
            and all(child in self._ends for child in tree_children(one, self._root, self._size))
        ]


@dataclass(slots=True, eq=False)
class Posted:
    """A send or a receive that has not met its other side. `order`: in which all were posted;
    `number`: of the call, as its rank has made them. `room`: what its buffer is for, if it may be
    buffered: source, destination, and tag or None; `held_bytes`: what it takes of that once it is
    over. `into`: the channels of the rank, if it receives from any source."""

    end: End
    rank: int
    time_ns: int
    order: int
    size_bytes: int = 0
    number: int = 0
    room: tuple[int, int, int | None] | None = None
    held_bytes: int | None = None
    into: ChannelCounts | None = None

    def takes(self, sent: Posted, group: GroupKey, tag: int) -> None:
        """This receive takes that message."""
        if self.into is not None:
            self.into.setdefault((group, "recv", sent.rank, tag), ChannelCount()).taken += 1


@dataclass(slots=True)
class Buffered:
    """The sends that may be buffered in one room and are not received, in order."""

    held_bytes: int = 0
    """Of the first ones, which are over: none of them is looked at again."""
    others: deque[Posted] = field(default_factory=deque)


@dataclass(slots=True)
class MeetingPlace:
    """A group as its ranks share it. `size`: how many of them are in the plan."""

    key: GroupKey
    ranks: tuple[int, ...]
    size: int
    places: dict[int, int] = field(default_factory=dict)
    meetings: dict[int, Meeting] = field(default_factory=dict)
    next_on_device: int = 0
    """The first call that is not complete, where one ends after the other."""
    _sends: dict[tuple[int, int], dict[int, deque[Posted]]] = field(default_factory=dict)
    """By destination and tag, then by source."""
    _receives: dict[tuple[int, int, int], deque[Posted]] = field(default_factory=dict)
    """By destination, tag and source."""
    _short: dict[tuple[int, int, int | None], Buffered] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = {rank: place for place, rank in enumerate(self.ranks)}

    @property
    def whole(self) -> bool:
        """All of its ranks are in the plan."""
        return self.size == len(self.ranks)

    def receive_for(self, source: int, destination: int, tag: int) -> Posted | None:
        """The posted receive that takes a message now: the first of those that may."""
        rows = (
            self._receives.get((destination, tag, source)),
            self._receives.get((destination, tag, ANY_SOURCE)),
        )
        waiting = [row for row in rows if row]
        return min(waiting, key=lambda row: row[0].order).popleft() if waiting else None

    def send_for(self, source: int, destination: int, tag: int) -> Posted | None:
        """The message that a receive takes now; from any source the one that was sent first."""
        by_source = self._sends.get((destination, tag), {})
        if source == ANY_SOURCE:
            source = min(
                (one for one, queue in by_source.items() if queue),
                key=lambda one: (by_source[one][0].time_ns, one),
                default=ANY_SOURCE,
            )
        queue = by_source.get(source)
        if not queue:
            return None
        found = queue.popleft()
        if found.room is not None:
            buffer = self._short[found.room]
            if found.held_bytes is not None:
                buffer.held_bytes -= found.held_bytes
            else:
                buffer.others.remove(found)
        return found

    def post_send(self, sent: Posted, destination: int, tag: int) -> None:
        """A message that nobody receives yet."""
        by_source = self._sends.setdefault((destination, tag), {})
        by_source.setdefault(sent.rank, deque()).append(sent)
        if sent.room is not None:
            self._short.setdefault(sent.room, Buffered()).others.append(sent)

    def buffered(self, sent: Posted, room_bytes: int) -> Iterator[Posted]:
        """The sends, among those in one buffer with this one, that are over by now."""
        if sent.room is None:
            return
        buffer = self._short[sent.room]
        while buffer.others and buffer.others[0].end.done_ns:
            first = buffer.others.popleft()
            first.held_bytes = max(first.size_bytes, min(1, room_bytes))
            buffer.held_bytes += first.held_bytes
        held_bytes = buffer.held_bytes
        for one in buffer.others:
            held_bytes += max(one.size_bytes, min(1, room_bytes))
            if held_bytes > room_bytes:
                return
            if not one.end.done_ns:
                yield one

    def post_receive(self, received: Posted, source: int, tag: int) -> None:
        """A receive for which nothing was sent yet."""
        queue = self._receives.setdefault((received.rank, tag, source), deque())
        queue.append(received)

    def forget(self, rank: int) -> None:
        """The process has ended: what it had posted and not seen through will not happen."""
        for by_source in self._sends.values():
            queue = by_source.get(rank)
            if queue:
                kept = [one for one in queue if one.end.done_ns]
                queue.clear()
                queue.extend(kept)
        for (destination, _, _), receives in self._receives.items():
            if destination == rank:
                receives.clear()


@dataclass(slots=True)
class Membership:
    """A group as one rank is in it. `ready`: it has made it; `kinds`: see `simulation`."""

    place: MeetingPlace
    at: int
    backend: str
    ready: bool = True
    destroyed: bool = False
    issued: int = 0
    chain: int = 0
    exact: int = 0
    last: int | None = None
    kinds: dict[int, Kind] = field(default_factory=dict)


@dataclass(slots=True)
class ChannelCount:
    """The sends, or receives, of a rank in one channel."""

    issued: int = 0
    chain: int = 0
    last: int | None = None
    taken: int = 0


ChannelCounts = dict[tuple[GroupKey, str, int, int], ChannelCount]
"""By group, op, peer and tag."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The wait that a thread stands still in. `number`: of the call, as the rank has made them."""

    activity: Activity
    since_ns: int
    number: int | None = None
    site: CallSite | None = None
    detail: dict[str, Any] = field(default_factory=dict)


class Standing:
    """The state of a rank. What is known of each call is in lists of equal length, by its
    number."""

    def __init__(self, program: Program, start_ns: int) -> None:
        self.program = program
        self.start_ns = start_ns
        self.groups: dict[GroupKey, Membership] = {}
        self.channels: ChannelCounts = {}
        self.calls: list[Call] = []
        self.seqs = array("q")
        self.issued_ns = array("q")
        self.ends: list[End | int] = []
        """When each was over: a time, or what is waited for."""
        self.by_number: dict[int, int] = {}
        """Of the calls whose number in the program is another one."""
        self.creations: list[Creation] = []
        self.notes: list[Note] = []
        self.exit: Ended | None = None
        self.ended_ns = 0
        self.cut: CutOff | None = None
        self.posted = False
        """It has made messages that might still be open when it ends."""
        self.lost = lost_sends(program)
        self.site: CallSite | None = None
        """The line of the last thing that it did."""

    def own_number(self, number: int) -> int | None:
        """The place in the lists of the call that has this number in the program."""
        found = self.by_number.get(number, number)
        if found < len(self.calls) and self.calls[found].number == number:
            return found
        return None

    def done_ns(self, number: int) -> int:
        """When the call was over; 0: it is under way."""
        end = self.ends[number]
        return end if isinstance(end, int) else end.done_ns


def lost_sends(program: Program) -> frozenset[int]:
    """The numbers of sends that the rank never waits for, when nothing that it does afterwards
    involves their receivers: it ends, and nobody knows whether they have left by then."""
    waited = {event.number for event in program.events if isinstance(event, Waited)}
    met: set[int] = set()
    lost = []
    for event in reversed(program.events):
        if not isinstance(event, Made):
            continue
        call = event.call
        peer = call.signature.peer
        if call.signature.op == "send" and call.is_async and call.number not in waited:
            if peer not in met:
                lost.append(call.number)
            continue
        group = program.groups.get(call.group)
        met.update([peer] if peer is not None else group.ranks if group is not None else ())
        if group is not None and len(met) >= program.world_size:
            break
    return frozenset(lost)


class Kind:
    """All that the simulation needs to know of a signature, in one group of one rank."""

    __slots__ = ("agree", "backend", "blocks", "exact", "on_device", "signature", "splits", "waits")

    def __init__(
        self,
        model: Model,
        signature: Signature,
        member: Membership,
        rank: int,
        hashes: tuple[int, int],
    ) -> None:
        self.signature = signature  # which keeps its id
        rule = op_of(signature.op)
        self.backend = backend = backend_of(member.backend, signature)
        self.on_device = on_device(backend)
        self.blocks = model.blocks_host(backend, signature.op)
        self.splits = rule.splits
        self.agree, self.exact = hashes
        self.waits = WaitsFor.ALL
        if signature.peer is None:
            self.waits = model.collective(backend, signature, len(member.place.ranks), rank)


def hashes_of(signature: Signature) -> tuple[int, int]:
    """Returns what a call adds to the chains of its group, or of its channel."""
    if signature.peer is not None:
        content = hash64((signature.dtypes, signature.counts))
        return content, content
    return agreement_hash(signature), exact_hash(signature)


class Calls:
    """The calls of all ranks: a rank makes one, and those that are over by it end. `planned`: the
    ranks of the plan; whom it does not have, nobody waits for. `over` wakes those who wait for an
    end."""

    def __init__(
        self, model: Model, planned: frozenset[int], over: Callable[[End, int], None]
    ) -> None:
        self._model = model
        self._planned = planned
        self._over = over
        self._order = itertools.count()
        self._hashes: dict[int, tuple[int, int]] = {}
        """By the id of the signature, which the programs keep alive."""

    def kind_of(self, rank: Standing, member: Membership, signature: Signature) -> Kind:
        """Returns what there is to know of calls with this signature in this group, of which this
        is the rank's first."""
        known = self._hashes.get(id(signature))
        if known is None:
            known = self._hashes[id(signature)] = hashes_of(signature)
        kind = Kind(self._model, signature, member, rank.program.rank, known)
        member.kinds[id(signature)] = kind
        return kind

    def collective(
        self, rank: Standing, member: Membership, kind: Kind, number: int, now_ns: int
    ) -> End | int:
        place = member.place
        seq = member.issued
        member.issued = seq + 1
        member.last = number
        member.chain = (member.chain * CHAIN_STEP + kind.agree) & MASK
        if kind.exact != kind.agree:
            member.exact = (member.exact + kind.exact * (2 * seq + 1)) & MASK
        meeting = place.meetings.get(seq)
        if meeting is None:
            meeting = place.meetings[seq] = Meeting(agree=kind.agree)
        elif meeting.agree != kind.agree:
            meeting.bad = True
        meeting.came += 1
        if kind.splits:
            meeting.splits[member.at] = kind.signature
        all_came = meeting.came == place.size
        if all_came:
            if kind.splits and place.whole and not meeting.splits_fit():
                meeting.bad = True
            if kind.on_device:
                meeting.ready = True
                self._over_on_device(place, now_ns)
            else:
                del place.meetings[seq]
                if not meeting.bad:
                    self._over(meeting, now_ns)
        if kind.signature.root == rank.program.rank:
            meeting.of_root = meeting.of_root or End()
            if not meeting.bad and not meeting.of_root.done_ns:
                self._over(meeting.of_root, now_ns)
        if kind.waits is WaitsFor.ALL:
            return meeting
        if kind.waits is WaitsFor.NOBODY:
            return now_ns
        if kind.waits is WaitsFor.TREE and place.whole:
            if meeting.tree is None:
                root = place.places.get(kind.signature.root or 0, 0)
                meeting.tree = Tree(len(place.ranks), root)
            own, over = meeting.tree.comes(member.at)
            if not meeting.bad:
                for end in over:
                    self._over(end, now_ns)
            return own
        if meeting.of_root is None:
            meeting.of_root = End()
            if kind.signature.root not in self._planned:
                meeting.of_root.done_ns = now_ns
        return meeting.of_root

    def _over_on_device(self, place: MeetingPlace, now_ns: int) -> None:
        while True:
            meeting = place.meetings.get(place.next_on_device)
            if meeting is None or not meeting.ready or meeting.bad:
                return
            del place.meetings[place.next_on_device]
            place.next_on_device += 1
            self._over(meeting, now_ns)

    def message(
        self,
        rank: Standing,
        member: Membership,
        call: Call,
        kind: Kind,
        number: int,
        now_ns: int,
    ) -> tuple[int, End | int]:
        signature, own, place = kind.signature, rank.program.rank, member.place
        peer = signature.peer
        assert peer is not None
        channel = rank.channels.setdefault(
            (call.group, signature.op, peer, signature.tag), ChannelCount()
        )
        seq = channel.issued
        channel.issued = seq + 1
        channel.chain = (channel.chain * CHAIN_STEP + kind.agree) & MASK
        channel.last = number
        if peer == ANY_SOURCE:
            peer = rank.program.came_from.get(call.number, ANY_SOURCE)
        if peer != ANY_SOURCE and peer not in self._planned:
            return seq, now_ns
        tag = 0 if kind.on_device else signature.tag  # NCCL knows none
        end = End()
        if self._model.strict and call.number in rank.lost:
            return seq, end
        size_bytes = call_bytes(signature)
        posted = Posted(end, own, now_ns, next(self._order), size_bytes, number)
        if signature.peer == ANY_SOURCE:
            posted.into = rank.channels
        room_bytes = self._model.room_bytes(kind.backend)
        if signature.op == "send":
            other = place.receive_for(own, peer, tag)
            if other is None:
                if posted.size_bytes <= room_bytes:
                    shared = self._model.is_shared(kind.backend)
                    posted.room = own, peer, None if shared else tag
                place.post_send(posted, peer, tag)
                if any(one is posted for one in place.buffered(posted, room_bytes)):
                    end.done_ns = now_ns
        else:
            other = place.send_for(peer, own, tag)
            if other is None:
                place.post_receive(posted, peer, tag)
            else:
                for one in place.buffered(other, room_bytes):
                    self._over(one.end, now_ns)
        if other is None:
            if peer == ANY_SOURCE and not place.whole:
                return seq, now_ns  # it may come from a rank that is not in the plan
            rank.posted = True
            return seq, end
        sent, received = (posted, other) if signature.op == "send" else (other, posted)
        received.takes(sent, call.group, signature.tag)
        if not other.end.done_ns:
            self._over(other.end, max(now_ns, other.time_ns))
        return seq, max(now_ns, other.time_ns)
