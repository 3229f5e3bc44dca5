"""Judges the programs of a plan, by the same diagnosis as of any run.

1. The programs are executed as at best they run (`model`). Who is stuck then, is stuck for ever.
2. Where somebody stands still and nothing is proven, the clock goes on until it may be suspected:
   nothing can come any more that would say otherwise.
3. Where nothing is wrong at best, they are executed with the calls of a device one after the other:
   who is stuck then is stuck for ever where nothing but calls of one stream is to come.
4. Where nothing is wrong then, they are executed as at worst: what is stuck by that needs luck, and
   is a warning.

What a simulation came to is judged as a snapshot (`Outcome`): each rank is as a real one that
stopped there. Whoever waits, waits for ever, and there are two looks, between which nothing has
moved: so the diagnosis judges it as any run that hangs.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..diagnosis.diagnose import verdict, verdict_first
from ..diagnosis.facts.blocking import Model, backend_of, on_device
from ..diagnosis.findings import Finding
from ..diagnosis.judging import judge
from ..diagnosis.limits import SECOND_NS, Limits
from ..diagnosis.story import step
from ..record.kinds import KINDS
from ..record.layout import CallState, GroupState, Phase
from ..record.lines import PackedLines
from ..record.notes import ExceptionNote, LayerOffNote
from ..record.notes import raised as raised_by
from ..record.signature import CHAIN_STEP, MASK, Signature, split_contribution
from ..record.snapshot import (
    Call,
    CallSite,
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
from ..record.wording import at_site, printable
from .limits import LASTED_S, NEVER_S
from .meetings import Standing, hashes_of
from .program import Created, CutOff, Event, Made, Program, Waited
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


NEEDS_LUCK = frozenset(name for name, kind in KINDS.items() if kind.by_order)


@dataclass(frozen=True, slots=True)
class UndecidedPlace:
    """A decision that hangs on a value which the plan does not have, and the ranks that took it."""

    site: CallSite
    what: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The findings, the verdict first; `outcome`: what the ranks came to."""

    findings: Sequence[Finding]
    outcome: Outcome
    undecided: Sequence[UndecidedPlace]

    @property
    def verdict(self) -> Finding | None:
        return verdict(self.findings)


def judge_programs(
    programs: Mapping[int, Program], model: Model | None = None, start_ns: int = 0
) -> Judgement:
    """Execute and judge them. `start_ns`: when they began, in Unix time."""
    model = model or Model()
    outcome = simulate(programs, model, start_ns)
    findings = [one for one in _findings(outcome) if not _is_behind_the_steps(one, programs)]
    if verdict(findings) is None and not outcome.through:
        suspected = (one for one in _suspected(outcome) if one.severity == "error")
        findings += [one for one in suspected if not _is_behind_the_steps(one, programs)]
    if verdict(findings) is None and outcome.through and on_devices(programs):
        in_order = simulate(programs, replace(model, in_order=True), start_ns)
        if stuck_for_ever(in_order, model):
            outcome = in_order
            findings += [one for one in _findings(in_order) if one.kind in NEEDS_LUCK]
    if verdict(findings) is None and outcome.through and may_need_luck(programs):
        at_worst = simulate(programs, replace(model, strict=True), start_ns)
        findings += [_needs_luck(one) for one in _findings(at_worst) if one.kind in NEEDS_LUCK]
    if _took_another_way(outcome):
        findings = [_by_order_of_messages(one) for one in findings]
    findings = [_alike(one, outcome) for one in verdict_first(findings)]
    return Judgement(findings, outcome, undecided(programs))


def may_need_luck(programs: Mapping[int, Program]) -> bool:
    """Whether anybody makes a call that waits for less than its whole group, at best."""
    seen: set[int] = set()
    for program in programs.values():
        on_device = any("nccl" in group.backend for group in program.groups.values())
        if on_device and len(program.groups) > 1:
            return True
        for event in program.events:
            if not isinstance(event, Made) or id(event.call.signature) in seen:
                continue
            signature = event.call.signature
            seen.add(id(signature))
            if signature.root is not None or signature.op == "send":
                return True
    return False


def undecided(programs: Mapping[int, Program]) -> list[UndecidedPlace]:
    """Each place once, in the order of files and lines."""
    found: dict[tuple[CallSite, str], list[int]] = {}
    for number, program in sorted(programs.items()):
        for one in program.undecided:
            ranks = found.setdefault((one.site, one.what), [])
            if not ranks or ranks[-1] != number:
                ranks.append(number)
    rows = [UndecidedPlace(site, what, tuple(ranks)) for (site, what), ranks in found.items()]
    return sorted(rows, key=lambda row: (row.site.file, row.site.line, row.what))


def _findings(outcome: Outcome) -> list[Finding]:
    limits = Limits(hang_timeout_s=NEVER_S, notice_after_s=NEVER_S)
    return judge([outcome.now], [outcome.before], limits).findings


def _suspected(outcome: Outcome) -> list[Finding]:
    """Returns what a run would suspect, once its hang timeout is over."""
    limits = Limits()
    taken_ns = outcome.last_ns + limits.hang_ns + SECOND_NS
    ranks = {
        number: replace(rank, heartbeat_ns=taken_ns) if rank.process.alive else rank
        for number, rank in outcome.now.ranks.items()
    }
    now = replace(outcome.now, taken_ns=taken_ns, ranks=ranks)
    return judge([now], [outcome.before], limits).findings


