"""Where ranks of a simulation meet: collectives, messages, and the creation of groups.

An `End` is what a thread waits for. A call that ends alike for all of its ranks is one `End` that
they share (the `Meeting` itself); where it ends for each in its own time they have others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ..diagnosis.facts.blocking import tree_children, tree_parent
from ..record.signature import ANY_SOURCE, Signature
from ..record.snapshot import GroupKey


class End:
    """The end of a call: `done_ns` is 0 until then. Threads are parked at it (see `runnable`)."""

    __slots__ = ("done_ns",)

    def __init__(self) -> None:
        self.done_ns = 0


class Meeting(End):
    """One collective of a group. `bad`: its ranks do not fit, and nobody who waits gets out."""

    __slots__ = ("agree", "bad", "came", "of_root", "ready", "splits", "tree")

    def __init__(self, agree: int) -> None:
        super().__init__()
        self.agree = agree
        self.bad = False
        self.came = 0
        self.ready = False
        """All have come; on a device the group's calls before this one may still be under way."""
        self.of_root: End | None = None
        """For those who wait for the root alone."""
        self.tree: Tree | None = None
        self.splits: dict[int, Signature] = {}
        """By place in the group, where what one sends must be what the other expects."""

    def splits_fit(self) -> bool:
        """Whether each rank receives what the others send to it; all have come."""
        rows = sorted(self.splits)
        expected = [self.splits[row].receives for row in rows]
        sent = [self.splits[row].sends for row in rows]
        if any(len(row) != len(rows) for row in (*expected, *sent)):
            return not any(expected) and not any(sent)
        return list(zip(*expected, strict=True)) == sent


class Tree:
    """A broadcast from hand to hand: each place of the group has an end of its own."""

    def __init__(self, size: int, root: int) -> None:
        self._size = size
        self._root = root
        self._ends: dict[int, End] = {}
        self._with_data: set[int] = set()

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
            todo += [child for child in self._children(at) if child in self._ends]
        return own, [self._ends[one] for one in touched if self._is_through(one)]

    def _children(self, place: int) -> list[int]:
        return tree_children(place, self._root, self._size)

    def _is_through(self, place: int) -> bool:
        if place not in self._with_data or self._ends[place].done_ns:
            return False
        return all(child in self._ends for child in self._children(place))


@dataclass(slots=True)
class Posted:
    """A send or a receive that has not met its other side. `order`: in which all were posted."""

    end: End
    rank: int
    time_ns: int
    order: int
    size_bytes: int = 0


@dataclass(slots=True)
class MeetingPlace:
    """One group as its ranks share it. `size`: how many of them are in the plan."""

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
    _waiting_bytes: dict[tuple[int, int, int], int] = field(default_factory=dict)

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
        self._waiting_bytes[source, destination, tag] -= found.size_bytes
        return found

    def post_send(self, sent: Posted, destination: int, tag: int) -> int:
        """A message that nobody receives yet; returns how much its channel then holds, in bytes."""
        by_source = self._sends.setdefault((destination, tag), {})
        by_source.setdefault(sent.rank, deque()).append(sent)
        channel = (sent.rank, destination, tag)
        self._waiting_bytes[channel] = self._waiting_bytes.get(channel, 0) + sent.size_bytes
        return self._waiting_bytes[channel]

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
