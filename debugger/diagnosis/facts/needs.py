"""By the model of `blocking`, a wait needs other ranks in order to end.

    the model says that it waits for    it ends when                             certain?
    all                                 all absent members come                  yes
    the root                            the root comes                           yes
                                        the root is there, others are absent     after a while
    nobody                              absent members come                      after a while
    recv from b                         b sends                                  yes
    recv from b, whose messages others  b sends                                  after a while
    from any source may have taken
    recv from any                       any member sends                         yes
    send to b                           b receives (or a buffer takes it)        after a while
    new_group                           all members create it                    yes
    init_process_group                  all ranks of the world come              yes
    store, destroy, breakpoint          cannot be judged: as good as computing   -
    any of them, asked for only         as above, once the hang timeout passed   -
    an asynchronous call, DETAIL        by itself: its thread waits for the      -
                                        others for a second, not for its end

"After a while": nobody knows whether such a call has to wait, so that it does is concluded from
its waiting: `settle_s`, and the time that its bytes may take at 100 MB/s. Which of the absent
members holds it up is not known either, so any of them may end it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...record.layout import BOUNDED_S, Activity, CallState, GroupState
from ...record.signature import ANY_SOURCE, larger_side_bytes
from ...record.snapshot import Call, Creation
from ..limits import SECOND_NS, SLOW_BYTES_PER_S
from .blocking import WaitsFor, certainly
from .channels import Channels
from .world import DEFAULT_GROUP, Pending, World


@dataclass(frozen=True, slots=True)
class Need:
    """The wait ends when all (or, with `any_of`, one) of these ranks have acted. Never empty."""

    ranks: frozenset[int]
    any_of: bool = False
    certain: bool = True


class Needs:
    """Answers for one snapshot. Equal needs of different ranks are one object."""

    def __init__(self, world: World, channels: Channels) -> None:
        self.world = world
        self.channels = channels
        self._shared: dict[Need, Need] = {}
        self._memo: dict[int, Need | None] = {}
        self._alike: dict[tuple[int, int], Need | None] = {}
        self._behind: dict[tuple[object, int], frozenset[int]] = {}
        self._late: dict[int, frozenset[int]] = {}

    def of(self, pending: Pending) -> Need | None:
        """Returns what the wait needs; None when it may end by itself or cannot be judged."""
        memo = id(pending)  # the world keeps its Pending objects
        if memo not in self._memo:
            need = self._find(pending)
            waited_ns = self.world.now_ns - pending.wait.since_ns
            short = self.world.knows.clock and waited_ns < self._enough_ns(pending.call)
            if need and not need.certain and short:
                need = None
            if need and self._may_go_on(pending):
                need = None
            self._memo[memo] = self._shared.setdefault(need, need) if need else None
        return self._memo[memo]

    def of_all(self, rank: int) -> list[Need] | None:
        """Returns what the waits of the rank need; None when it is in none, or one may end by
        itself."""
        rows = [self.of(pending) for pending in self.world.pending(rank)]
        found = [need for need in rows if need is not None]
        return found if found and len(found) == len(rows) else None

    def likely(self, pending: Pending) -> frozenset[int]:
        """Returns the ranks that most likely should end the wait: for a receive from any source
        those that have sent less than the others, else all that could end it."""
        need, call = self.of(pending), pending.call
        if need is None:
            return frozenset()
        if call is None or call.signature.peer != ANY_SOURCE:
            return need.ranks
        return frozenset(
            self.channels.sent_less(pending.rank, call, sorted(need.ranks)) or need.ranks
        )

    def _find(self, pending: Pending) -> Need | None:
        call = pending.call
        if call is not None:
            if call.signature.peer is not None:
                return self._message(pending, call)
            view = self.world.view(pending.rank, call.group)
            if view is None:
                return None
            for_all = call.agrees or not self.world.knows.root
            waits_for = WaitsFor.ALL if for_all else certainly(call.signature, pending.rank)
            if waits_for is WaitsFor.ALL:
                key = (id(view), call.seq)
                if key not in self._alike:
                    self._alike[key] = _need(self.world.absent(view, call.seq))
                return self._alike[key]
            root = call.signature.root
            absent = self.world.absent(view, call.seq) - {pending.rank}
            if waits_for is WaitsFor.ROOT and root in absent:
                return _need(frozenset({root}))
            return _need(absent, any_of=True, certain=False)
        activity = pending.wait.activity
        if activity is Activity.NEW_GROUP:
            return _need(self.not_created(pending))
        if activity is Activity.INIT:
            return _need(self.not_initialised(pending.rank))
        return None

    def _message(self, pending: Pending, call: Call) -> Need | None:
        rank, peer = pending.rank, call.signature.peer
        assert peer is not None
        channels = self.channels
        if peer == ANY_SOURCE:
            if not channels.lacks(rank, call):
                return None
            view = self.world.view(rank, call.group)
            members = frozenset(view.ranks) - {rank} if view else frozenset()
            return _need(members, any_of=True)
        posted, receives = channels.posted(rank, call), call.signature.op == "recv"
        if posted or (posted is None and not (receives and self._was_taken(rank, call))):
            return None
        return _need(frozenset({peer}), certain=receives and posted is False)

    def _was_taken(self, rank: int, call: Call) -> bool:
        """Whether another receive of the rank has taken the message that this one may wait for:
        that was over for its sender, and the rank has run since, and stands here still."""
        key = self.channels.key_of(rank, call)
        over_ns = self.channels.all_received_ns(key)
        if over_ns is None or not self.world.knows.clock:
            return False
        apart_ns = self.world.snapshot.between_clocks_ns([rank], [key[1]])
        ran_ns = self.world.ranks[rank].heartbeat_ns
        return ran_ns >= over_ns + self._enough_ns(call) + apart_ns

    def not_created(self, pending: Pending) -> frozenset[int]:
        """Ranks that the creation this rank waits in needs, and that have not entered it.

        torch's own creation needs the members alone, and with TORCH_DIST_INIT_BARRIER=1 all ranks
        of the world. The n-th creation of a name is the same on every rank.
        """
        detail = pending.wait.detail
        name = str(detail.get("name"))
        creation = self.creation(pending)
        wanted: object = detail.get("ranks") or (creation.ranks if creation else ())
        if detail.get("barrier") and creation is not None:
            wanted = tuple(self.world.expected)
        if not isinstance(wanted, (list, tuple)):
            return frozenset()
        key = creation.group if creation else (name, None)
        memo = (key, len(wanted))
        if memo not in self._behind:
            self._behind[memo] = frozenset(
                rank for rank in wanted if not self.came(int(rank), name, creation)
            )
        return self._behind[memo] - {pending.rank}

    def came(self, rank: int, name: str, creation: Creation | None) -> bool:
        """Whether the rank has entered the creation of the group with this name."""
        record = self.world.ranks.get(rank)
        if record is None:
            return False
        if creation is not None:
            return any(row.group == creation.group for row in reversed(record.creations))
        return any(key[0] == name for key in record.groups) or any(
            row.wait.activity is Activity.NEW_GROUP and row.wait.detail.get("name") == name
            for row in self.world.pending(rank)
        )

    def creation(self, pending: Pending) -> Creation | None:
        """The creation on record that the rank waits in; None for one that only members make."""
        name = pending.wait.detail.get("name")
        rows = self.world.ranks[pending.rank].creations
        return next((row for row in reversed(rows) if name in (None, row.group[0])), None)

    def not_initialised(self, rank: int) -> frozenset[int]:
        """Ranks that have begun fewer default groups than this one, as far as can be seen."""
        world = self.world
        mine = self._begun(rank)
        if mine not in self._late:
            self._late[mine] = frozenset(
                other
                for other in world.expected
                if other not in world.unrecorded
                and (other not in world.ranks or self._begun(other) < mine)
            )
        return self._late[mine]

    def _begun(self, rank: int) -> int:
        groups = self.world.ranks[rank].groups
        formed = {
            key[1] + 1: group.state
            for key, group in groups.items()
            if group.desc == DEFAULT_GROUP and group.state is not GroupState.CREATING
        }
        begun = max(formed, default=0)
        if formed.get(begun) is GroupState.READY:
            return begun  # torch allows no second one beside it: an initialisation is at its end
        return begun + (self.world.activity(rank, Activity.INIT) is not None)

    def _may_go_on(self, pending: Pending) -> bool:
        """Whether the thread is in an asynchronous call that it leaves, whoever comes; or asks
        whether its call is over, and has not done so for long: it may do something else."""
        call, wait = pending.call, pending.wait
        if wait.asks and self.world.waited_ns(wait) < self.world.limits.hang_ns:
            return True
        if call is None or not call.bounded or call.state is not CallState.ISSUED:
            return False
        return self.world.now_ns - call.issued_ns < BOUNDED_S * SECOND_NS

    def _enough_ns(self, call: Call | None) -> float:
        size_bytes = larger_side_bytes(call.signature) if call else 0
        return self.world.limits.settle_ns + size_bytes / SLOW_BYTES_PER_S * SECOND_NS


def _need(ranks: frozenset[int], *, any_of: bool = False, certain: bool = True) -> Need | None:
    return Need(ranks, any_of, certain) if ranks else None
