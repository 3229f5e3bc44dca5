"""An inspection of a job: its processes, a look at them, what they let one suspect."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..diagnosis.findings import Finding
from ..record.safe_text import clean
from ..record.wording import RankState, counted, ranks_text, verb
from ..reports import document
from ..reports.stored import Document
from ..supervisor.stacks.sights import Sight, look
from ..supervisor.stacks.stack_tree import render, to_json
from ..supervisor.stacks.stacks import ThreadStack
from ..system.proc import age_s
from . import surroundings
from .judging import NOT_IN_RECORD, at_work, evidence, judge
from .look import WAITS, Limits, Look, Stance, of_one_kind
from .processes import Job, below_launchers, find_jobs, is_loopback
from .rights import needed
from .slurm import Part, Whole
from .stance import calls_itself, is_helper, of_threads, stance, started_as, waits_for_children
from .surroundings import Surroundings, look_around


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of one look at a job. `pids` are by rank."""

    job: Job
    look: Look
    findings: Sequence[Finding]
    pids: Mapping[int, int]
    stacks: Mapping[int, Sequence[ThreadStack]]
    around: Surroundings
    problems: Sequence[str]
    native: bool = False
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Of each rank; empty where all are on this one."""

    @property
    def exit_code(self) -> int:
        return self.findings[0].exit_code if self.findings else 0

    def report(self) -> Document:
        """The report document."""
        made = document.build(
            command=self.job.command.split(" ") if self.job.command else [],
            run_dir=Path("."),
            world_size=self.look.world_size or len(self.look.ranks),
            duration_s=0.0,
            outcome=self.findings[0].kind if self.findings else "running",
            exit_code=self.exit_code,
            findings=[(finding, None) for finding in self.findings],
            ranks={},
            notes=self._notes(),
        )
        made["ranks"] = {
            str(rank): self._rank(rank, one) for rank, one in sorted(self.look.ranks.items())
        }
        made["source"] = "inspection"
        made["links"] = [asdict(one) for one in self.around.links]
        made["run_dir"] = ""
        return made

    def stack_text(self) -> str:
        """The stacks of all ranks as one tree."""
        return render(self.stacks)

    def stack_json(self) -> dict[str, Any]:
        """The same with every frame."""
        return to_json(self.stacks)

    def _notes(self) -> list[str]:
        read = sum(one.doing is not RankState.UNREADABLE for one in self.look.ranks.values())
        notes = []
        if read:
            notes.append(
                f"read from the stacks of {counted(read, 'process')}, "
                f"{'stopped for a moment' if self.native else 'not stopped for it'}; "
                f"{', '.join(NOT_IN_RECORD)} of a call are not on a stack"
            )
        if read < len(self.look.ranks):
            notes.append(needed(self.pids.values()))
        if not self.findings:
            notes.insert(0, at_work(self.look))
            notes += surroundings.nccls_count(self.around, self.pids)
        elsewhere = self.look.world_size - len(self.look.ranks) - len(self.look.missing)
        if elsewhere > 0:
            where = "are not on this host, or are not yours to look at"
            notes.append(
                f"{elsewhere} of {self.look.world_size} ranks "
                f"{'were not asked for' if self.job.partial else where}: what they do is not known"
            )
        beside = surroundings.summary(self.around, self.look.never_came)
        return [*notes, *map(clean, beside), *map(clean, self.problems)]

    def _rank(self, rank: int, one: Stance) -> Document:
        shown = evidence(one)
        return {
            "pid": self.pids.get(rank, 0),
            "host": clean(self.hosts.get(rank) or socket.gethostname()),
            "exit": {"code": None, "signal": None},
            "calls": 0,
            "state": clean(shown.state),
            "call": None if shown.call is None else clean(shown.call),
            "location": document.location(shown.location),
        }


def inspect(job: Job, limits: Limits, native: bool = False, ask: bool = False) -> Inspection:
    """Look at the job once (two or three looks at its processes, within 2 s), and judge it. `ask`:
    have the ranks write dumps of their flight recorders, where they have a FIFO for that."""
    problems: list[str] = []
    sights = look([one.pid for one in job.processes], limits.still_s, problems, native)
    started = _started_by_launchers(job, sights)
    if started is not None:
        job, problems = started, []
        sights = look([one.pid for one in job.processes], limits.still_s, problems, native)
    ranks, twice = _who_is_who(job, sights)
    pids = {rank: sight.pid for rank, sight in ranks.items()}
    stances = of_one_kind(
        {rank: stance(sight) for rank, sight in ranks.items()},
        {rank: of_threads(sight) for rank, sight in ranks.items()},
    )
    by_pid = {one.pid: one for one in job.processes}
    around = look_around(job, {rank: by_pid[pid] for rank, pid in pids.items()}, stances, ask)
    seen = _look(job, surroundings.with_stores(stances, around, pids), twice)
    world_size = seen.world_size or surroundings.world_size(around, stances)
    seen = replace(
        seen,
        world_size=world_size,
        never_came=surroundings.never_came(around, world_size),
        unserved=around.keys.address if around.keys is not None and around.keys.refused else "",
    )
    found = joined(judge(seen, limits), seen, around, pids, limits)
    stacks = {rank: [one.stack for one in sight.threads] for rank, sight in ranks.items()}
    return Inspection(job, seen, found, pids, stacks, around, problems, native)


def of_processes(pids: Iterable[int], limit_s: float) -> tuple[Document, Finding | None]:
    """Returns what a supervisor asks of ranks below its command that have no record. They are late
    after `limit_s` whatever they do, as those that have one are."""
    jobs = find_jobs(pids)
    if not jobs:
        return {"ranks": {}, "world_size": 0}, None
    job = max(jobs, key=lambda one: len(one.processes))
    seen = inspect(job, Limits(*[limit_s] * 4))
    return seen.report(), next(iter(seen.findings), None)


def part(seen: Inspection) -> Part:
    """Returns what this node has seen, for a node that asks all of them."""
    signs = surroundings.details(seen.around, seen.look.ranks, seen.pids)
    recorded = seen.around.recorded
    told = [one.message for one in recorded.findings] if recorded is not None else []
    notes = [f"torch's flight recorder: {message}" for message in told]
    notes += [*surroundings.summary(seen.around, ()), *seen.problems]
    if any(one.doing is RankState.UNREADABLE for one in seen.look.ranks.values()):
        notes.append(needed(seen.pids.values()))
    return Part(socket.gethostname(), seen.look, seen.pids, signs, [clean(one) for one in notes])


def of_nodes(name: str, seen: Whole, limits: Limits) -> Inspection:
    """The looks of several nodes as one inspection. What is seen beside the stacks is judged where
    it was seen; here it is evidence."""
    found = [replace(one, details=[*one.details, *seen.signs]) for one in judge(seen.look, limits)]
    job = Job(0, name, ())
    return Inspection(
        job, seen.look, found, seen.pids, {}, Surroundings(), seen.notes, hosts=seen.hosts
    )


def _started_by_launchers(job: Job, sights: Mapping[int, Sight]) -> Job | None:
    """The ranks themselves, where a number was given to a program that has started them itself (a
    script with `mp.spawn`, in a job of Slurm's); None where the job's processes are the ranks."""
    given = all(one.rank is not None and one.local_rank is None for one in job.processes)
    if not given or not all(waits_for_children(one) for one in sights.values()):
        return None
    return below_launchers(job, sights.keys())


def _who_is_who(job: Job, sights: Mapping[int, Sight]) -> tuple[dict[int, Sight], tuple[int, ...]]:
    """The processes by rank, and ranks that two of them claim. Where nothing says which is which,
    they are numbered in the order of their start."""
    claims: dict[int, list[Sight]] = {}
    unnumbered = []
    for one in job.processes:
        sight = sights[one.pid]
        if one.rank is None and is_helper(sight):
            continue
        rank = one.rank if one.rank is not None else started_as(sight)
        if rank is None:
            unnumbered.append(sight)
        else:
            claims.setdefault(rank, []).append(sight)
    ranks: dict[int, Sight] = {}
    twice = []
    for rank, claimants in claims.items():
        # What a rank has left behind (a logger, the worker of a loader that was killed) has its
        # number too, and talks to nobody.
        talking = [one for one in claimants if stance(one).doing in WAITS]
        ranks[rank] = (talking or claimants)[0]
        if len(talking) > 1:
            twice.append(rank)
    # The numbers that these processes have for themselves, [] where they are not those of
    # ranks: some have none, or the same, or one alone says a number of which it does not say
    # of how many.
    told = [calls_itself(sight) for sight in unnumbered]
    given = [one[0] for one in told if one is not None and one[0] not in ranks]
    sure = len(given) > 1 or any(one is not None and one[1] for one in told)
    numbers = given if sure and len(set(given)) == len(told) else []
    free = (rank for rank in range(len(job.processes) + len(ranks) + 1) if rank not in ranks)
    ranks |= dict(zip(numbers or list(islice(free, len(unnumbered))), unnumbered, strict=True))
    return ranks, tuple(sorted(twice))


def _look(job: Job, stances: Mapping[int, Stance], twice: tuple[int, ...]) -> Look:
    told = [one.world_size for one in job.processes if one.world_size]
    told += [size for one in stances.values() if (size := one.number("world_size"))]
    world_size = max(told, default=0)
    local_size = max((one.local_size or 0 for one in job.processes), default=0)
    should: Iterable[int] = ()
    if job.partial:
        pass  # somebody has chosen these: the others may be well
    elif world_size and (local_size >= world_size or _all_are_here(job, stances)):
        should = range(world_size)
    elif local_size > len(stances) and (first := _first_of_host(job)) is not None:
        should = range(first, first + local_size)
    missing = tuple(rank for rank in should if rank not in stances)
    youngest = age_s(max((one.start_ticks for one in job.processes), default=0))
    return Look(dict(stances), missing, twice, world_size=world_size, age_s=youngest)


def _all_are_here(job: Job, stances: Mapping[int, Stance]) -> bool:
    """Whether all ranks must be on this host: they meet at an address of one host alone, or, of a
    program that starts them itself, at none that is known (a file)."""
    met = {one.told["MASTER_ADDR"] for one in job.processes if one.told.get("MASTER_ADDR")}
    met |= {host for one in stances.values() if (host := one.arguments.get("hostname"))}
    return all(map(is_loopback, met)) and (bool(met) or not job.numbered)


def _first_of_host(job: Job) -> int | None:
    """The lowest rank that should be on this host, where they are numbered without a gap here: as
    their launcher does it, or as two of them show."""
    firsts = {
        one.rank - one.local_rank
        for one in job.processes
        if one.rank is not None and one.local_rank is not None
    }
    known = len(firsts) == 1 and (len(job.processes) > 1 or job.processes[0].consecutive)
    return min(firsts) if known else None


def described(job: Job) -> str:
    """A job in one line, to choose by."""
    ranks = [one.rank for one in job.processes if one.rank is not None]
    who = ranks_text(ranks) if ranks else counted(len(job.processes), "process")
    where = f"below process {job.launcher}" if job.launcher else "of several parents"
    return clean(f"{who} {where}  {job.command[:80]}".rstrip())


def joined(
    found: Sequence[Finding],
    look: Look,
    around: Surroundings,
    pids: Mapping[int, int],
    limits: Limits,
) -> list[Finding]:
    """The findings, the verdict first, with what else bears on it.

    A flight recorder proves what no stack shows: other sizes or types at one sequence number; of a
    job in which nobody stands still that is history, which the program has outlived. What it only
    suspects counts where the stacks have no culprit: nobody is absent, and all stand in the same
    call. So does NCCL's own count of calls.
    """
    recorded = around.recorded.findings if around.recorded is not None else ()
    waits_s = max((one.still_s for one in look.ranks.values() if one.waits), default=0.0)
    unreadable = all(one.doing is RankState.UNREADABLE for one in look.ranks.values())
    open_ = not found or found[0].kind == "stalled"
    stands = unreadable or any(one.still_s >= limits.waiting_s for one in look.ranks.values())
    proven = next((one for one in recorded if one.proven and stands), None)
    verdict: Finding | None = found[0] if found else None
    if proven is not None:
        verdict = _with_stacks(proven, look)
    elif open_ and recorded and (unreadable or waits_s >= limits.still_s):
        verdict = _with_stacks(recorded[0], look)
    elif found and found[0].kind == "stalled":
        verdict = _by_nccl(found[0], surroundings.lagging(around, pids))
    if verdict is None:
        return []
    lines = surroundings.details(around, look.ranks, pids)
    return [replace(verdict, details=[*verdict.details, *lines])]


def _with_stacks(found: Finding, look: Look) -> Finding:
    """A finding of the flight recorder; of a rank of which it says nothing the stack does."""
    stacks = {rank: evidence(one) for rank, one in sorted(look.ranks.items())}
    return replace(found, ranks={**stacks, **found.ranks})


def _by_nccl(found: Finding, lagging: Sequence[int]) -> Finding:
    if not lagging or len(lagging) >= len(found.culprits):
        return found
    return replace(
        found,
        culprits=tuple(lagging),
        victims=tuple(rank for rank in found.culprits if rank not in lagging),
        message=f"{found.message}; NCCL says that {ranks_text(lagging)} "
        f"{verb(lagging, 'is', 'are')} behind",
    )
