"""Makes a snapshot of what the simulation came to: each rank as a real one that stopped there.

Whoever waits, waits for ever, and there are two looks, between which nothing has moved: so the
diagnosis judges it as any run that hangs.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..diagnosis.facts.blocking import Model
from ..diagnosis.limits import SECOND_NS
from ..record.layout import CallState, GroupState, Phase
from ..record.lines import PackedLines
from ..record.notes import LayerOffNote
from ..record.signature import CHAIN_STEP, MASK, split_contribution
from ..record.snapshot import (
    Call,
    Channel,
    Group,
    GroupKey,
    Note,
    Process,
    Rank,
    RecalledHistory,
    Snapshot,
    Wait,
    place_of,
)
from .limits import LASTED_S
from .meetings import Standing, hashes_of
from .program import Program
from .simulation import PlannedThread, Simulation

Chains = tuple[int, int, int]
"""chain, exact and balance of a group."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Two looks at where it ended, and what it ended with: the ranks by number."""

    now: Snapshot
    before: Snapshot
    standings: Mapping[int, Standing]
    last_ns: int

    @property
    def through(self) -> bool:
        """Every rank has ended."""
        return all(one.exit is not None for one in self.standings.values())


def simulate(
    programs: Mapping[int, Program], model: Model | None = None, start_ns: int = 0
) -> Outcome:
    """Execute the programs. `start_ns`: when they began, in Unix time."""
    simulation = Simulation(programs, model or Model(), start_ns or SECOND_NS)
    simulation.run()
    last_ns = simulation.now_ns
    taken_ns = last_ns + int(LASTED_S * SECOND_NS)
    ranks = {
        number: _rank(standing, simulation.threads[number], taken_ns, programs.keys())
        for number, standing in simulation.ranks.items()
    }
    world_size = max((program.world_size for program in programs.values()), default=0)
    if len(programs) < world_size:
        world_size = 0  # nothing follows from the absence of the others
    finished = world_size > 0 and not any(rank.process.alive for rank in ranks.values())
    now = Snapshot(taken_ns, world_size, ranks, finished=finished)
    earlier = {number: replace(rank) for number, rank in ranks.items()}
    before = replace(now, taken_ns=last_ns + 1, ranks=earlier, finished=False)
    return Outcome(now, before, simulation.ranks, last_ns)


def _rank(
    standing: Standing, threads: Sequence[PlannedThread], taken_ns: int, planned: Container[int]
) -> Rank:
    program, end = standing.program, standing.exit
    history = PlannedHistory(standing)
    ended = end is not None
    waits = [] if ended else list(_waits(threads))
    notes = list(standing.notes)
    if standing.cut is not None:
        site = standing.cut.site
        off = LayerOffNote("the plan")
        notes.append(Note(off.KIND, taken_ns, standing.cut.why, site, off.data()))
    process = Process(alive=True, state="S")
    if end is not None:
        process = Process(
            alive=False, exit_code=end.exit_code, signal=end.signal, ended_ns=standing.ended_ns
        )
    known = standing.cut is None
    return Rank(
        rank=program.rank,
        world_size=program.world_size,
        pid=program.pid,
        process=process,
        host=program.host,
        local_rank=program.local_rank,
        started_ns=standing.start_ns,
        phase=Phase.ENDED if ended else Phase.RUNNING,
        heartbeat_ns=standing.ended_ns if ended else taken_ns,
        calls=len(standing.calls),
        exit_code=end.exit_code if end is not None else None,
        exiting_ns=standing.ended_ns if ended else 0,
        layer_serial=len(standing.calls),
        free_threads=0 if known and waits else 1,
        location=standing.cut.site if standing.cut is not None else standing.site,
        groups=dict(_groups(standing, history, planned)),
        channels=tuple(
            Channel(
                *key,
                issued=count.issued,
                chain=count.chain,
                last=count.last,
                taken=count.taken,
                lines=history.lines_of(key),
            )
            for key, count in standing.channels.items()
        ),
        creations=tuple(standing.creations),
        waits=tuple(waits),
        notes=tuple(notes),
        history=history,
    )


def _waits(threads: Sequence[PlannedThread]) -> Iterator[Wait]:
    for number, thread in enumerate(threads):
        stop = thread.stop
        if stop is not None:
            yield Wait(
                thread=number + 1,
                activity=stop.activity,
                serial=thread.at,
                since_ns=stop.since_ns,
                call=stop.number,
                detail=stop.detail,
                site=stop.site,
            )


