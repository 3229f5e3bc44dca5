"""Selects the calls of a recorded run that can be made again, on all ranks alike.

What the record has of a group on some ranks alone is left out on all of them: calls that a ring has
lost elsewhere, and calls of which too little is known. The end is kept as it was where what was
found is about the calls (a mismatch, a deadlock, a rank that others wait for): the same is to be
found again. Otherwise calls that not all ranks had come to are left out there, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...record.kinds import Kind, kind_of
from ...record.layout import RING, CallState
from ...record.ops import POINT_TO_POINT
from ...record.signature import ANY_SOURCE
from ...record.snapshot import Call, GroupKey, Rank
from ...record.wording import ranks_text


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the run: its verdict (None without one), and when (Unix time; 0: not known)."""

    kind: Kind | None = None
    culprits: frozenset[int] = frozenset()
    time_ns: int = 0

    @property
    def is_about_calls(self) -> bool:
        """Whether making the calls again leads there again."""
        return self.kind is not None and self.kind.by_calls

    def left_before(self, rank: Rank) -> bool:
        """Whether the rank had ended by itself when that was found."""
        if self.kind is not None and self.kind.ends_culprits and rank.rank in self.culprits:
            return True
        ended_ns = rank.process.ended_ns
        return bool(ended_ns and self.time_ns and ended_ns < self.time_ns)


