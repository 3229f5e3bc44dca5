"""Programs of fewer ranks, groups and calls, made of larger ones. Nothing here knows whether they
still fail: `reducing` asks the simulation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ...diagnosis.facts.world import DEFAULT_GROUP
from ...plan.program import Created, Destroyed, Ended, Event, Made, Program, Waited
from ...record.ops import Operand, Pattern, op_of
from ...record.signature import ANY_SOURCE, Signature, Tensor
from ...record.snapshot import GroupKey, place_of

Item = TypeVar("Item")
Programs = Mapping[int, Program]
Unit = Sequence[tuple[int, int]]
"""Events that are left out together: each by its rank, and its place in the rank's program."""


def sides(signature: Signature) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Returns the inputs of a call, and its outputs; of inputs and outputs in the place of these,
    what the call's signature has as `tensors` and `others`."""
    row = op_of(signature.op)
    flipped = row.inputs is Operand.NONE or row.pattern is Pattern.SCATTER
    one, other = signature.tensors, signature.others
    return (other, one) if flipped else (one, other)


def group_of(event: Event) -> GroupKey | None:
    """Returns the group that the event is of."""
    match event:
        case Made(about) | Created(about):
            return about.group
        case Destroyed(group):
            return group
    return None


def of_ranks(programs: Programs, kept: Sequence[int], *, by_role: bool = False) -> Programs:
    """Returns the programs of these ranks alone, which are numbered anew. Messages to or from one
    of the others are left out or, `by_role`, go to whoever is now as far away in the group."""
    number = {rank: new for new, rank in enumerate(kept)}

    def still(ranks: Iterable[int]) -> tuple[int, ...]:
        return tuple(number[one] for one in ranks if one in number)

    made = {}
    for rank, new in number.items():
        program = programs[rank]
        known: dict[tuple[GroupKey, Signature], Signature | None] = {}
        events: list[Event] = []
        for event in program.events:
            if isinstance(event, Made):
                call = event.call
                about = (call.group, call.signature)
                if about not in known:
                    old = program.groups[call.group].ranks
                    known[about] = _resized(call.signature, rank, old, number, by_role)
                signature = known[about]
                if signature is not None:
                    events.append(replace(event, call=replace(call, signature=signature)))
            elif not isinstance(event, Created):
                events.append(event)
            elif ranks := still(event.creation.ranks):
                events.append(Created(replace(event.creation, ranks=ranks)))
        groups = {
            key: replace(group, ranks=still(group.ranks)) for key, group in program.groups.items()
        }
        made[new] = replace(
            _with(program, events), rank=new, local_rank=new, world_size=len(kept), groups=groups
        )
    return made


