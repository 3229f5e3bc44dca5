"""`World` answers what several rules ask of one snapshot: who is in a group, who waits, who left.

A rank is *unrecorded* when its layer switched itself off, or its record cannot be read. The record
then stays as it is while the rank runs on, so nothing may be concluded from what it does not show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...record.exits import POLITE_SIGNALS
from ...record.layout import Activity, CallState, GroupState, Phase
from ...record.notes import CaughtExceptionNote, ExceptionNote, LayerOffNote, NoteData
from ...record.snapshot import (
    Call,
    CallSite,
    Channel,
    Group,
    GroupKey,
    Note,
    Rank,
    Snapshot,
    Wait,
)
from ...record.wording import group_name, numbered
from ..limits import APART_NS, ON_CORE_NS, Limits
from .slips import Slips

DEFAULT_GROUP = "default_pg"
CREATION_BARRIER = "store_based_barrier_key:"
STOPPED = frozenset("Tt")
_MOST_ON_A_GPU = 64
"""So many of a rank's last calls are looked at for one that is not over."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as all of its ranks together see it. `states` has the ranks that created it."""

    key: GroupKey
    ranks: tuple[int, ...]
    states: dict[int, Group]

    @property
    def any(self) -> Group:
        return next(iter(self.states.values()))

    @property
    def complete(self) -> bool:
        """Every member has created it."""
        return len(self.states) == len(self.ranks)


@dataclass(frozen=True, slots=True)
class Pending:
    """A wait together with the call that it is in (None: no call, or no longer on record)."""

    rank: int
    wait: Wait
    call: Call | None

    @property
    def site(self) -> CallSite | None:
        """Returns the thread's line: for an asynchronous call, where it waits for the handle."""
        return self.wait.site or (self.call.site if self.call else None)