def ending(report: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Ending:
    """Reads the ending from a report.json and the lines of events.jsonl."""
    outcome = str(report.get("outcome", ""))
    errors = [one for one in report.get("findings", ()) if one["severity"] == "error"]
    verdict = next((one for one in errors if one["kind"] == outcome), None)
    if verdict is None:
        return Ending()
    times = [
        int(event["time_ns"])
        for event in events
        if event.get("finding") == outcome and isinstance(event.get("time_ns"), int)
    ]
    culprits = frozenset(verdict["culprits"])
    return Ending(kind_of(outcome), culprits, min(times, default=0))


class Selection:
    """The calls of each rank that are made again. `kept` and `notes` are there after `select`."""

    def __init__(
        self, ranks: Mapping[int, Rank], calls: Mapping[int, Sequence[Call]], ended: Ending
    ) -> None:
        self._ranks = ranks
        self._calls = calls
        self._ended = ended
        self._left_out: Counter[str] = Counter()
        self._sources: dict[tuple[int, int], int] = {}
        self.kept: dict[int, list[Call]] = {}
        self.notes: list[str] = []

    def select(self) -> None:
        """Leave out, on all ranks alike, what cannot be made on all of them."""
        lost = {rank: calls[0].number for rank, calls in self._calls.items() if calls}
        lost = {rank: count for rank, count in lost.items() if count}
        for rank, calls in self._calls.items():
            if not calls and self._ranks[rank].calls:
                lost[rank] = self._ranks[rank].calls
        if lost:
            self.notes.append(
                f"the record keeps the last {RING} calls of a rank: up to {max(lost.values())} "
                f"earlier ones of {ranks_text(sorted(lost))} are lost, and are not made again"
            )
        self.kept = {rank: self._counted(rank, calls) for rank, calls in self._calls.items()}
        self._leave_out_unknown()
        self._cut_collectives(lost)
        self._cut_messages(lost)
        self._find_sources()
        if self._ended.kind is not None and not self._ended.is_about_calls:
            self.notes.append(
                f"the run ended with {self._ended.kind.name}, which its program did: its calls are "
                "made again, that is not"
            )
        self.notes += [f"left out: {count} {what}" for what, count in self._left_out.items()]

    def _counted(self, rank: int, calls: Sequence[Call]) -> list[Call]:
        """Leaves out calls that the backend refused at once: the next one has their number."""
        groups = self._ranks[rank].groups
        issued = {key: group.issued for key, group in groups.items()}
        latest: dict[tuple[Any, ...], int] = {}
        for call in calls:
            latest[_own(call)] = call.number
        found = []
        for call in calls:
            refused = call.state is CallState.FAILED and (
                latest[_own(call)] != call.number
                or (not _is_message(call) and call.seq >= issued.get(call.group, 0))
            )
            if refused:
                self._left_out["calls that the backend had refused"] += 1
            else:
                found.append(call)
        return found

    def _leave_out_unknown(self) -> None:
        collectives: set[tuple[GroupKey, int]] = set()
        messages: set[GroupKey] = set()
        for rank, calls in self.kept.items():
            groups = self._ranks[rank].groups
            for call in calls:
                if call.group in groups and _is_known(call):
                    continue
                if _is_message(call):
                    messages.add(call.group)
                else:
                    collectives.add((call.group, call.seq))
        if collectives or messages:
            self._drop(
                lambda call: (
                    call.group in messages
                    if _is_message(call)
                    else (call.group, call.seq) in collectives
                ),
                "calls whose arguments are not on record on every rank",
            )

    def _cut_collectives(self, lost: Mapping[int, int]) -> None:
        first: dict[GroupKey, int] = {}
        end: dict[GroupKey, int] = {}
        for key, members in self._members().items():
            for rank in members:
                issued = self._ranks[rank].groups[key].issued if rank in self._ranks else 0
                if rank in lost:
                    seqs = [
                        call.seq
                        for call in self.kept[rank]
                        if call.group == key and not _is_message(call)
                    ]
                    first[key] = max(first.get(key, 0), min(seqs, default=issued))
                end[key] = min(end.get(key, issued), issued)
        self._drop(
            lambda call: not _is_message(call) and call.seq < first.get(call.group, 0),
            "collectives that the record of another rank has lost",
        )
        if not self._ended.is_about_calls:
            self._drop(
                lambda call: not _is_message(call) and call.seq >= end.get(call.group, 0),
                "collectives at the end that not all ranks had come to",
            )

    def _members(self) -> dict[GroupKey, tuple[int, ...]]:
        """Returns by group which of its ranks have it on record."""
        found: dict[GroupKey, set[int]] = {}
        for number, rank in self._ranks.items():
            for key in rank.groups:
                found.setdefault(key, set()).add(number)
        return {key: tuple(sorted(members)) for key, members in found.items()}

    def _cut_messages(self, lost: Mapping[int, int]) -> None:
        """Sends and receives that have no other side. Where a rank receives from any source, no
        message to it with that tag is told from the others."""
        at_both: dict[tuple[Any, ...], list[int]] = {}
        open_to_all: set[tuple[GroupKey, int, int]] = set()
        for rank, calls in self.kept.items():
            for call in calls:
                if not _is_message(call):
                    continue
                ends = _ends(rank, call)
                if ends[0] == ANY_SOURCE:
                    open_to_all.add((call.group, ends[1], call.signature.tag))
                else:
                    both = at_both.setdefault((call.group, *ends, call.signature.tag), [-1] * 4)
                    place = 0 if call.signature.op == "send" else 2
                    if both[place] < 0:
                        both[place] = call.seq
                    both[place + 1] = call.seq
        uneven = self._uneven(open_to_all)

        def has_no_other_side(call: Call, rank: int) -> bool:
            source, destination = _ends(rank, call)
            mailbox = (call.group, destination, call.signature.tag)
            if mailbox in open_to_all:
                return bool(lost) or (not self._ended.is_about_calls and mailbox in uneven)
            both = at_both[(call.group, source, destination, call.signature.tag)]
            first, last = max(both[0], both[2]), min(both[1], both[3])
            if bool(lost) and call.seq < (first if min(both) >= 0 else call.seq + 1):
                return True
            return not self._ended.is_about_calls and (min(both) < 0 or call.seq > last)

        for rank, calls in self.kept.items():
            kept = [
                call for call in calls if not (_is_message(call) and has_no_other_side(call, rank))
            ]
            if len(kept) < len(calls):
                self._left_out["messages of which one side alone is on record"] += len(calls) - len(
                    kept
                )
            self.kept[rank] = kept

    def from_known_source(self, rank: int, call: Call) -> Call:
        """A receive from any source that is complete, as one from the rank whose message it got:
        what the program did next followed from that."""
        source = self._sources.get((rank, call.number))
        if source is None:
            return call
        return replace(call, signature=replace(call.signature, peer=source))

    def _find_sources(self) -> None:
        """The record does not have the source of a receive from any. Of the messages that a rank
        had been sent the one counts whose send was complete first: a send is, when its message is
        taken, or with those before it where the backend takes them before they are received."""
        sends: dict[tuple[Any, ...], list[Call]] = {}
        receives: dict[tuple[Any, ...], list[Call]] = {}
        for rank, calls in self.kept.items():
            for call in filter(_is_message, calls):
                source, destination = _ends(rank, call)
                mailbox = (call.group, destination, call.signature.tag)
                if call.signature.op == "send":
                    sends.setdefault((*mailbox, source), []).append(call)
                elif call.completed_ns and call.state is CallState.COMPLETED:
                    receives.setdefault(mailbox, []).append(call)
        for mailbox, calls in receives.items():
            if not any(call.signature.peer == ANY_SOURCE for call in calls):
                continue
            left = {key[3]: sent for key, sent in sends.items() if key[:3] == mailbox}
            for call in sorted(calls, key=lambda call: call.completed_ns):
                taken = call.signature.peer
                if taken == ANY_SOURCE:
                    taken = _sender(left, call)
                    if taken is None:
                        break
                    self._sources[mailbox[1], call.number] = taken
                if taken is not None and left.get(taken):
                    left[taken] = left[taken][1:]
        if self._sources:
            self.notes.append(
                f"{len(self._sources)} receives from any source are made from the rank whose "
                "message was the first, as the times of the sends tell"
            )

    def _uneven(self, mailboxes: set[tuple[GroupKey, int, int]]) -> set[tuple[GroupKey, int, int]]:
        """Returns the mailboxes to which not as many messages were sent as were received there."""
        sums: Counter[tuple[GroupKey, int, int]] = Counter()
        for rank, calls in self.kept.items():
            for call in calls:
                if _is_message(call):
                    sent = call.signature.op == "send"
                    sums[call.group, _ends(rank, call)[1], call.signature.tag] += 1 if sent else -1
        return {mailbox for mailbox in mailboxes if sums[mailbox]}

    def _drop(self, drops: Callable[[Call], bool], what: str) -> None:
        for rank, calls in self.kept.items():
            kept = [call for call in calls if not drops(call)]
            if len(kept) < len(calls):
                self._left_out[what] += len(calls) - len(kept)
                self.kept[rank] = kept


def _is_message(call: Call) -> bool:
    return call.signature.op in POINT_TO_POINT


def _sender(left: Mapping[int, Sequence[Call]], receive: Call) -> int | None:
    """Returns whose message this receive got, of those that are left by source."""
    counts = sum(receive.signature.counts)
    found = [
        (sent[0].completed_ns or receive.completed_ns, sent[0].issued_ns, source)
        for source, sent in left.items()
        if sent
        and sent[0].issued_ns < receive.completed_ns
        and sum(sent[0].signature.counts) == counts
    ]
    return min(found)[2] if found else None


def _own(call: Call) -> tuple[Any, ...]:
    """Returns what a rank has once: a collective's number in its group, a message's in its
    channel."""
    signature = call.signature
    if not _is_message(call):
        return (call.group, call.seq)
    return (call.group, signature.op, signature.peer, signature.tag, call.seq)


def _ends(rank: int, call: Call) -> tuple[int, int]:
    """Source and destination of a message."""
    peer = ANY_SOURCE if call.signature.peer is None else call.signature.peer
    return (rank, peer) if call.signature.op == "send" else (peer, rank)


_WITHOUT_TENSORS = frozenset({"barrier", "monitored_barrier"})


def _is_known(call: Call) -> bool:
    signature = call.signature
    if signature.op in _WITHOUT_TENSORS:
        return True
    if not signature.tensors or (_is_message(call) and signature.peer is None):
        return False
    return signature.op != "all_to_all_single" or bool(signature.sends and signature.receives)