def _resized(
    signature: Signature, rank: int, old: Sequence[int], number: Mapping[int, int], by_role: bool
) -> Signature | None:
    """The call in the smaller group; None where it is a message of a rank that is gone."""
    left = [one for one in old if one in number]
    peer, root = signature.peer, signature.root
    if peer not in (None, ANY_SOURCE):
        if by_role and peer in old:
            size = len(old)
            away = (old.index(peer) - old.index(rank) + size // 2) % size - size // 2
            peer = left[(left.index(rank) + away) % len(left)]
        if peer not in number:
            return None
        peer = number[peer]
    if root is not None:
        root = number.get(root, number[left[0]])

    def kept(row: Sequence[Item]) -> tuple[Item, ...]:
        return tuple(one for rank, one in zip(old, row, strict=False) if rank in number)

    def fitted(
        tensors: tuple[Tensor, ...], operand: Operand, counts: tuple[int, ...]
    ) -> tuple[Tensor, ...]:
        if operand is Operand.LIST:
            return kept(tensors)
        if operand is not Operand.WHOLE:
            return tensors
        return tuple(
            (dtype, (sum(counts),) if counts else (shape[0] * len(left) // len(old), *shape[1:]))
            for dtype, shape in tensors
            if shape
        )

    row, (given, taken) = op_of(signature.op), sides(signature)
    sends, receives = kept(signature.sends), kept(signature.receives)
    given, taken = fitted(given, row.inputs, sends), fitted(taken, row.outputs, receives)
    made = replace(signature, root=root, peer=peer, sends=sends, receives=receives)
    tensors, others = sides(replace(made, tensors=given, others=taken))
    return replace(made, tensors=tensors, others=others)


def units(programs: Programs) -> list[Unit]:
    """Returns what belongs together on all ranks, in the order in which it comes: the calls of a
    collective, a message, the making of a group."""
    found: dict[Hashable, list[tuple[int, int]]] = {}
    counts: dict[Hashable, int] = {}
    for rank, program in programs.items():
        for at, event in enumerate(program.events):
            what: Hashable = (rank, at)
            if isinstance(event, Made):
                place, signature = (rank, place_of(event.call)), event.call.signature
                seq = counts[place] = counts.get(place, -1) + 1
                ends = (rank, signature.peer)
                message = (ends if signature.op == "send" else ends[::-1], signature.tag)
                what = (event.call.group, signature.peer is not None and message, seq)
            elif isinstance(event, Created):
                what = event.creation.group
            if not isinstance(event, Ended | Waited):  # waits go with their calls
                found.setdefault(what, []).append((rank, at))
    return sorted(found.values(), key=lambda unit: min(at for _, at in unit))


def with_units(programs: Programs, kept: Iterable[Unit]) -> Programs:
    """Returns the programs with these events alone. Calls go with the making of their group."""
    wanted = {one for unit in kept for one in unit}
    made = {}
    for rank, program in programs.items():
        gone = {
            event.creation.group
            for at, event in enumerate(program.events)
            if isinstance(event, Created) and (rank, at) not in wanted
        }
        left = [
            event
            for at, event in enumerate(program.events)
            if ((rank, at) in wanted or isinstance(event, Ended | Waited))
            and group_of(event) not in gone
        ]
        made[rank] = _with(program, left)
    return made


def by_world(programs: Programs) -> Programs:
    """Returns the programs with calls of other groups that have all ranks made in the default
    group."""
    groups = next(iter(programs.values())).groups
    world = next(key for key, one in groups.items() if one.desc == DEFAULT_GROUP)
    same = {key for key, one in groups.items() if one.ranks == tuple(programs)}

    def changed(event: Event) -> Event | None:
        if group_of(event) not in same or isinstance(event, Destroyed):
            return event
        return Made(replace(event.call, group=world)) if isinstance(event, Made) else None

    return _with_each(programs, changed)


def synchronous(programs: Programs) -> Programs:
    """Returns the programs with every call waited for where it is made."""

    def changed(event: Event) -> Event | None:
        if isinstance(event, Made):
            return Made(replace(event.call, is_async=False))
        return None if isinstance(event, Waited) else event

    return _with_each(programs, changed)


def ended(programs: Programs, rank: int) -> Programs:
    """Returns the programs with one in which this rank ends, if it does not."""
    program = programs[rank]
    if any(isinstance(event, Ended) for event in program.events):
        return programs
    return {**programs, rank: replace(program, events=[*program.events, Ended(0)])}


def _with_each(programs: Programs, changed: Callable[[Event], Event | None]) -> Programs:
    """The programs with each event changed, or (None) left out."""
    return {
        rank: _with(program, [one for one in map(changed, program.events) if one is not None])
        for rank, program in programs.items()
    }


def _with(program: Program, events: Sequence[Event]) -> Program:
    """The program with these events, without waits for calls that are not among them; its note, of
    the exception that ends it, stays at the end."""
    numbers = {event.call.number for event in events if isinstance(event, Made)}
    kept = [one for one in events if not isinstance(one, Waited) or one.number in numbers]
    return replace(program, events=kept, notes=[(len(kept) - 1, one) for _, one in program.notes])
