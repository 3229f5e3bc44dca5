"""What the simulation came to, as a snapshot: each rank as a real one would be that stopped there.

Whoever waits, waits for ever, and there are two looks, between which nothing has moved: so the
diagnosis judges it as any run that hangs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..diagnosis.limits import SECOND_NS
from ..record.layout import CallState, GroupState, Phase
from ..record.signature import CHAIN_STEP, MASK, RULES, Rule, split_contribution
from ..record.snapshot import (
    Call,
    Channel,
    Group,
    GroupKey,
    Note,
    Process,
    Rank,
    Snapshot,
    Wait,
)
from .model import Model
from .program import Program
from .simulation import Simulation, Thread, hashes_of
from .standing import Standing

BEGINS_NS = SECOND_NS
LASTED_S = 1e6
"""Between the last event and the look: longer than the bytes of any call may take."""
CUT = "layer_off"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Two looks at where it ended, and what it ended with: the ranks by number."""

    now: Snapshot
    before: Snapshot
    standings: Mapping[int, Standing]
    last_ns: int

    @property
    def unknown(self) -> dict[int, str]:
        """The ranks of which not all is known, each with the reason."""
        return {
            number: standing.cut.why
            for number, standing in self.standings.items()
            if standing.cut is not None
        }

    @property
    def through(self) -> bool:
        """Every rank has ended."""
        return all(one.exit is not None for one in self.standings.values())


def simulate(
    programs: Mapping[int, Program], model: Model | None = None, start_ns: int = 0
) -> Outcome:
    """Execute the programs. `start_ns`: when they began, in Unix time."""
    simulation = Simulation(programs, model or Model(), start_ns or BEGINS_NS)
    simulation.run()
    last_ns = simulation.now_ns
    taken_ns = last_ns + int(LASTED_S * SECOND_NS)
    ranks = {
        number: _rank(standing, simulation.threads[number], taken_ns)
        for number, standing in simulation.ranks.items()
    }
    world_size = max((program.world_size for program in programs.values()), default=0)
    now = Snapshot(taken_ns, world_size, ranks)
    before = replace(
        now, taken_ns=last_ns + 1, ranks={number: replace(rank) for number, rank in ranks.items()}
    )
    return Outcome(now, before, simulation.ranks, last_ns)


def _rank(standing: Standing, threads: Sequence[Thread], taken_ns: int) -> Rank:
    program, end = standing.program, standing.exit
    ended = end is not None
    waits = [] if ended else list(_waits(threads))
    notes = list(standing.notes)
    if standing.cut is not None:
        site = standing.cut.site
        notes.append(Note(CUT, taken_ns, standing.cut.why, site, {"part": "the plan"}))
    process = Process(alive=True, state="S")
    if end is not None:
        process = Process(
            alive=False, exit_code=end.exit_code, signal=end.signal, ended_ns=standing.ended_ns
        )
    known = standing.cut is None
    last = standing.calls[-1] if standing.calls else None
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
        layer_serial=len(standing.calls),
        free_threads=0 if known and waits else 1,
        location=standing.cut.site if standing.cut is not None else last.site if last else None,
        groups=dict(_groups(standing)),
        channels=tuple(
            Channel(*key, issued=count.issued, chain=count.chain, last=count.last)
            for key, count in standing.channels.items()
        ),
        creations=tuple(standing.creations),
        waits=tuple(waits),
        notes=tuple(notes),
        history=PlannedHistory(standing),
    )


def _waits(threads: Sequence[Thread]) -> Iterator[Wait]:
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


def _groups(standing: Standing) -> Iterator[tuple[GroupKey, Group]]:
    for key, group in standing.program.groups.items():
        member = standing.groups[key]
        if not member.ready:
            continue
        yield (
            key,
            Group(
                key=key,
                desc=group.desc,
                ranks=member.place.ranks,
                backend=group.backend,
                state=GroupState.DESTROYED if member.destroyed else GroupState.READY,
                issued=member.issued,
                chain=member.chain,
                exact=member.exact,
                balance=sum(_shares(standing, key)) & MASK,
                last=member.last,
                timeout_s=group.timeout_s,
            ),
        )


