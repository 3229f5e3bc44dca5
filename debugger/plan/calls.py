"""Calls of a simulation: a rank makes one, and those that are over by it end."""

from __future__ import annotations

import itertools

from ..diagnosis.facts.blocking import Model, WaitsFor, backend_of, on_device
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
from ..record.snapshot import Call
from .meetings import End, Meeting, MeetingPlace, Posted, Tree
from .runnable import Runnable
from .standing import ChannelCount, Membership, Standing


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
    """What a call adds to the chains of its group, or of its channel."""
    if signature.peer is not None:
        content = hash64((signature.dtypes, signature.counts))
        return content, content
    return agreement_hash(signature), exact_hash(signature)


class Calls:
    """`planned`: the ranks of the plan; whom it does not have, nobody waits for."""

    def __init__(self, model: Model, planned: frozenset[int], runnable: Runnable) -> None:
        self._model = model
        self._planned = planned
        self._runnable = runnable
        self._order = itertools.count()
        self._hashes: dict[int, tuple[int, int]] = {}
        """By the id of the signature, which the programs keep alive."""

    def kind_of(self, rank: Standing, member: Membership, signature: Signature) -> Kind:
        """What there is to know of calls with this signature in this group, of which this is the
        rank's first."""
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
            meeting = place.meetings[seq] = Meeting(kind.agree)
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
                    self._runnable.over(meeting, now_ns)
        if kind.signature.root == rank.program.rank:
            self._root_came(meeting, now_ns)
        if kind.waits is WaitsFor.ALL:
            return meeting
        if kind.waits is WaitsFor.NOBODY:
            return now_ns
        if kind.waits is WaitsFor.TREE and place.whole:
            return self._down_the_tree(place, meeting, member.at, kind, now_ns)
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
            self._runnable.over(meeting, now_ns)

    def _root_came(self, meeting: Meeting, now_ns: int) -> None:
        if meeting.of_root is None:
            meeting.of_root = End()
        if not meeting.bad and not meeting.of_root.done_ns:
            self._runnable.over(meeting.of_root, now_ns)

    def _down_the_tree(
        self, place: MeetingPlace, meeting: Meeting, at: int, kind: Kind, now_ns: int
    ) -> End:
        if meeting.tree is None:
            root = place.places.get(kind.signature.root or 0, 0)
            meeting.tree = Tree(len(place.ranks), root)
        own, over = meeting.tree.comes(at)
        if not meeting.bad:
            for end in over:
                self._runnable.over(end, now_ns)
        return own

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
        posted = Posted(end, own, now_ns, next(self._order), call_bytes(signature))
        if signature.op == "send":
            other = place.receive_for(own, peer, tag)
            if other is None:
                waiting_bytes = place.post_send(posted, peer, tag)
                if waiting_bytes <= self._model.room_bytes(kind.backend):
                    end.done_ns = now_ns
        else:
            other = place.send_for(peer, own, tag)
            if other is None:
                place.post_receive(posted, peer, tag)
        if other is None:
            if peer == ANY_SOURCE and not place.whole:
                return seq, now_ns  # it may come from a rank that is not in the plan
            rank.posted = True
            return seq, end
        if not other.end.done_ns:
            self._runnable.over(other.end, max(now_ns, other.time_ns))
        return seq, max(now_ns, other.time_ns)
