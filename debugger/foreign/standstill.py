"""Everybody waits, and each has issued what others wait for: who waits for whom, and where it ends.

1. *Cycle*: everybody who is waited for waits himself, each for one that has not issued his call.
2. *Opposed*: ranks have issued calls of two groups in opposite order.
3. *Among all*: nobody is without a call that pends, and some wait in groups of which no dump says
   who else is in them (gloo's do not): then all wait for each other.
4. *Overwritten*: a rank stands in a call that its record has lost. What pends behind that is not
   followed.
5. *Behind*: a call that a rank has issued, and that stands behind an older one of its own, cannot
   begin there either. Followed from rank to rank this ends in a cycle once more, or in calls that
   stand in front on all their ranks and do not end: the network, or a device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..diagnosis.findings import Finding
from ..record.wording import place, printable, ranks_text, verb
from .components import last_components, on_every_cycle, shortest_cycle
from .evidence import evident, of_waiting, standing, victims
from .flight_recorder import launch_of
from .trace import Trace, TracedGroup
from .waits import End, Wait, ends, opposed

CYCLE = "suspected: ranks wait for each other in a cycle"
AMONG = "suspected: all ranks wait, and some of them for each other"
MOST_AMONG = 64
MOST_STEPS = 4


def standstill(trace: Trace, pending: Sequence[Wait]) -> list[Finding]:
    """What holds everybody up; [] where that cannot be seen."""
    found = _cycle(trace, pending) or _opposed(trace, pending)
    if found:
        return [found]
    if not trace.lost.isdisjoint(rank for wait in pending for rank in wait.waiting):
        return [_overwritten(trace, pending)]
    fronts = _Fronts(trace, pending)
    return _among_all(trace, pending, fronts) or _at_the_front(trace, pending, fronts)


def _in_front(trace: Trace, pending: Sequence[Wait]) -> dict[int, Wait]:
    """By rank, the wait for its oldest pending call."""
    return {
        rank: wait
        for wait in pending
        for rank, entry in wait.waiting.items()
        if entry is trace.first_pending(rank) and rank not in trace.lost
    }


def _cycle(trace: Trace, pending: Sequence[Wait]) -> Finding | None:
    """A cycle of ranks of which each waits, in its oldest pending call, for the next one."""
    waits_in = _in_front(trace, pending)
    over: set[int] = set()
    for start in sorted(waits_in):
        path: list[int] = []
        at: int | None = start
        while at is not None and at not in over and at not in path:
            path.append(at)
            at = next((one for one in waits_in[at].absent if one in waits_in), None)
        if at is not None and at in path:
            return _deadlock_in(trace, pending, waits_in, path[path.index(at) :])
        over.update(path)
    return None


def _deadlock_in(
    trace: Trace, pending: Sequence[Wait], waits_in: Mapping[int, Wait], cycle: Sequence[int]
) -> Finding:
    steps = [
        f"rank {rank} waits for rank {onward} in {waits_in[rank].call(rank)} {waits_in[rank].place}"
        for rank, onward in zip(cycle, [*cycle[1:], cycle[0]], strict=True)
    ]
    message = f"{CYCLE}: {'; '.join(steps)}"
    since_ns = max(waits_in[rank].since_ns for rank in cycle)
    return _deadlock(trace, pending, message, CYCLE, cycle, waits_in[cycle[0]], steps, since_ns)


def _deadlock(
    trace: Trace,
    pending: Sequence[Wait],
    message: str,
    headline: str,
    culprits: Sequence[int],
    first: Wait,
    steps: Sequence[str],
    since_ns: int,
) -> Finding:
    return Finding(
        kind="deadlock",
        message=message,
        headline=headline,
        culprits=tuple(culprits),
        victims=victims(pending, culprits),
        proven=False,
        group=first.group.evidence(),
        seq=first.seq,
        ranks=of_waiting(trace, pending),
        details=steps,
        observable_ns=since_ns,
        side=None,
    )


def _opposed(trace: Trace, pending: Sequence[Wait]) -> Finding | None:
    found = opposed(trace)
    if found is None:
        return None
    names = [
        f"{printable(str(call.signature))} {place(*group.key[:2], call.seq or 0)}"
        for group, call in zip(found.groups, found.calls, strict=True)
    ]
    orders = (names, names[::-1])
    steps = [
        f"{ranks_text(ranks)} issued {order[0]} before {order[1]}"
        for ranks, order in zip(found.orders, orders, strict=True)
    ]
    fewer, more = sorted(found.orders, key=len)
    culprits = tuple(sorted({*fewer, *(more if len(more) == len(fewer) else ())}))
    return Finding(
        kind="deadlock",
        message=(
            "suspected: calls of two groups pend that were issued in opposite order: "
            f"{'; '.join(steps)}"
        ),
        culprits=culprits,
        victims=victims(pending, culprits),
        proven=False,
        group=found.groups[0].evidence(),
        seq=found.calls[0].seq,
        ranks=of_waiting(trace, pending),
        details=steps,
        observable_ns=max(call.created_ns for call in found.calls),
        side=None,
    )


# -- 3 and 5: behind an older call -----------------------------------------------------------------


class _Fronts:
    """The oldest pending call of each rank, and for whom it waits there: who has not issued it, and
    who has it behind an older one. Nodes are ranks, and below 0 collectives, each once however many
    ranks stand in it. `unsure` are ranks of whose messages nobody knows which other end is theirs,
    for the records have lost the first ones."""

    def __init__(self, trace: Trace, pending: Sequence[Wait]) -> None:
        self._trace = trace
        self.waits = _in_front(trace, pending)
        self.peers: dict[int, set[int]] = {}
        self.onward: dict[int, set[int]] = {}
        self.collectives: dict[int, Wait] = {}
        self.standing: dict[int, set[int]] = {}
        self.unsure: set[int] = set()
        numbers: dict[int, int] = {}
        for rank, wait in self.waits.items():
            if wait.seq is None:
                self.onward[rank] = set()
            else:
                node = numbers.setdefault(id(wait), -1 - len(numbers))
                self.onward[rank] = {node}
                self.collectives[node] = wait
                self.standing.setdefault(node, set()).add(rank)
        for node, wait in self.collectives.items():
            self.onward[node] = {rank for rank in wait.group.ranks if self._is_late(rank, wait)}
        messages = [wait.group for wait in self.waits.values() if wait.seq is None]
        for group in {id(group): group for group in messages}.values():
            self._follow_messages(group)

    def late(self, rank: int) -> set[int]:
        """For whom it waits, ranks alone."""
        return {
            one
            for node in self.onward[rank]
            for one in (self.onward[node] if node < 0 else (node,))
        }

    def _is_late(self, rank: int, wait: Wait) -> bool:
        ahead = self.waits.get(rank)
        return ahead is not None and ahead is not wait and rank not in wait.beyond

    def _follow_messages(self, group: TracedGroup) -> None:
        """Of all messages of the launch in front."""
        for rank, mine in ends(self._trace, group).items():
            front = self._trace.first_pending(rank)
            if front is None or front.seq is not None or rank not in self.onward:
                continue
            for end in mine:
                if end.entry.done or launch_of(end.entry) != launch_of(front):
                    continue
                self.peers.setdefault(rank, set()).add(end.peer)
                if end.peer in self.waits and not self._stands_in(end):
                    self.onward[rank].add(end.peer)
                    if not end.whole:
                        self.unsure.add(rank)

    def _stands_in(self, end: End) -> bool:
        """Whether the peer has issued the other end and nothing of its own stands before it."""
        other, ahead = end.counterpart, self._trace.first_pending(end.peer)
        if not end.is_met:
            return False
        return other is None or other.done or ahead is None or launch_of(other) == launch_of(ahead)


def _among_all(trace: Trace, pending: Sequence[Wait], fronts: _Fronts) -> list[Finding]:
    """Who waits alone in a group waits for somebody who is not known to be in it. Where all ranks
    wait, that may be any of the others, and following them ends in a cycle, whoever it is."""
    waits = fronts.waits
    if trace.missing or len(waits) < trace.world_size or len(waits) > MOST_AMONG:
        return []
    alone = {rank for rank, wait in waits.items() if _waits_alone(wait)}
    onward = {rank: waits.keys() - {rank} if rank in alone else fronts.late(rank) for rank in waits}
    if not alone or not all(onward.values()):
        return []
    return [
        _deadlock_among(trace, pending, waits, nodes, alone, on_every_cycle(onward, nodes) or nodes)
        for nodes in last_components(onward)
    ]


def _waits_alone(wait: Wait) -> bool:
    """A call of a group of one is never waited in."""
    told = any(entry.tells_completion for entry in wait.waiting.values())
    return wait.group.derived and len(wait.group.ranks) == 1 and not told


def _deadlock_among(
    trace: Trace,
    pending: Sequence[Wait],
    waits: Mapping[int, Wait],
    nodes: Collection[int],
    alone: Collection[int],
    culprits: Collection[int],
) -> Finding:
    steps = [
        f"rank {rank} waits in {waits[rank].call(rank)} {waits[rank].place}"
        f"{': who else is in that group is not in this kind of record' if rank in alone else ''}"
        for rank in sorted(nodes)
    ]
    told = f"{'; '.join(steps[:MOST_STEPS])}{'; ...' * (len(steps) > MOST_STEPS)}"
    since_ns = max(waits[rank].since_ns for rank in nodes)
    named = sorted(culprits)
    message = f"{AMONG}: {told}"
    return _deadlock(trace, pending, message, AMONG, named, waits[named[0]], steps, since_ns)


def _at_the_front(trace: Trace, pending: Sequence[Wait], fronts: _Fronts) -> list[Finding]:
    found: list[Finding] = []
    alone: set[int] = set()
    for nodes in last_components(fronts.onward):
        node = min(nodes)
        if len(nodes) > 1:
            cycle = [one for one in shortest_cycle(fronts.onward, nodes) if one >= 0]
            if fronts.unsure.isdisjoint(cycle):
                found.append(_deadlock_in(trace, pending, fronts.waits, cycle))
            else:
                found.append(_unclear(trace, pending, fronts.waits[cycle[0]], cycle))
        elif node in fronts.collectives:
            stand = fronts.standing[node]
            found += _unended(trace, pending, fronts.collectives[node], stand)
        else:
            alone.add(node)
    while alone:
        together = _joined(fronts.peers, min(alone)) & fronts.waits.keys()
        found += _unended(trace, pending, fronts.waits[min(alone)], together)
        alone -= together
    return found


def _joined(peers: Mapping[int, Collection[int]], start: int) -> set[int]:
    """Who exchanges messages with this rank, and with those, in the calls that they stand in."""
    found, left = {start}, [start]
    while left:
        for rank in peers.get(left.pop(), ()):
            if rank not in found:
                found.add(rank)
                left.append(rank)
    return found


def _unended(
    trace: Trace, pending: Sequence[Wait], wait: Wait, ranks: Collection[int]
) -> list[Finding]:
    """A call that all have issued, which is the oldest one of each, and nobody has completed."""
    if wait.beyond:
        return []  # the last calls of a job that is over, of which a record lags
    call = f"{wait.call(min(wait.waiting))} {wait.place}"
    on_device = all(entry.tells_completion for entry in wait.waiting.values())
    if wait.group.derived and (trace.missing or not on_device):
        text = f"{ranks_text(ranks)} {verb(list(ranks), 'waits', 'wait')} in {call}: "
        text += "who else is in that group is not in this kind of record"
        return [_stalled(trace, pending, wait, (), text, None)]
    if wait.group.derived and any(rank in trace.active_only for rank in ranks):
        # Who is not known to wait for them may be the one that they wait for.
        known = {*ranks, *victims(pending, ranks)}
        named = ranks if all(rank in known for rank in trace.dumps) else ()
        text = f"{ranks_text(ranks)} {verb(list(ranks), 'waits', 'wait')} in {call}"
        text += ", and all others for them" if named else ""
        text += ": who else is in that group is not in this kind of record"
        return [_stalled(trace, pending, wait, named, text, None)]
    have, none = ("have all", "none has") if len(ranks) > 1 else ("has", "has not")
    text = f"{ranks_text(ranks)} {have} issued {call} and {none} completed it"
    if on_device:
        text += ": the network between them, or the device of one, stands still"
    return [_stalled(trace, pending, wait, ranks, text, "device" if on_device else None)]


def _unclear(trace: Trace, pending: Sequence[Wait], wait: Wait, ranks: Collection[int]) -> Finding:
    """Ranks that wait for each other in messages that cannot be paired any more."""
    text = (
        f"{ranks_text(ranks)} wait for each other's messages, first in "
        f"{wait.call(min(wait.waiting))} {wait.place}; their records have lost those before, and "
        "nothing tells which one is left out or never completed"
    )
    return _stalled(trace, pending, wait, ranks, text, None)


def _overwritten(trace: Trace, pending: Sequence[Wait]) -> Finding:
    """Ranks stand in calls that are not on record any more, and all others behind those."""
    lost = sorted(trace.lost)
    wait = min(pending, key=lambda one: one.since_ns)
    text = (
        f"nothing moves, and {ranks_text(lost)} {verb(lost, 'stands', 'stand')} in a call that "
        "newer ones have overwritten in the record: who holds up the others is not to be told "
        "(TORCH_FR_BUFFER_SIZE is how many calls are kept)"
    )
    return _stalled(trace, pending, wait, (), text, None)


def _stalled(
    trace: Trace,
    pending: Sequence[Wait],
    wait: Wait,
    ranks: Collection[int],
    text: str,
    side: str | None,
) -> Finding:
    fronts = {one: trace.first_pending(one) for one in evident(sorted(ranks), ())}
    return Finding(
        kind="stalled",
        message=f"suspected: {text}",
        culprits=tuple(sorted(ranks)),
        victims=victims(pending, ranks),
        proven=False,
        group=wait.group.evidence(),
        seq=wait.seq,
        ranks={
            **of_waiting(trace, pending),
            **{
                rank: standing("issued, never completed", front)
                for rank, front in fronts.items()
                if front is not None
            },
        },
        observable_ns=wait.since_ns,
        side=side,
    )
