"""Programs of fewer ranks, groups and calls, made of larger ones. Nothing here knows whether they
still fail: `reducing` asks the simulation."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...diagnosis.facts.world import DEFAULT_GROUP
from ...plan.program import Created, Destroyed, Ended, Event, Made, Program, Waited
from ...record.ops import Operand, Pattern, op_of
from ...record.signature import ANY_SOURCE, Signature, Tensor
from ...record.snapshot import GroupKey, place_of

Programs = Mapping[int, Program]
Spot = tuple[int, int]
"""A rank, and the place of an event in its program."""


def sides(signature: Signature) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Returns the inputs of a call, and its outputs, as this rank gives them."""
    row = op_of(signature.op)
    flipped = row.inputs is Operand.NONE or row.pattern is Pattern.SCATTER
    one, other = signature.tensors, signature.others
    return (other, one) if flipped else (one, other)


def of_ranks(programs: Programs, kept: Sequence[int], *, by_role: bool = False) -> Programs:
    """Returns the programs of these ranks alone, which are numbered anew. Messages to or from one
    of the others are left out or, `by_role`, go to whoever is now as far away in the group."""
    number = {rank: new for new, rank in enumerate(kept)}
    made = {}
    for rank, new in number.items():
        program = programs[rank]
        signatures: dict[tuple[GroupKey, Signature], Signature | None] = {}
        groups = {
            key: replace(group, ranks=tuple(number[one] for one in group.ranks if one in number))
            for key, group in program.groups.items()
        }
        events: list[Event] = []
        for event in program.events:
            if isinstance(event, Made):
                call = event.call
                if call.group not in groups:
                    continue
                about = (call.group, call.signature)
                if about not in signatures:
                    old = program.groups[call.group].ranks
                    signatures[about] = _resized(call.signature, rank, old, number, by_role)
                signature = signatures[about]
                if signature is not None:
                    events.append(replace(event, call=replace(call, signature=signature)))
            elif isinstance(event, Created):
                old = event.creation.ranks
                ranks = tuple(number[one] for one in old if one in number)
                if ranks or not old:
                    events.append(Created(replace(event.creation, ranks=ranks)))
            else:
                events.append(event)
        made[new] = replace(
            _whole(program, events), rank=new, local_rank=new, world_size=len(kept), groups=groups
        )
    return made