def _is_behind_the_steps(finding: Finding, programs: Mapping[int, Program]) -> bool:
    """A rank without an optimiser goes on where the others were ended after their steps, and waits
    for them."""
    left = all(programs[rank].enough for rank in finding.culprits if rank in programs)
    waits = any(programs[rank].enough for rank in finding.victims if rank in programs)
    return finding.about.leaves and left and not waits


def _took_another_way(outcome: Outcome) -> bool:
    """A receive from any source stands still that took a message when its rank was planned: by then
    nobody had waited for anybody, and another one may come first."""
    for number, rank in outcome.now.ranks.items():
        standing = outcome.standings[number]
        for wait in rank.waits:
            call = standing.calls[wait.call] if wait.call is not None else None
            if call is not None and call.number in standing.program.came_from:
                return True
    return False


@step("order of messages")
def _by_order_of_messages(finding: Finding) -> Finding:
    if finding.kind not in NEEDS_LUCK:
        return finding
    return _warning(finding, "depends on which message a receive from any source takes first:")


@step("needs luck")
def _needs_luck(finding: Finding) -> Finding:
    luck = "needs luck: it ends well only where messages and roots need not wait for the others"
    return _warning(finding, f"{luck}; else")


def _warning(finding: Finding, when: str) -> Finding:
    return replace(
        finding,
        severity="warning",
        proven=False,
        message=f"{when} {finding.message}",
        headline=f"{when} {finding.headline or finding.message}",
    )


@step("all alike")
def _alike(finding: Finding, outcome: Outcome) -> Finding:
    """A program that fails alike on all ranks has failed once."""
    ranks = outcome.now.ranks
    if len(ranks) < 2:
        return finding
    if finding.kind == "rank_died":
        message = _ended_alike(finding, ranks)
    elif finding.kind in ("rank_exception", "invalid_argument"):
        message = _raised_alike(ranks)
    else:
        return finding
    if not message:
        return finding
    restated = replace(finding, message=message, headline=message, details=())
    return replace(restated, culprits=tuple(sorted(ranks)), victims=())


def _ended_alike(finding: Finding, ranks: Mapping[int, Rank]) -> str:
    """Returns how all of them ended, where that is the same; "" where it is not."""
    processes = [rank.process for rank in ranks.values()]
    if len({(one.exit_code, one.signal) for one in processes}) != 1:
        return ""
    was = "were " if processes[0].signal is not None else ""
    return f"all {len(ranks)} ranks {was}{finding.ranks[finding.culprits[0]].state}"


def _raised_alike(ranks: Mapping[int, Rank]) -> str:
    """Returns what all of them raised at one line; "" where they did not, or where what they raised
    names those that have failed."""
    raised: dict[tuple[str, CallSite | None], int] = {}
    for rank in ranks.values():
        for last in ExceptionNote.among(rank.notes)[-1:]:
            if raised_by(last).failed:
                return ""
            place = (last.message, last.site)
            raised[place] = raised.get(place, 0) + 1
    if list(raised.values()) != [len(ranks)]:
        return ""
    ((text, site),) = raised
    return f"all {len(ranks)} ranks raised the same{at_site(site)}: {printable(text)}"


def on_devices(programs: Mapping[int, Program]) -> bool:
    """Whether anybody has a group whose calls are on a device."""
    return any(
        on_device(name)
        for program in programs.values()
        for group in program.groups.values()
        for name in group.backend.lower().replace(":", ",").split(",")
    )


def stuck_for_ever(outcome: Outcome, model: Model) -> bool:
    """`outcome`: of programs that stand still at each call that they wait for. Whether those that
    are left in it are stuck on a real device, too."""
    left = [number for number, one in outcome.standings.items() if one.exit is None]
    return bool(left) and all(
        _is_stuck(outcome.now.ranks[number], outcome.standings[number], model) for number in left
    )


def _is_stuck(rank: Rank, standing: Standing, model: Model) -> bool:
    numbers = [wait.call for wait in rank.waits]
    if len(numbers) != 1 or numbers[0] is None:
        return False
    program, call = standing.program, standing.calls[numbers[0]]
    if not _is_on_device(program, call.group, call.signature):
        return True
    stuck = [
        (at, event.stream)
        for at, event in enumerate(program.events)
        if (isinstance(event, Made) and event.call.number == call.number)
        or (isinstance(event, Waited) and event.number == call.number)
    ]
    at, stream = stuck[-1] if call.is_async else stuck[0]
    rest = program.events[at + 1 :]
    return stream >= 0 and all(_comes_behind(event, stream, program, model) for event in rest)


def _is_on_device(program: Program, group: GroupKey, signature: Signature) -> bool:
    known = program.groups.get(group)
    return known is not None and on_device(backend_of(known.backend, signature))


def _comes_behind(event: Event, stream: int, program: Program, model: Model) -> bool:
    """Whether this cannot help anybody before the stream has got so far."""
    match event:
        case Made(call, its_stream):
            return its_stream == stream and _is_on_device(program, call.group, call.signature)
        case Created(creation):
            return not model.creation_blocks(creation.backend)
        case CutOff():
            return False
    return True