def _shares(standing: Standing, group: GroupKey) -> Iterator[int]:
    """This rank's shares in the balance of the group's splits. Those of calls that are over are
    left out: they add up to nothing."""
    member = standing.groups[group]
    if not any(kind.splits for kind in member.kinds.values()):
        return
    for number, call in enumerate(standing.calls):
        splits = RULES.get(call.signature.op, Rule()).splits
        if call.group == group and splits and not standing.done_ns(number):
            share = split_contribution(call.signature, member.at)
            yield share * (2 * standing.seqs[number] + 1)


class PlannedHistory:
    """A rank's calls, each made when it is asked for: `snapshot.History` over a `Standing`."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._numbers: dict[GroupKey, list[int]] = {}
        self._chains: dict[GroupKey, list[tuple[int, int, int]]] = {}

    def call(self, number: int) -> Call | None:
        standing = self._standing
        if not 0 <= number < len(standing.calls):
            return None
        call = standing.calls[number]
        done_ns = standing.done_ns(number)
        issued_ns = standing.issued_ns[number]
        chain, exact, balance = 0, 0, 0
        if call.signature.peer is None:
            after = self.chains_after(call.group, standing.seqs[number] + 1)
            if after is not None:
                chain, exact, balance = after
        else:
            chain = self._chain_of_message(number)
        return replace(
            call,
            number=number,
            seq=standing.seqs[number],
            state=CallState.COMPLETED if done_ns else CallState.STARTED,
            chain=chain,
            exact=exact,
            balance=balance,
            issued_ns=issued_ns,
            started_ns=issued_ns,
            completed_ns=done_ns,
        )

    def at(self, group: GroupKey, seq: int) -> Call | None:
        rows = self._of(group)
        return self.call(rows[seq]) if 0 <= seq < len(rows) else None

    def message(self, channel: Channel, seq: int) -> Call | None:
        wanted = (channel.group, channel.op, channel.peer, channel.tag)
        for number, call in enumerate(self._standing.calls):
            key = _channel_of(call)
            if key == wanted and self._standing.seqs[number] == seq:
                return self.call(number)
        return None

    def recent(self, count: int, group: GroupKey | None = None) -> Sequence[Call]:
        if count <= 0:
            return []
        rows = range(len(self._standing.calls)) if group is None else self._of(group)
        found = (self.call(number) for number in rows[-count:])
        return [call for call in found if call is not None]

    def chains_after(self, group: GroupKey, issued: int) -> tuple[int, int, int] | None:
        rows = self._chains.get(group)
        if rows is None:
            rows = self._chains[group] = self._all_chains(group)
        return rows[issued] if 0 <= issued < len(rows) else None

    def _of(self, group: GroupKey) -> list[int]:
        found = self._numbers.get(group)
        if found is None:
            found = self._numbers[group] = [
                number
                for number, call in enumerate(self._standing.calls)
                if call.group == group and call.signature.peer is None
            ]
        return found

    def _all_chains(self, group: GroupKey) -> list[tuple[int, int, int]]:
        standing = self._standing
        member = standing.groups.get(group)
        chain = exact = balance = 0
        rows = [(0, 0, 0)]
        for seq, number in enumerate(self._of(group)):
            signature = standing.calls[number].signature
            agree, shaped = hashes_of(signature)
            chain = (chain * CHAIN_STEP + agree) & MASK
            if shaped != agree:
                exact = (exact + shaped * (2 * seq + 1)) & MASK
            if RULES.get(signature.op, Rule()).splits and not standing.done_ns(number):
                at = member.at if member is not None else 0
                balance = (balance + split_contribution(signature, at) * (2 * seq + 1)) & MASK
            rows.append((chain, exact, balance))
        return rows

    def _chain_of_message(self, number: int) -> int:
        """After this message of its channel."""
        wanted = _channel_of(self._standing.calls[number])
        chain = 0
        for call in self._standing.calls[: number + 1]:
            if _channel_of(call) == wanted:
                chain = (chain * CHAIN_STEP + hashes_of(call.signature)[0]) & MASK
        return chain


def _channel_of(call: Call) -> tuple[GroupKey, str, int | None, int] | None:
    signature = call.signature
    if signature.peer is None:
        return None
    return (call.group, signature.op, signature.peer, signature.tag)
