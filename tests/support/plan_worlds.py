"""Made-up programs of ranks, for what counts and compares them.

world = World(4)
world.each(lambda rank: all_reduce(8), line=3)
world.calls(2, all_reduce(8), line=4, group="tp", ranks=(2, 3))
"""

from __future__ import annotations

from collections.abc import Callable

from distdebug.plan.program import Created, Event, Made, Program
from distdebug.plan.traffic import RankCalls, of_programs
from distdebug.record.layout import CallState, GroupState
from distdebug.record.signature import Signature
from distdebug.record.snapshot import Call, CallSite, Creation, Group, GroupKey, Place

WORLD: GroupKey = ("0", 0)


def site(line: int) -> CallSite:
    return CallSite("/home/user/train.py", line, "main")


class World:
    """The programs of so many ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        everybody = tuple(range(size))
        self.groups: dict[int, dict[GroupKey, Group]] = {
            rank: {WORLD: group(WORLD, "default_pg", everybody)} for rank in everybody
        }
        self.events: dict[int, list[Event]] = {rank: [] for rank in everybody}
        self.made = 0

    def group(self, ranks: tuple[int, ...], desc: str = "undefined", line: int = 1) -> GroupKey:
        """All make a group together."""
        self.made += 1
        key = (str(self.made), 0)
        creation = Creation(self.made, key, ranks, "gloo", site(line), 0, 0)
        for rank, events in self.events.items():
            events.append(Created(creation))
            if rank in ranks:
                self.groups[rank][key] = group(key, desc, ranks)
        return key

    def calls(self, rank: int, *signatures: Signature, line: int = 1, on: GroupKey = WORLD) -> None:
        """The rank makes these calls."""
        for signature in signatures:
            number = sum(isinstance(one, Made) for one in self.events[rank])
            call = Call(
                number=number,
                group=on,
                seq=number,
                signature=signature,
                site=site(line),
                thread=1,
                state=CallState.COMPLETED,
                place=Place((site(line),)),
            )
            self.events[rank].append(Made(call))

    def each(
        self, signature: Callable[[int], Signature], line: int = 1, on: GroupKey = WORLD
    ) -> None:
        """All ranks of the group make this call."""
        for rank in range(self.size):
            if on in self.groups[rank]:
                self.calls(rank, signature(rank), line=line, on=on)

    def programs(self) -> dict[int, Program]:
        return {
            rank: Program(rank, self.size, groups=self.groups[rank], events=tuple(events))
            for rank, events in self.events.items()
        }

    def ranks(self) -> list[RankCalls]:
        return of_programs(self.programs())


def group(key: GroupKey, desc: str, ranks: tuple[int, ...]) -> Group:
    return Group(key=key, desc=desc, ranks=ranks, backend="gloo", state=GroupState.READY)


def tensor(*shape: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return (("float32", shape),)


def all_reduce(*shape: int, op: str = "sum") -> Signature:
    return Signature("all_reduce", tensor(*shape), reduce_op=op)


def broadcast(*shape: int, root: int = 0) -> Signature:
    return Signature("broadcast", tensor(*shape), root=root)


def all_gather(size: int, *shape: int) -> Signature:
    return Signature("all_gather", tensor(*shape), tensor(*shape) * size)


def send(to: int, *shape: int) -> Signature:
    return Signature("send", tensor(*shape), peer=to)


def recv(source: int, *shape: int) -> Signature:
    return Signature("recv", tensor(*shape), peer=source)