def _resized(
    signature: Signature, rank: int, old: Sequence[int], number: Mapping[int, int], by_role: bool
) -> Signature | None:
    """The call in the smaller group; None where it is a message of a rank that is gone."""
    places = [place for place, one in enumerate(old) if one in number]
    size, left = len(old), len(places)
    peer, root = signature.peer, signature.root
    if peer not in (None, ANY_SOURCE):
        if by_role and peer in old and rank in old:
            away = (old.index(peer) - old.index(rank)) % size
            away -= size if away > size // 2 else 0
            at = (places.index(old.index(rank)) + away) % left
            peer = number[old[places[at]]]
        else:
            peer = number.get(peer)
        if peer is None:
            return None
    if root is not None and places:
        root = number.get(root, number[old[places[0]]])

    def fitted(
        tensors: tuple[Tensor, ...], operand: Operand, counts: tuple[int, ...]
    ) -> tuple[Tensor, ...]:
        if operand is Operand.LIST and len(tensors) % size == 0:
            each = len(tensors) // size
            return tuple(one for at in places for one in tensors[at * each : (at + 1) * each])
        if operand is Operand.WHOLE and counts:
            return tuple((dtype, (sum(counts),)) for dtype, _ in tensors)
        if operand is Operand.WHOLE:
            return tuple(
                (dtype, (shape[0] * left // size, *shape[1:]) if shape else shape)
                for dtype, shape in tensors
            )
        return tensors

    row = op_of(signature.op)
    given, taken = sides(signature)
    sends, receives = (
        tuple(counts[at] for at in places) if len(counts) == size else counts
        for counts in (signature.sends, signature.receives)
    )
    given = fitted(given, row.inputs, sends)
    taken = fitted(taken, row.outputs, receives)
    swapped = sides(signature)[0] is not signature.tensors
    one, other = (taken, given) if swapped else (given, taken)
    return replace(
        signature,
        tensors=one,
        others=other,
        root=root,
        peer=peer,
        sends=sends,
        receives=receives,
    )


def spots(programs: Programs) -> Iterator[Spot]:
    """Yields all that may be left out by itself, in the order of the programs: each event but an
    end, and waits, which go with their calls."""
    for rank, program in programs.items():
        for at, event in enumerate(program.events):
            if not isinstance(event, Ended | Waited):
                yield rank, at


def units(programs: Programs) -> list[list[Spot]]:
    """Returns the spots that belong together on all ranks: a collective, a message, the making of a
    group; in the order in which the first of them comes."""
    found: dict[Hashable, list[Spot]] = {}
    counts: dict[Hashable, int] = {}
    order: dict[Hashable, float] = {}
    for rank, at in spots(programs):
        event = programs[rank].events[at]
        what: Hashable
        if isinstance(event, Made):
            call = event.call
            place = (rank, place_of(call))
            seq = counts[place] = counts.get(place, -1) + 1
            signature = call.signature
            what = (call.group, seq)
            if signature.peer is not None:
                ends = (rank, signature.peer)
                ends = ends if signature.op == "send" else ends[::-1]
                what = (call.group, ends, signature.tag, seq)
        elif isinstance(event, Created):
            what = ("made", event.creation.group)
        else:
            what = (rank, at)
        found.setdefault(what, []).append((rank, at))
        order[what] = min(order.get(what, at), at)
    return [found[what] for what in sorted(found, key=lambda what: order[what])]


def with_spots(programs: Programs, kept: Collection[Spot]) -> Programs:
    """Returns the programs with these events alone. A call goes with its group's making, and a wait
    with its call; groups that are not used any more are left out."""
    wanted = set(kept)
    made = {}
    for rank, program in programs.items():
        events: list[Event] = []
        gone: set[GroupKey] = set()
        numbers: set[int] = set()
        for at, event in enumerate(program.events):
            if isinstance(event, Made):
                if (rank, at) not in wanted or event.call.group in gone:
                    continue
                numbers.add(event.call.number)
            elif isinstance(event, Waited):
                if event.number not in numbers:
                    continue
            elif isinstance(event, Created):
                if (rank, at) not in wanted:
                    gone.add(event.creation.group)
                    continue
            elif isinstance(event, Destroyed) and (rank, at) not in wanted:
                continue
            events.append(event)
        made[rank] = _whole(program, events)
    used = {group_of(event) for program in made.values() for event in program.events}
    return {
        rank: replace(
            program,
            groups={
                key: group
                for key, group in program.groups.items()
                if key in used or group.desc == DEFAULT_GROUP
            },
        )
        for rank, program in made.items()
    }


def synchronous(programs: Programs) -> Programs:
    """Returns the programs with every call waited for where it is made."""
    made = {}
    for rank, program in programs.items():
        events = [
            replace(event, call=replace(event.call, is_async=False))
            if isinstance(event, Made)
            else event
            for event in program.events
            if not isinstance(event, Waited)
        ]
        made[rank] = _whole(program, events)
    return made


def ended(programs: Programs, rank: int) -> Programs:
    """Returns the programs with one in which this rank ends, if it does not."""
    program = programs[rank]
    if program.events and isinstance(program.events[-1], Ended):
        return programs
    return {**programs, rank: replace(program, events=[*program.events, Ended(0)])}


def by_world(programs: Programs) -> Programs:
    """Returns the programs with calls of other groups that have all ranks made in the default
    group."""
    made = {}
    everyone = tuple(programs)
    for rank, program in programs.items():
        world = next(k for k, group in program.groups.items() if group.desc == DEFAULT_GROUP)
        same = {key for key, group in program.groups.items() if group.ranks == everyone} - {world}
        events: list[Event] = []
        for event in program.events:
            if isinstance(event, Created) and event.creation.group in same:
                continue
            if isinstance(event, Made) and event.call.group in same:
                event = replace(event, call=replace(event.call, group=world))
            events.append(event)
        groups = {key: group for key, group in program.groups.items() if key not in same}
        made[rank] = replace(_whole(program, events), groups=groups)
    return made


def group_of(event: Event) -> GroupKey | None:
    """Returns the group that the event is of."""
    match event:
        case Made(call):
            return call.group
        case Created(creation):
            return creation.group
        case Destroyed(group):
            return group
    return None


def _whole(program: Program, events: Sequence[Event]) -> Program:
    """The program with these events; its note, of the exception that ends it, stays at the end."""
    numbers = {event.call.number for event in events if isinstance(event, Made)}
    kept = [one for one in events if not isinstance(one, Waited) or one.number in numbers]
    return replace(program, events=kept, notes=[(len(kept) - 1, one) for _, one in program.notes])
