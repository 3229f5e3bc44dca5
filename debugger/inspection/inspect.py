"""One inspection of a job: its processes, a look at them, what they let one suspect."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ..diagnosis.findings import Finding
from ..record.sanitize import clean
from ..record.wording import ranks_text
from ..reports import document
from ..reports.stored import Document
from ..supervisor.stack_tree import render
from ..supervisor.stacks import ThreadStack
from . import judging, surroundings
from .joining import joined
from .judging import Limits, Look, judge
from .look import Sight, look
from .parts import Part, Whole
from .processes import Job
from .rights import needed
from .stance import Doing, Stance, is_helper, stance, started_as
from .surroundings import Surroundings, look_around


@dataclass(frozen=True, slots=True)
class Inspection:
    """What one look at a job has shown. `pids` are by rank."""

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

    def _notes(self) -> list[str]:
        read = sum(one.doing is not Doing.UNREADABLE for one in self.look.ranks.values())
        notes = []
        if read:
            notes.append(
                f"read from the stacks of {read} processes, which were "
                f"{'stopped for a moment' if self.native else 'not stopped'}; "
                f"{', '.join(judging.NOT_IN_RECORD)} of a call are not on a stack"
            )
        if read < len(self.look.ranks):
            notes.append(needed(self.pids.values()))
        if not self.findings:
            notes.insert(0, judging.at_work(self.look))
        elsewhere = self.look.world_size - len(self.look.ranks) - len(self.look.missing)
        if elsewhere > 0:
            notes.append(
                f"{elsewhere} of {self.look.world_size} ranks are not on this host, or are not "
                "yours to look at: what they do is not known"
            )
        beside = surroundings.summary(self.around, self.look.never_came)
        return [*notes, *map(clean, beside), *map(clean, self.problems)]

    def _rank(self, rank: int, one: Stance) -> Document:
        shown = judging.evidence(one)
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
    ranks, twice = _who_is_who(job, sights)
    pids = {rank: sight.pid for rank, sight in ranks.items()}
    stances = {rank: stance(sight) for rank, sight in ranks.items()}
    by_pid = {one.pid: one for one in job.processes}
    around = look_around(job, {rank: by_pid[pid] for rank, pid in pids.items()}, stances, ask)
    seen = _look(job, surroundings.with_stores(stances, around, pids), twice)
    seen = replace(
        seen,
        never_came=surroundings.never_came(around, seen.world_size),
        unserved=around.keys.address if around.keys is not None and around.keys.refused else "",
    )
    found = joined(judge(seen, limits), seen, around, pids, limits)
    stacks = {rank: [one.stack for one in sight.threads] for rank, sight in ranks.items()}
    return Inspection(job, seen, found, pids, stacks, around, problems, native)


def part(seen: Inspection) -> Part:
    """What this node has seen, for one that asks all of them."""
    signs = surroundings.details(seen.around, seen.look.ranks, seen.pids)
    recorded = seen.around.recorded
    told = [one.message for one in recorded.findings] if recorded is not None else []
    notes = [f"torch's flight recorder: {message}" for message in told]
    notes += [*surroundings.summary(seen.around, ()), *seen.problems]
    if any(one.doing is Doing.UNREADABLE for one in seen.look.ranks.values()):
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


def _who_is_who(job: Job, sights: Mapping[int, Sight]) -> tuple[dict[int, Sight], tuple[int, ...]]:
    """The processes by rank, and ranks that two of them claim. Where nothing says which is which,
    they are numbered in the order of their start."""
    ranks: dict[int, Sight] = {}
    twice: set[int] = set()
    unnumbered = []
    for one in job.processes:
        sight = sights[one.pid]
        if one.rank is None and is_helper(sight):
            continue
        rank = one.rank if one.rank is not None else started_as(sight)
        if rank is None:
            unnumbered.append(sight)
        elif rank in ranks:
            twice.add(rank)
        else:
            ranks[rank] = sight
    free = (rank for rank in range(len(job.processes) + len(ranks) + 1) if rank not in ranks)
    for sight in unnumbered:
        ranks[next(free)] = sight
    return ranks, tuple(sorted(twice))


def _look(job: Job, stances: Mapping[int, Stance], twice: tuple[int, ...]) -> Look:
    told = [one.world_size for one in job.processes if one.world_size]
    told += [size for one in stances.values() if (size := one.number("world_size"))]
    world_size = max(told, default=0)
    local_size = max((one.local_size or 0 for one in job.processes), default=0)
    missing: tuple[int, ...] = ()
    if world_size and (local_size >= world_size or not job.numbered):
        missing = tuple(rank for rank in range(world_size) if rank not in stances)
    elif local_size > len(stances):
        # On one of several hosts: ranks are numbered without a gap here.
        low = min(stances, default=0) // local_size * local_size
        missing = tuple(rank for rank in range(low, low + local_size) if rank not in stances)
    return Look(dict(stances), missing, twice, world_size=world_size)


def described(job: Job) -> str:
    """A job in one line, to choose by."""
    ranks = [one.rank for one in job.processes if one.rank is not None]
    who = ranks_text(ranks) if ranks else f"{len(job.processes)} processes"
    where = f"below process {job.launcher}" if job.launcher else "of several parents"
    return clean(f"{who} {where} ({job.command[:80]})")
