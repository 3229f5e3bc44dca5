"""A look at the processes of a job as a snapshot, which the diagnosis judges as any other. Pure.

A stack shows the call that a rank stands in, and nothing of the calls before it. So each rank has
made one call here, or none, and where nobody is absent ranks that wait in one group are taken to be
at one place of its sequence. Where somebody is, they may be at different places (who is first
through a broadcast waits in the next call), and calls of different names count as calls of
different groups, in each of which the absent rank is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..diagnosis.facts.world import DEFAULT_GROUP
from ..diagnosis.limits import SECOND_NS
from ..record.layout import Activity, CallState, GroupState
from ..record.notes import LayerOffNote
from ..record.ops import op_of
from ..record.signature import ANY_SOURCE, Signature, agreement_key, hash64
from ..record.snapshot import (
    Call,
    Channel,
    Creation,
    Group,
    GroupKey,
    Knows,
    Note,
    Process,
    Rank,
    RecalledHistory,
    Snapshot,
    Standstill,
    Wait,
    place_of,
)
from ..record.wording import RankState
from .look import Look, Stance

TAKEN_NS = 1 << 60
"""The moment of the look: any will do, so long as every wait began after 0."""
_WORLD: GroupKey = ("0", 0)
_FIRST = ("init_process_group", "TCPStore")
"""What makes the default group."""


@dataclass(frozen=True, slots=True)
class OneCall(RecalledHistory):
    """The one call of a rank that is known, with the number 0; or none."""

    made: Call | None

    def call(self, number: int) -> Call | None:
        return self.made if number == 0 else None

    def numbers(self, group: GroupKey | None) -> Sequence[int]:
        del group
        return range(self.made is not None)

    def number_of(self, place: Hashable, seq: int) -> int | None:
        known = self.made is not None and place_of(self.made) == place and seq == 0
        return 0 if known else None

    def chains_after(self, group: GroupKey, issued: int) -> tuple[int, int, int] | None:
        last = self.at(group, issued - 1)
        return (0, 0, 0) if last is None else (last.chain, last.exact, last.balance)


def as_snapshot(
    look: Look,
    waiting: Mapping[int, Stance],
    late: Collection[int] = (),
    ended: Collection[int] = (),
    *,
    apart: bool = False,
) -> tuple[Snapshot, Snapshot]:
    """The look twice: the second time as the proof that nothing has moved.

    `waiting`: who waits for other ranks; `late`: who does not come to them, or, where nobody waits,
    stands still; `ended`: who has no process any more. Who is none of these is left out, and so
    are the ranks of other hosts: they are members of groups, of whom nothing follows. `apart`: that
    ranks in calls of other names may be at other places of their group's sequence.
    """
    elsewhere = set(range(look.world_size)) - set(look.ranks) - set(look.missing)
    world = tuple(sorted({*look.ranks, *look.missing, *look.never_came, *elsewhere}))
    stances = {
        rank: waiting.get(rank) or look.ranks.get(rank) or Stance(RankState.GONE)
        for rank in sorted({*waiting, *late, *ended})
    }
    away = bool(late or ended)
    reader = _Reader(look, world, stances, waiting, away=away, apart=apart or away)
    ranks = {rank: reader.rank(rank, ended=rank in ended) for rank in stances}
    rivals = [replace(ranks[rank], pid=ranks[rank].pid + 1) for rank in look.twice if rank in ranks]
    unknown = set(world) - set(ranks) - set(look.never_came)
    off = LayerOffNote("look")
    unseen = Note(off.KIND, TAKEN_NS, "not looked at", data=off.data())
    now = Snapshot(
        TAKEN_NS,
        0 if unknown else len(world),
        ranks,
        rivals=rivals,
        unreadable=dict.fromkeys(unknown, unseen),
        knows=Knows(sequence=False, completion=False),
    )
    return now, replace(now, ranks={rank: replace(one) for rank, one in ranks.items()})


class _Reader:
    """Makes the ranks of a snapshot of their stances."""

    def __init__(
        self,
        look: Look,
        world: tuple[int, ...],
        stances: Mapping[int, Stance],
        waiting: Mapping[int, Stance],
        *,
        away: bool,
        apart: bool,
    ) -> None:
        self._world, self._stances, self._waiting = world, stances, waiting
        self._away, self._apart = away, apart
        self._members = {
            name: tuple(r for r in world if r not in look.ranks or name not in look.ranks[r].not_in)
            for name in {one.group for one in stances.values()}
        }
        self._all_make_groups = all(one.doing is RankState.JOIN for one in waiting.values())
        self._all_make_the_first = bool(waiting) and all(
            one.op in _FIRST for one in waiting.values()
        )

    def rank(self, number: int, *, ended: bool) -> Rank:
        """This rank. Its main thread has the number of its process, and is its only one."""
        one, waits = self._stances[number], number in self._waiting
        call = self._call(number) if waits else None
        # Where somebody is away, no cycle of others is looked for: who is in which group, and at
        # which place of its sequence, is not known well enough for one that explains more.
        acts = self._away or not waits
        still = None
        if not (ended or self._waiting):
            since_ns, leaving = _since_ns(one), one.doing is RankState.ENDING
            still = Standstill(since_ns, site=one.site, leaving=leaving)
        return Rank(
            rank=number,
            world_size=len(self._world),
            pid=_main_thread(number),
            process=Process(
                alive=not ended,
                state="T" if one.cause == "stopped" else "R" if one.running or acts else "S",
                exit_code=0 if ended else None,
                standstill=still,
            ),
            job=one.arguments.get("port", ""),
            heartbeat_ns=0 if one.cause == "gil_held" else TAKEN_NS,
            calls=int(call is not None),
            exit_code=0 if ended else None,
            free_threads=int(acts),
            location=one.site,
            groups=dict(self._groups(one, call)),
            channels=tuple(self._channels(call)),
            creations=tuple(self._creations(one)),
            waits=(self._wait(number, call),) if waits or one.doing is RankState.STORE else (),
            history=OneCall(call),
        )

    def _call(self, number: int) -> Call | None:
        """The call that it waits in; none where it makes a group, or waits for a store."""
        one = self._stances[number]
        if one.doing in (RankState.JOIN, RankState.STORE):
            return None
        if one.doing is RankState.MESSAGE:
            peer = None if one.of_unknown(self._waiting) else one.peer
            op = "send" if one.sends and peer is not None else "recv"
            peer = ANY_SOURCE if peer is None else peer
            signature = Signature(op, peer=peer, tag=one.number("tag") or 0)
            return _made(number, _WORLD, signature, one)
        word = op_of(one.op).root
        root = next((n for w in (word, "src", "dst") if (n := one.number(w)) is not None), None)
        group = (one.group, 0) if one.group else _WORLD
        if self._apart:
            group = (f"{one.group or ''}:{one.op}:{one.number('src')}:{one.number('dst')}", 0)
        return _made(number, group, Signature(one.op, root=root), one)

    def _groups(self, one: Stance, call: Call | None) -> Iterable[tuple[GroupKey, Group]]:
        if self._all_make_the_first:
            return
        state = GroupState.DESTROYED if one.doing is RankState.ENDING else GroupState.READY
        yield _WORLD, Group(_WORLD, DEFAULT_GROUP, self._world, "", state)
        if call is not None and call.signature.peer is None:
            members = self._members[one.group] if one.group else self._world
            made = Group(call.group, one.group or DEFAULT_GROUP, members, "", state)
            issued, chain, last = call.seq + 1, call.chain, call.number
            yield call.group, replace(made, issued=issued, chain=chain, last=last)

    def _channels(self, call: Call | None) -> Iterable[Channel]:
        if call is not None and call.signature.peer is not None:
            what = call.signature
            assert what.peer is not None
            yield Channel(call.group, what.op, what.peer, what.tag, 1, 0, 0)

    def _creations(self, one: Stance) -> Iterable[Creation]:
        """Yields the creation that ranks which make the same groups have in common. Where others
        stand elsewhere, it lacks those that have not come, whoever is meant to be in the group."""
        if one.doing is RankState.JOIN and self._all_make_groups and one.op not in _FIRST:
            name = " ".join(one.arguments.get(word, "") for word in ("group_name", "ranks"))
            yield Creation(0, (name, 0), self._world, "", one.site, 0, _since_ns(one))

    def _wait(self, number: int, call: Call | None) -> Wait:
        one = self._stances[number]
        activity = Activity.IN_CALL
        detail: dict[str, object] = {}
        if one.doing is RankState.STORE:
            activity, detail = Activity.STORE, {"key": ", ".join(one.keys) or "store"}
        elif one.doing is RankState.JOIN:
            # Who makes groups by one function makes them with the others, whoever is in them.
            activity = Activity.INIT if self._all_make_the_first else Activity.NEW_GROUP
            name = (one.call or "").partition("(")[0]
            detail = {"op": one.op, "name": name, "ranks": self._world}
        return Wait(
            thread=_main_thread(number),
            activity=activity,
            serial=1,
            since_ns=_since_ns(one),
            call=None if call is None else call.number,
            detail=detail,
            site=one.site,
        )


def _made(rank: int, group: GroupKey, signature: Signature, by: Stance) -> Call:
    """The call of a rank that stands so."""
    return Call(
        number=0,
        group=group,
        seq=0,
        signature=signature,
        site=by.site,
        thread=_main_thread(rank),
        state=CallState.STARTED,
        chain=hash64(agreement_key(signature)),
        issued_ns=_since_ns(by),
        started_ns=_since_ns(by),
    )


def _main_thread(rank: int) -> int:
    return rank * 2 + 1  # what is odd is no rival's


def _since_ns(one: Stance) -> int:
    return TAKEN_NS - int(one.still_s * SECOND_NS)
