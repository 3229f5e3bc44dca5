"""The sends and receives of all ranks, by channel: (group, source, destination, tag).

The nth send of a channel meets its nth receive. A receive from any source takes a message of one of
the channels into its rank with its tag: which one is on record once it is over. As long as it is
not (or where a record does not say), counts of those channels say less.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ...record.layout import CallState
from ...record.signature import ANY_SOURCE
from ...record.snapshot import Call, Channel, GroupKey
from ...record.wording import by_device
from .blocking import Model
from .world import World, begun

ChannelKey = tuple[GroupKey, int, int, int]
"""group, source, destination, tag; ranks are global."""


class Channels:
    """The sends and receives that each side of every channel has posted."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sends: dict[ChannelKey, Channel] = {}
        self.receives: dict[ChannelKey, Channel] = {}
        self.any_source: dict[tuple[GroupKey, int, int], int] = {}
        for number, rank in world.ranks.items():
            for channel in rank.channels:
                if channel.op == "send":
                    self.sends[channel.group, number, channel.peer, channel.tag] = channel
                elif channel.peer == ANY_SOURCE:
                    key = (channel.group, number, channel.tag)
                    self.any_source[key] = self.any_source.get(key, 0) + channel.issued
                else:
                    self.receives[channel.group, channel.peer, number, channel.tag] = channel
        self.open = dict(self.any_source)
        """Of the receives from any source those of which nobody knows what they take."""
        for (group, _, number, tag), channel in self.receives.items():
            if channel.taken:
                end = (group, number, tag)
                self.open[end] = self.open.get(end, 0) - channel.taken

    @cached_property
    def sent_to(self) -> dict[tuple[GroupKey, int, int], int]:
        """Messages sent by anybody, per (group, destination, tag)."""
        totals: dict[tuple[GroupKey, int, int], int] = {}
        for (group, _, destination, tag), channel in self.sends.items():
            key = (group, destination, tag)
            totals[key] = totals.get(key, 0) + channel.issued
        return totals

    @cached_property
    def received_by(self) -> dict[tuple[GroupKey, int, int], int]:
        """Receives posted, from a named or from any source, per (group, receiver, tag)."""
        totals = dict(self.any_source)
        for (group, _, receiver, tag), channel in self.receives.items():
            key = (group, receiver, tag)
            totals[key] = totals.get(key, 0) + channel.issued
        return totals

    def lacks(self, rank: int, call: Call) -> bool:
        """Whether fewer messages were sent to the rank, with the tag of this receive of its, than
        it has posted receives for."""
        key = (call.group, rank, call.signature.tag)
        return self.sent_to.get(key, 0) < self.received_by.get(key, 0)

    def one_too_many(self, key: ChannelKey) -> bool:
        """Whether more messages were sent to the receiver of this channel, by anybody and with its
        tag, than it has posted receives for."""
        group, _, receiver, tag = key
        end = (group, receiver, tag)
        return self.sent_to.get(end, 0) > self.received_by.get(end, 0)

    def strict(self, key: ChannelKey) -> bool:
        """No receive from any source can have taken messages of this channel."""
        group, _, destination, tag = key
        return (group, destination, tag) not in self.any_source

    def settled(self, key: ChannelKey) -> bool:
        """All is known of which messages of this channel receives from any source take."""
        group, _, destination, tag = key
        return self.open.get((group, destination, tag), 0) <= 0

    def sent(self, key: ChannelKey) -> int:
        channel = self.sends.get(key)
        return begun(channel) if channel else 0

    def received(self, key: ChannelKey) -> int:
        """The receives for this channel, those from any source included that have taken one of its
        messages."""
        channel = self.receives.get(key)
        return begun(channel) + channel.taken if channel else 0

    def posted(self, rank: int, call: Call) -> bool | None:
        """Whether the other end of this send or receive has been posted; None where a receive from
        any source may be its other end, or take that, and of such a receive itself."""
        if call.signature.peer == ANY_SOURCE:
            return None
        key = self.key_of(rank, call)
        if call.signature.op == "send":
            if self.received(key) > call.seq:
                return True
            return None if not self.settled(key) and not self.one_too_many(key) else False
        own = self.receives.get(key)
        if self.sent(key) <= call.seq + (own.taken if own else 0):
            return False
        return True if self.settled(key) else None

    def all_received_ns(self, key: ChannelKey) -> int | None:
        """Returns when the last message of this channel was over for its sender, on a backend that
        sends none before its receive is posted: some receive has taken it by then. None where it is
        not over, or a backend may have buffered it."""
        channel, sender = self.sends[key], self.world.ranks[key[1]]
        history, group = sender.history, sender.groups.get(key[0])
        last = history.call(channel.last) if history and channel.last is not None else None
        if last is None or last.state is not CallState.COMPLETED or group is None:
            return None
        buffers = any(map(Model().room_bytes, by_device(group.backend.lower()).values()))
        return None if buffers else last.completed_ns

    def sent_less(self, rank: int, call: Call, partners: Sequence[int]) -> list[int]:
        """Returns the few ranks that have sent less than most of the others, of those that could
        have sent what a receive from any source waits for."""
        sent = self._sent_by(rank, call, partners)
        counts = sorted(sent.values())
        usual = counts[len(counts) // 2]
        less = [one for one, count in sent.items() if count < usual]
        return less if counts[-1] == usual and 0 < len(less) * 2 < len(partners) else []

    def fewest_sent(self, rank: int, call: Call, partners: Sequence[int]) -> list[int]:
        """Returns the ranks that have sent the fewest messages, of those that could have sent what
        a receive from any source waits for. Two partners have no majority, but the one that has
        sent more is less likely at fault."""
        sent = self._sent_by(rank, call, partners)
        fewest = min(sent.values(), default=0)
        return [one for one, count in sent.items() if count == fewest]

    def _sent_by(self, rank: int, call: Call, partners: Sequence[int]) -> dict[int, int]:
        """Returns how many messages with the tag of this receive each partner has sent to the
        rank."""
        tag = call.signature.tag
        return {one: self.sent((call.group, one, rank, tag)) for one in partners}

    def key_of(self, rank: int, call: Call) -> ChannelKey:
        """The channel of a send or of a receive from a named source."""
        peer = call.signature.peer
        assert peer is not None
        source, destination = (rank, peer) if call.signature.op == "send" else (peer, rank)
        return (call.group, source, destination, call.signature.tag)

    def left_over(self, rank: int, call: Call) -> list[tuple[int, Channel]]:
        """Returns the channels in which ranks other than its partner would meet a rank that waits
        in a send or receive: they have sent it messages that it has not received, or receive
        messages that it has not sent. Each comes with the other rank, in the order of ranks;
        channels whose messages a receive from any source may take are left out."""
        sending = call.signature.op == "send"
        mine = self.sends if sending else self.receives
        found = []
        for key, channel in self._posted_for(rank, call):
            other = key[2] if sending else key[1]
            if other in (rank, call.signature.peer):
                continue
            done = mine[key].issued + mine[key].taken if key in mine else 0
            if channel.issued + channel.taken > done and self.settled(key):
                found.append((other, channel))
        return sorted(found, key=lambda row: row[0])

    def other_tags(self, rank: int, call: Call) -> list[int]:
        """Tags with which the partner has posted something between the two ranks, in the same
        direction, that this rank has not matched: probably what this call is meant to meet."""
        group, source, destination, tag = self.key_of(rank, call)
        sending = call.signature.op == "send"
        found = []
        for key, channel in self._posted_for(rank, call):
            if key[:3] != (group, source, destination) or key[3] == tag or not self.settled(key):
                continue
            if channel.issued + channel.taken > (self.sent(key) if sending else self.received(key)):
                found.append(key[3])
        return sorted(found)

    def _posted_for(self, rank: int, call: Call) -> Sequence[tuple[ChannelKey, Channel]]:
        """Returns the receives in the call's group that are posted for messages of the rank or, if
        the call is a receive, the sends to the rank."""
        return self._by_end[call.signature.op == "send"].get((call.group, rank), ())

    @cached_property
    def _by_end(self) -> dict[bool, dict[tuple[GroupKey, int], list[tuple[ChannelKey, Channel]]]]:
        """By whether that meets sends, and by group and rank. A cycle of messages asks this of each
        of its ranks: with a walk over all channels each time, 512 took seconds."""
        found: dict[bool, dict[tuple[GroupKey, int], list[tuple[ChannelKey, Channel]]]] = {}
        for sending, table in ((True, self.receives), (False, self.sends)):
            rows = found[sending] = {}
            for key, channel in table.items():
                end = (key[0], key[1] if sending else key[2])
                rows.setdefault(end, []).append((key, channel))
        return found