def _balance(standing: Standing, group: GroupKey, history: PlannedHistory) -> int:
    """This rank's share in the balance of the group's splits. That of calls that are over is left
    out: together with the others' it is nothing."""
    member = standing.groups[group]
    if not member.place.whole or not any(kind.splits for kind in member.kinds.values()):
        return 0
    chains = history.chains_after(group, member.issued)
    return chains[2] if chains is not None else 0


def _groups(
    standing: Standing, history: PlannedHistory, planned: Container[int]
) -> Iterator[tuple[GroupKey, Group]]:
    for key, group in standing.program.groups.items():
        member = standing.groups.get(key)
        if member is None or not member.ready:
            continue
        ranks = member.place.ranks
        if not member.place.whole:  # whom the plan does not have, nobody waits for
            ranks = tuple(rank for rank in ranks if rank in planned)
        yield (
            key,
            Group(
                key=key,
                desc=group.desc,
                ranks=ranks,
                backend=group.backend,
                state=GroupState.DESTROYED if member.destroyed else GroupState.READY,
                issued=member.issued,
                chain=member.chain,
                exact=member.exact,
                balance=_balance(standing, key, history),
                last=member.last,
                timeout_s=group.timeout_s,
                lines=history.lines_of(key),
            ),
        )


class PlannedHistory(RecalledHistory):
    """The calls of a rank that the simulation has made."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    @cached_property
    def _index(self) -> tuple[dict[Hashable, list[int]], list[Chains]]:
        """The numbers of the calls of each group and channel, in order; and after each call the
        chains of its own."""
        standing = self._standing
        hashes: dict[int, tuple[int, int]] = {}
        numbers: dict[Hashable, list[int]] = {}
        running: dict[object, Chains] = {}
        chains = []
        for number, call in enumerate(standing.calls):
            signature = call.signature
            known = hashes.get(id(signature))
            if known is None:
                known = hashes[id(signature)] = hashes_of(signature)
            agree, shaped = known
            where = place_of(call)
            chain, exact, balance = running.get(where, (0, 0, 0))
            seq = standing.seqs[number]
            chain = (chain * CHAIN_STEP + agree) & MASK
            if shaped != agree:
                exact = (exact + shaped * (2 * seq + 1)) & MASK
            if signature.sends and not standing.done_ns(number):
                at = standing.groups[call.group].at if call.group in standing.groups else 0
                share = split_contribution(signature, at)
                balance = (balance + share * (2 * seq + 1)) & MASK
            running[where] = (chain, exact, balance)
            numbers.setdefault(where, []).append(number)
            chains.append((chain, exact, balance))
        return numbers, chains

    def lines_of(self, where: Hashable) -> PackedLines:
        """Returns where the calls of a group or channel come from."""
        standing = self._standing
        return PackedLines(
            (standing.seqs[number], standing.calls[number].place)
            for number in self._index[0].get(where, ())
        )

    def call(self, number: int) -> Call | None:
        standing = self._standing
        if not 0 <= number < len(standing.calls):
            return None
        call = standing.calls[number]
        done_ns, issued_ns = standing.done_ns(number), standing.issued_ns[number]
        state = CallState.COMPLETED if done_ns else CallState.STARTED
        chain, exact, balance = self._index[1][number]
        return replace(
            call,
            number=number,
            seq=standing.seqs[number],
            state=call.state if call.state is CallState.FAILED else state,
            chain=chain,
            exact=exact,
            balance=balance,
            issued_ns=issued_ns,
            started_ns=issued_ns,
            completed_ns=done_ns,
        )

    def numbers(self, group: GroupKey | None) -> Sequence[int]:
        everything = range(len(self._standing.calls))
        return everything if group is None else self._index[0].get(group, ())

    def number_of(self, place: Hashable, seq: int) -> int | None:
        rows = self._index[0].get(place, ())
        return rows[seq] if 0 <= seq < len(rows) else None

    def chains_after(self, group: GroupKey, issued: int) -> Chains | None:
        if issued == 0:
            return (0, 0, 0)
        rows = self._index[0].get(group, ())
        return self._index[1][rows[issued - 1]] if 0 < issued <= len(rows) else None
