"""A look at a job that runs: what each rank does, by its stack, and for how long it has. Pure.

`stance` reads it off the stacks; `judging` says what follows from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..record.snapshot import CallSite
from ..record.wording import RankState
from ..supervisor.stacks.sights import is_a_sleep

WAITS = {
    RankState.COLLECTIVE,
    RankState.MESSAGE,
    RankState.HANDLE,
    RankState.JOIN,
    RankState.BACKWARD,
}
"""What waits for other ranks."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: how long a call has to wait before anything is said (`waiting_s`), and how long for
    a rank that sleeps at one place, goes round at one place, or moves."""

    waiting_s: float = 1.0
    still_s: float = 5.0
    busy_s: float = 10.0
    moving_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Stance:
    """The stance of a rank: where it stands.

    `op`: the innermost call of torch's that is known by name; `call` is how it is printed. `group`
    is the source text of its group argument, "" for the default group, None where that is not
    known; `not_in` are the variables that would have a group if the rank were in it. `arguments`
    are those of `_ARGUMENTS` and `_OF_JOINS` that are on the stack. `keys` are those that a rank
    waits for at the store. `peers` are those of the messages that a handle is of, where the source
    and the variables tell all of them.
    `cause`: of a rank in its own code, as `missing_rank` has it. `computes`: it uses a core within
    one call, which may take its time, and not in a loop of which one sees the whole. `moves_data`,
    `at_work`, `serves`: as the process does, and is. `wakes_in_s`: as the thread does. `thread`:
    the user's function that the thread began with, where it is not the main one.
    """

    doing: RankState
    op: str = ""
    call: str | None = None
    site: CallSite | None = None
    still_s: float = 0.0
    running: bool = False
    group: str | None = None
    not_in: tuple[str, ...] = ()
    peers: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    cause: str | None = None
    computes: bool = False
    moves_data: bool = False
    at_work: bool = False
    serves: str = ""
    wakes_in_s: float | None = None
    thread: str = ""
    lines: Sequence[str] = ()
    """Its stack, innermost call first."""

    @property
    def waits(self) -> bool:
        """Whether it stands in a call that waits for other ranks: asleep, or on a core at one
        place, as MPI waits and a store's host does that accepts connections."""
        moves = self.running and not self.still_s
        return self.doing in WAITS and not moves and self.cause != "stopped"

    @property
    def in_store(self) -> bool:
        """Whether it waits for a key of a store."""
        return self.doing is RankState.STORE and not self.running and self.cause != "stopped"

    @property
    def sends(self) -> bool:
        """Whether the message that it stands in is a send."""
        return "send" in self.op

    @property
    def peer(self) -> int | None:
        """The other end of the message that it stands in; None where it is not known."""
        if self.doing is not RankState.MESSAGE:
            return None
        names = ("dst", "group_dst") if self.sends else ("src", "group_src")
        told = next((peer for name in names if (peer := self.number(name)) is not None), None)
        return self.peers[0] if told is None and len(self.peers) == 1 else told

    def of_unknown(self, waiting: Mapping[int, Stance]) -> bool:
        """Whether it waits for a message of which nobody knows whose it is: also where it waits for
        the handle of one, and so does the rank at its other end, perhaps of this very message."""
        if self.doing is not RankState.MESSAGE or self.peer is None:
            return self.doing is RankState.MESSAGE
        other = waiting.get(self.peer)
        return self.op == "wait" and other is not None and bool(other.peers)

    def number(self, name: str) -> int | None:
        """An argument that is a rank or a tag."""
        text = self.arguments.get(name, "")
        return int(text) if re.fullmatch(r"-?\d+", text) else None


@dataclass(frozen=True, slots=True)
class Look:
    """The ranks of a job on this host. `missing` should be here and have no process; `twice` are
    claimed by two processes; `never_came` have not come into the default group, by the job's store.
    `world_size` is 0 where nobody tells. `unserved`: where the job's store should be, and nobody
    listens. `age_s`: since the youngest of them was started."""

    ranks: Mapping[int, Stance]
    missing: tuple[int, ...] = ()
    twice: tuple[int, ...] = ()
    never_came: tuple[int, ...] = ()
    world_size: int = 0
    unserved: str = ""
    age_s: float = 0.0


def is_idle(one: Stance) -> bool:
    """Whether it stands in its own code and waits for a client, as a server does."""
    return one.doing is RankState.CODE and bool(one.serves) and one.cause != "stopped"


def is_asleep(one: Stance, for_s: float = 0.0) -> bool:
    """Whether one that is in no call has slept for so long, and nothing is seen that wakes it: it
    is no server, does and awaits no work, and has set itself no time."""
    asleep = (
        one.doing in (RankState.CODE, RankState.ENDING) and one.still_s > 0 and one.still_s >= for_s
    )
    busy = one.running or one.computes or one.at_work or one.moves_data or bool(one.serves)
    return asleep and not busy and not is_a_sleep(one.still_s, one.wakes_in_s)


def is_coming(one: Stance) -> bool:
    """Whether one that is in no call, and not late, may do something that others wait for."""
    return one.doing not in (RankState.GONE, RankState.UNREADABLE) and not is_idle(one)


def of_one_kind(
    stances: Mapping[int, Stance], threads: Mapping[int, Sequence[Stance]]
) -> dict[int, Stance]:
    """The stances of the threads that wait for each other: `stances` are what was taken for each
    rank, `threads` are all but its main one.

    Threads that began with one function are each other's peers. Where a rank waits in such a
    thread, its peer on another rank tells whom it waits for, and not what else that rank does;
    unless a rank has several of them, or its main thread waits in a call itself.
    """
    waiting = [one for one in stances.values() if one.waits and one.thread]
    if not waiting:
        return dict(stances)
    kind = max(waiting, key=lambda one: one.still_s).thread
    peers = {rank: [one for one in threads[rank] if one.thread == kind] for rank in stances}
    if any(len(of_rank) > 1 for of_rank in peers.values()):
        return dict(stances)
    return {
        rank: peers[rank][0] if peers[rank] and (one.thread or not one.waits) else one
        for rank, one in stances.items()
    }