class World:
    """The present snapshot, the one before it, and the limits. Caches what is asked often."""

    def __init__(
        self,
        snapshot: Snapshot,
        previous: Snapshot | None,
        limits: Limits,
        slips: Slips | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.previous = previous
        self.limits = limits
        self.slips = slips or Slips()
        self.ranks = snapshot.ranks
        self.knows = snapshot.knows
        self.now_ns = snapshot.taken_ns
        self._pending: dict[int, tuple[Pending, ...]] = {}
        self._absent: dict[tuple[int, int], frozenset[int]] = {}

    # -- who is there --------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The expected number of ranks; 0: unknown, so that unseen ranks mean nothing."""
        return self.snapshot.world_size

    @cached_property
    def expected(self) -> Sequence[int]:
        """The ranks that should be there."""
        return range(self.size) if self.size else sorted(self.ranks)

    @cached_property
    def unrecorded(self) -> frozenset[int]:
        off = (
            number
            for number, rank in self.ranks.items()
            if rank.notes and LayerOffNote.among(rank.notes)
        )
        return frozenset((*off, *self.snapshot.unreadable))

    @cached_property
    def stopped(self) -> frozenset[int]:
        """Live ranks that a signal has stopped."""
        return frozenset(
            number
            for number, rank in self.ranks.items()
            if rank.process.alive and rank.process.state in STOPPED
        )

    @cached_property
    def last_heartbeat_ns(self) -> int:
        """The last one of all ranks."""
        return max((rank.heartbeat_ns for rank in self.ranks.values()), default=0)

    def ended(self, rank: int) -> bool:
        """The process is gone, or has run its last line of Python and hangs in its teardown. One
        that failed has nothing left to give others there; one that did not may yet complete."""
        return rank in self._ended

    @cached_property
    def _ended(self) -> frozenset[int]:
        return frozenset(
            number
            for number, found in self.ranks.items()
            if not found.process.alive
            or (
                found.phase is Phase.ENDED
                and found.exit_code is not None
                and (found.exit_code != 0 or self.now_ns - found.heartbeat_ns > ON_CORE_NS)
            )
        )

    @cached_property
    def eventful(self) -> Sequence[int]:
        """The ranks that have ended or noted anything, in order: of the many others, which do no
        more than call and wait, no rule about ends and exceptions has to ask."""
        noted = {number for number, rank in self.ranks.items() if rank.notes}
        return sorted(noted | self._ended)

    def finished(self, rank: int) -> bool:
        """Returns whether the rank ended by itself with status 0 and without an uncaught
        exception."""
        found = self.ranks.get(rank)
        if found is None or not self.ended(rank) or found.process.signal is not None:
            return False
        return exit_status(found) == 0 and not self.notes(rank, ExceptionNote)

    def ended_unseen(self, rank: int) -> bool:
        """The process is gone, and nobody saw with what status: mpiexec keeps its ranks' to itself.
        One that ended by itself says 0 until it knows better."""
        found = self.ranks[rank]
        gone = not found.process.alive and found.process.signal is None
        return gone and found.process.exit_code is None and found.phase is not Phase.ENDED

    def notes(self, rank: int, kind: type[NoteData]) -> list[Note]:
        all_of_rank = self.ranks[rank].notes
        if not all_of_rank:
            return []
        found = kind.among(all_of_rank)
        if kind is ExceptionNote and not found:
            record = self.ranks[rank]
            found = caught_exceptions(record)[:1]
            if not found and self.limits.failed and self.ended_unseen(rank):
                found = swallowed(record)[:1]
        return found

    # -- groups --------------------------------------------------------------------------------

    @cached_property
    def groups(self) -> list[GroupView]:
        """Every group; ranks that give one name to different sets of ranks make several."""
        by_key: dict[GroupKey, list[GroupView]] = {}
        for number, rank in self.ranks.items():
            for key, group in rank.groups.items():
                views = by_key.setdefault(key, [])
                for view in views:
                    if view.ranks is group.ranks or view.ranks == group.ranks:
                        view.states[number] = group
                        break
                else:
                    views.append(GroupView(key, group.ranks, {number: group}))
        return [view for views in by_key.values() for view in views]

    @cached_property
    def _views(self) -> dict[GroupKey, list[GroupView]]:
        found: dict[GroupKey, list[GroupView]] = {}
        for view in self.groups:
            found.setdefault(view.key, []).append(view)
        return found

    def view(self, rank: int, key: GroupKey) -> GroupView | None:
        """The group with that name which the rank is in."""
        views = self._views.get(key, ())
        return next((view for view in views if rank in view.states), None)

    def may_come(self, rank: int) -> bool:
        """Whether more may be heard of the rank: not of one that has ended, or whose record is lost
        in a run that is over."""
        return not self.ended(rank) and (rank in self.ranks or not self.snapshot.over)

    def absent(self, view: GroupView, seq: int) -> frozenset[int]:
        """Members that have not issued the collective with this number, or not begun it."""
        memo = (id(view), seq)  # views live as long as this object
        found = self._absent.get(memo)
        if found is None:
            states = view.states
            found = frozenset(
                rank for rank in view.ranks if rank not in states or begun(states[rank]) <= seq
            )
            self._absent[memo] = found
        return found

    def left(self, rank: int, view: GroupView) -> bool:
        """The rank will not enter any further call of the group."""
        if rank in self.unrecorded:
            return False
        state = view.states.get(rank)
        return self.finished(rank) or (state is not None and state.state is GroupState.DESTROYED)

    # -- waits ---------------------------------------------------------------------------------

    def pending(self, rank: int) -> tuple[Pending, ...]:
        """Returns what the threads of a live rank wait for; nothing is known of an unrecorded
        one."""
        found = self._pending.get(rank)
        if found is None:
            record = self.ranks.get(rank)
            rows: list[Pending] = []
            if record is not None and not self.ended(rank) and rank not in self.unrecorded:
                for wait in record.waits:
                    if wait.activity is Activity.NONE:
                        continue
                    call = None
                    if wait.call is not None and record.history is not None:
                        call = record.history.call(wait.call)
                    rows.append(self._on_its_gpu(record, wait) or Pending(rank, _named(wait), call))
            found = self._pending[rank] = tuple(rows)
        return found

    def _on_its_gpu(self, record: Rank, wait: Wait) -> Pending | None:
        """The end of all groups waits for the calls of NCCL that the program has waited for, and
        only streams do: then it waits in the first that is not over."""
        ends = wait.activity is Activity.DESTROY and wait.detail.get("whole") is True
        if not ends or record.history is None:
            return None
        groups = on_nccl(record)
        for call in record.history.recent(_MOST_ON_A_GPU) if groups else ():
            if call.state is CallState.STARTED and call.group in groups:
                waits = replace(wait, activity=Activity.IN_CALL, call=call.number, site=call.site)
                return Pending(record.rank, waits, call)
        return None

    @cached_property
    def all_pending(self) -> Sequence[Pending]:
        """The waits of the threads of all ranks, in the order of `ranks`."""
        return [pending for rank in self.ranks for pending in self.pending(rank)]

    @cached_property
    def waiting(self) -> frozenset[int]:
        """The ranks that wait for anything."""
        return frozenset(pending.rank for pending in self.all_pending)

    def collective(self, rank: int, view: GroupView, seq: int) -> Call | None:
        """The rank's call with this number in the group, if it is on record."""
        for pending in self.pending(rank):
            if pending.call is not None and is_collective(pending.call, view.key, seq):
                return pending.call
        return self.call_at(rank, view.key, seq)

    def call_at(self, rank: int, group: GroupKey, seq: int) -> Call | None:
        """The rank's call with this number in the group, if it is in its history."""
        record = self.ranks.get(rank)
        history = record.history if record is not None else None
        return history.at(group, seq) if history is not None else None

    def place(self, view: GroupView, call: Call) -> str:
        """`#17 of group "default_pg"`, or, of a message, `in group "default_pg"`."""
        if call.signature.peer is None:
            return numbered(view.any, call.seq)
        return f'in group "{group_name(view.key[0], view.any.desc)}"'

    def stable(self, rank: int) -> bool:
        """Nothing in the rank's layer moved between the two snapshots."""
        before = self.previous.ranks.get(rank) if self.previous else None
        now = self.ranks.get(rank)
        if before is None or now is None or (before is now and not now.node):
            return False  # of another node: nothing was told that differs
        return (
            before.pid == now.pid
            and before.layer_serial == now.layer_serial
            and before.calls == now.calls
            and [(w.thread, w.serial) for w in before.waits]
            == [(w.thread, w.serial) for w in now.waits]
        )

    def waited_ns(self, wait: Wait) -> int:
        """Returns how long the wait has lasted by the clock of the limits."""
        return self.now_ns - max(wait.since_ns, self.limits.clock_from_ns)

    @cached_property
    def at_breakpoint(self) -> tuple[int, ...]:
        """The ranks that stand at a breakpoint."""
        return tuple(
            number
            for number, rank in sorted(self.ranks.items())
            if any(wait.activity is Activity.PAUSED for wait in rank.waits)
            and not self.ended(number)
        )

    @property
    def paused(self) -> bool:
        """Returns whether a rank is at a breakpoint, so that lateness means nothing."""
        return bool(self.at_breakpoint)

    def activity(self, rank: int, activity: Activity) -> Wait | None:
        """The rank's wait of that sort, if any (live ranks only, and none that is unrecorded)."""
        return self.engaged(activity).get(rank)

    def engaged(self, activity: Activity) -> Mapping[int, Wait]:
        """The ranks that have a wait of that sort, in the order of `ranks`, and it."""
        return self._engaged.get(activity, {})

    @cached_property
    def _engaged(self) -> Mapping[Activity, Mapping[int, Wait]]:
        found: dict[Activity, dict[int, Wait]] = {}
        for number, rank in self.ranks.items():
            if not rank.waits or self.ended(number) or number in self.unrecorded:
                continue
            for wait in rank.waits:
                if wait.activity is not Activity.STORE or _named(wait) is wait:
                    found.setdefault(wait.activity, {}).setdefault(number, wait)
        return found


def written_before(world: World, rank: int, moment_ns: int) -> bool:
    """Whether the rank's record is of before this moment, long before the last one of the others:
    what it does not have may have come since. (That others are younger as well is asked for since
    clocks of ranks may be apart.)"""
    return world.ranks[rank].heartbeat_ns < min(moment_ns, world.last_heartbeat_ns) - APART_NS


def is_collective(call: Call, group: GroupKey, seq: int) -> bool:
    """Whether it is the collective of the group with this number."""
    return call.signature.peer is None and (call.group, call.seq) == (group, seq)


def begun(state: Group | Channel) -> int:
    """Returns how many calls of a group, or messages of a channel, the rank has come to."""
    return state.issued if state.begun is None else state.begun


def on_nccl(rank: Rank) -> frozenset[GroupKey]:
    """The rank's groups of which NCCL, torch's or distcore's, makes the calls on GPUs."""
    return frozenset(key for key, group in rank.groups.items() if "nccl" in group.backend)


def _named(wait: Wait) -> Wait:
    """The barrier by which torch ends a group creation waits for a store key: a creation."""
    key = str(wait.detail.get("key", "")) if wait.activity is Activity.STORE else ""
    if not key.startswith(CREATION_BARRIER):
        return wait
    name = key[len(CREATION_BARRIER) :].removesuffix(":last_worker")
    detail = {"op": "new_group", "name": name, "barrier": True}
    return replace(wait, activity=Activity.NEW_GROUP, detail=detail)


def caught_exceptions(rank: Rank) -> list[Note]:
    """Returns what a test runner has caught in a rank that ended with a status other than 0: the
    first exception is why it ended. A rank that a signal ended before it could exit by itself
    counts as well, if it had made no call since."""
    if rank.process.alive:
        return []
    if exit_status(rank):
        return CaughtExceptionNote.among(rank.notes)
    return swallowed(rank) if rank.process.signal in POLITE_SIGNALS else []


def swallowed(rank: Rank) -> list[Note]:
    """Returns what was caught in a rank, if it has made no call since."""
    found = CaughtExceptionNote.among(rank.notes)
    last = rank.history.recent(1) if found and rank.history else ()
    return [] if any(call.issued_ns > found[0].time_ns for call in last) else found


def exit_status(rank: Rank) -> int | None:
    """The status that the operating system or the rank itself gave; None: nobody could tell."""
    if rank.process.exit_code is not None:
        return rank.process.exit_code
    return rank.exit_code


def exited_ns(rank: Rank) -> int | None:
    """When the end of a rank that has ended began: its backend tells the others then, and handlers
    of the program's may run for long after that. None: nobody saw it."""
    if rank.process.signal is None and rank.exiting_ns:
        return rank.exiting_ns
    return rank.process.ended_ns
