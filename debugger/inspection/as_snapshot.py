"""A look at the processes of a job as a snapshot, which the diagnosis judges as any other. Pure.

A stack shows the call that a rank stands in, and nothing of the calls before it. So each rank has
made one call here, or none, and where nobody is absent ranks that wait in one group are taken to be
at one place of its sequence. Where somebody is, they may be at different places (who is first
through a broadcast waits in the next call), and calls of different names count as calls of
different groups, in each of which the absent rank is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..diagnosis.facts.world import DEFAULT_GROUP
from ..diagnosis.limits import SECOND_NS
from ..record.layout import Activity, CallState, GroupState
from ..record.signature import ANY_SOURCE, RULES, Signature, agreement_key, hash64
from ..record.snapshot import (
    Call,
    CallSite,
    Channel,
    Creation,
    Group,
    GroupKey,
    Note,
    Process,
    Rank,
    Snapshot,
    Standstill,
    Timing,
    Wait,
)
from .stance import Doing, Stance
from .suspicions import Look

KNOWS = frozenset({"root", "tag"})
"""What the snapshot of a look answers, of the questions that a rule may ask."""
TAKEN_NS = 1 << 60
"""The moment of the look: any will do, so long as every wait began after 0."""
_WORLD: GroupKey = ("0", 0)
_FIRST = ("init_process_group", "TCPStore")
"""What makes the default group."""


@dataclass(frozen=True, slots=True)
class FewCalls:
    """The few calls of a rank that are known, the first of which has the number 0: a
    `snapshot.History`."""

    made: Sequence[Call] = ()

    def call(self, number: int) -> Call | None:
        return self.made[number] if 0 <= number < len(self.made) else None

    def at(self, group: GroupKey, seq: int) -> Call | None:
        calls = [one for one in self.made if one.group == group and one.signature.peer is None]
        return calls[seq] if 0 <= seq < len(calls) else None

    def message(self, channel: Channel, seq: int) -> Call | None:
        return self.call(seq) if channel.last == 0 else None

    def recent(self, count: int, group: GroupKey | None = None) -> Sequence[Call]:
        made = [one for one in self.made if group in (None, one.group)]
        return made[-count:] if count > 0 else []

    def timings(self, numbers: Iterable[int]) -> Sequence[Timing]:
        return [Timing.of(call) for call in map(self.call, numbers) if call is not None]

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
    by_way: bool = False,
) -> tuple[Snapshot, Snapshot]:
    """The look twice: the second time as the proof that nothing has moved.

    `waiting`: who waits for other ranks; `late`: who does not come to them, or, where nobody waits,
    stands still; `ended`: who has no process any more. Who is none of these is left out, and so
    are the ranks of other hosts: they are members of groups, of whom nothing follows. `apart`: that
    ranks in calls of other names may be at other places of their group's sequence. `by_way`: that
    ranks which wait for handles have made the calls of their `Stance.way`, and no others.
    """
    elsewhere = set(range(look.world_size)) - set(look.ranks) - set(look.missing)
    world = tuple(sorted({*look.ranks, *look.missing, *look.never_came, *elsewhere}))
    ranks = {}
    for rank in sorted({*waiting, *late, *ended}):
        one = waiting.get(rank) or look.ranks.get(rank) or Stance(Doing.GONE)
        outside = {r for r, other in look.ranks.items() if one.group in other.not_in}
        members = tuple(r for r in world if r not in outside)
        away = bool(late or ended)
        reading = _Reading(rank, one, world, members, waiting, away, apart or away, by_way)
        ranks[rank] = reading.rank(ended=rank in ended)
    rivals = [replace(ranks[rank], pid=ranks[rank].pid + 1) for rank in look.twice if rank in ranks]
    unknown = set(world) - set(ranks) - set(look.never_came)
    now = Snapshot(
        TAKEN_NS,
        0 if unknown else len(world),
        ranks,
        rivals=rivals,
        unreadable={rank: Note("layer_off", TAKEN_NS, "not looked at") for rank in unknown},
        knows=KNOWS,
    )
    return now, replace(now, ranks={rank: replace(one) for rank, one in ranks.items()})


@dataclass(frozen=True, slots=True)
class _Reading:
    """One rank, of which this is the stance."""

    number: int
    one: Stance
    world: tuple[int, ...]
    members: tuple[int, ...]
    waiting: Mapping[int, Stance]
    away: bool
    apart: bool
    by_way: bool

    def rank(self, *, ended: bool) -> Rank:
        one = self.one
        waits = self.number in self.waiting
        calls = self._way() if self.by_way else [self._call()] if waits else []
        made = [call for call in calls if call is not None]
        call = made[-1] if made else None
        groups = {} if self._has_no_group() else dict(self._groups(call))
        # Where somebody is away, no cycle of others is looked for: who is in which group, and at
        # which place of its sequence, is not known well enough for one that explains more.
        acts = self.away or not waits
        state = "T" if one.cause == "stopped" else "R" if one.running or acts else "S"
        return Rank(
            rank=self.number,
            world_size=len(self.world),
            pid=self.number * 2 + 1,
            process=Process(
                alive=not ended,
                state=state,
                exit_code=0 if ended else None,
                standstill=None if ended or self.waiting else self._standstill(),
            ),
            job=one.arguments.get("port", ""),
            heartbeat_ns=0 if one.cause == "gil_held" else TAKEN_NS,
            calls=len(made),
            exit_code=0 if ended else None,
            free_threads=int(acts),
            location=one.site,
            groups=groups,
            channels=tuple(self._channels(call)),
            creations=tuple(self._creations()),
            waits=(self._wait(call),) if waits or one.doing is Doing.STORE else (),
            history=FewCalls(made),
        )

    def _has_no_group(self) -> bool:
        """Whether it makes the default group with all others, or has not come to them."""
        return bool(self.waiting) and self._all_make_the_first

    @property
    def _all_make_the_first(self) -> bool:
        return all(one.op in _FIRST for one in self.waiting.values())

    @property
    def _all_make_groups(self) -> bool:
        return all(one.doing is Doing.JOIN for one in self.waiting.values())

    def _call(self) -> Call | None:
        """The call that it waits in; None where it makes a group, or waits for a store."""
        one = self.one
        if one.doing in (Doing.JOIN, Doing.STORE):
            return None
        if one.doing is Doing.MESSAGE:
            peer = None if one.of_unknown(self.waiting) else one.peer
            signature = Signature(
                "send" if one.sends and peer is not None else "recv",
                peer=ANY_SOURCE if peer is None else peer,
                tag=one.number("tag") or 0,
            )
            key = _WORLD
        else:
            word = RULES[one.op].root if one.op in RULES else ""
            root = next((n for w in (word, "src", "dst") if (n := one.number(w)) is not None), None)
            signature = Signature(one.op, root=root)
            key = self._key()
        return self._made(0, key, signature, one.site, chain=0)

    def _way(self) -> list[Call]:
        """The calls that its function has made."""
        calls: list[Call] = []
        for op, line in self.one.way:
            site = self.one.site and replace(self.one.site, line=line)
            chain = calls[-1].chain if calls else 0
            calls.append(self._made(len(calls), _WORLD, Signature(op), site, chain))
        return calls

    def _made(
        self, number: int, key: GroupKey, signature: Signature, site: CallSite | None, chain: int
    ) -> Call:
        return Call(
            number=number,
            group=key,
            seq=number,
            signature=signature,
            site=site,
            thread=self.number * 2 + 1,
            state=CallState.STARTED,
            chain=hash64((chain, agreement_key(signature))),
            issued_ns=self._since_ns(),
            started_ns=self._since_ns(),
        )

    def _key(self) -> GroupKey:
        group = self.one.group or ""
        if self.apart:
            return f"{group}:{self.one.op}:{self.one.number('src')}:{self.one.number('dst')}", 0
        return (group, 0) if group else _WORLD

    def _groups(self, call: Call | None) -> Iterable[tuple[GroupKey, Group]]:
        left = self.one.doing is Doing.ENDING
        state = GroupState.DESTROYED if left else GroupState.READY
        yield _WORLD, Group(_WORLD, DEFAULT_GROUP, self.world, "", state)
        if call is not None and call.signature.peer is None:
            desc = self.one.group or DEFAULT_GROUP
            yield (
                call.group,
                Group(
                    call.group,
                    desc,
                    self.members,
                    "",
                    state,
                    issued=call.seq + 1,
                    chain=call.chain,
                    last=call.number,
                ),
            )

    def _channels(self, call: Call | None) -> Iterable[Channel]:
        if call is not None and call.signature.peer is not None:
            what = call.signature
            assert what.peer is not None
            yield Channel(call.group, what.op, what.peer, what.tag, 1, 0, 0)

    def _creations(self) -> Iterable[Creation]:
        """What ranks that make the same groups have in common. Where others stand elsewhere, it is
        those that have not come, whoever is meant to be in the group."""
        one = self.one
        if one.doing is Doing.JOIN and self._all_make_groups and one.op not in _FIRST:
            name = " ".join(one.arguments.get(word, "") for word in ("group_name", "ranks"))
            yield Creation(0, (name, 0), self.world, "", one.site, 0, self._since_ns())

    def _wait(self, call: Call | None) -> Wait:
        one = self.one
        activity = Activity.IN_CALL
        detail: dict[str, object] = {}
        if one.doing is Doing.STORE:
            activity, detail = Activity.STORE, {"key": ", ".join(one.keys) or "store"}
        elif one.doing is Doing.JOIN:
            # Who makes groups by one function makes them with the others, whoever is in them.
            activity = Activity.INIT if self._all_make_the_first else Activity.NEW_GROUP
            name = (one.call or "").partition("(")[0]
            detail = {"op": one.op, "name": name, "ranks": self.world}
        return Wait(
            thread=self.number * 2 + 1,
            activity=activity,
            serial=1,
            since_ns=self._since_ns(),
            call=None if call is None else call.number,
            detail=detail,
            site=one.site,
        )

    def _standstill(self) -> Standstill:
        one = self.one
        return Standstill(self._since_ns(), site=one.site, leaving=one.doing is Doing.ENDING)

    def _since_ns(self) -> int:
        return TAKEN_NS - int(self.one.still_s * SECOND_NS)
