"""Finds the ranks of the jobs on this host, by what their environments and their parents say.

A launcher that gives each rank its number in the environment (torchrun, Slurm, Open MPI, MPICH) is
recognised by it. A program that starts its ranks itself (`mp.spawn`, `multiprocessing`) is not: its
children are taken for possible ranks, and their stacks decide (`stance.started_as`).

A number in the environment does not make a rank: a launcher that runs under another one (torchrun
in a step of Slurm's, or in a pod that tells its place among the pods) has inherited one.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..record.safe_text import whole_number
from ..system.proc import (
    DEAD_STATES,
    PROC,
    Stat,
    command_line,
    environment,
    has_torch,
    is_python,
    namespace,
)
from ..system.processes import Tree

_NUMBERED_BY = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_ELASTIC = "TORCHELASTIC_RUN_ID"
_JOBS = (
    _ELASTIC,
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_JOBID",
)
_TOLD = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "NCCL_RAS_ADDR",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "XDG_CACHE_HOME",
    "HOME",
)
_SERVER = "multiprocessing.forkserver"
_HELPERS = (
    "multiprocessing.resource_tracker",
    "torch._inductor.compile_worker",
    "torch/_inductor/compile_worker",
)


@dataclass(frozen=True, slots=True)
class Process:
    """A process that may be a rank. `rank` is None where only its stack can tell."""

    pid: int
    parent: int
    start_ticks: int
    rank: int | None = None
    world_size: int | None = None
    local_size: int | None = None
    local_rank: int | None = None
    consecutive: bool = False
    """Whether its launcher gives the ranks of a host numbers without a gap, as torchrun does."""
    told: Mapping[str, str] = field(default_factory=dict)
    """What its environment says of where things are (`_TOLD`)."""


@dataclass(frozen=True, slots=True)
class Job:
    """The processes of one job on this host. `launcher` is the process that has started them, 0
    where they have no common one; `command` is its command line. `partial`: other processes of the
    job are on this host, too, and were not asked for."""

    launcher: int
    command: str
    processes: Sequence[Process] = field(default_factory=tuple)
    partial: bool = False

    @property
    def numbered(self) -> bool:
        """Whether the environment says who is which rank."""
        return all(one.rank is not None for one in self.processes)


@dataclass(slots=True)
class _Seen:
    """A process of this user."""

    pid: int
    stat: Stat
    words: list[str]
    environment: dict[str, str]
    children: list[int] = field(default_factory=list)

    @property
    def command(self) -> str:
        """Its command line, printable in any encoding that has all characters."""
        return " ".join(self.words).encode("utf-8", "replace").decode()

    @property
    def is_python(self) -> bool:
        return "python" in os.path.basename(next(iter(self.words), "")) or is_python(self.pid)

    @property
    def is_helper(self) -> bool:
        return any(word in self.command for word in _HELPERS)


def find_jobs(below: Iterable[int] = (), proc: Path = PROC) -> list[Job]:
    """The jobs on this host that this user may look at, oldest first; with `below`, those of these
    processes and their descendants only."""
    seen = _all(proc)
    not_own = set(seen) - _own_ancestors(seen)
    wanted = _descendants(seen, below) & not_own if below else not_own
    jobs = _ranks_alone(seen, _numbered(seen, wanted, proc))
    if below:
        whole = _numbered(seen, not_own, proc)
        jobs = [replace(job, partial=_is_part(job, whole)) for job in jobs]
    taken = {pid for job in jobs for one in job.processes for pid in _descendants(seen, [one.pid])}
    spawned = _by_parent(seen, wanted - taken, proc)
    several = [one.pid for job in spawned if len(job.processes) > 1 for one in job.processes]
    below_ranks = _descendants(seen, several)
    # A program that numbers its ranks itself hands that number on to whatever a rank starts.
    jobs = [
        job
        for job in jobs
        if any(one.pid not in below_ranks or has_torch(one.pid, proc) for one in job.processes)
    ]
    return sorted([*jobs, *spawned], key=lambda job: min(one.start_ticks for one in job.processes))


def _is_part(job: Job, whole: Sequence[Job]) -> bool:
    """Whether one of these jobs has all of its processes, and others."""
    mine = {one.pid for one in job.processes}
    return any(mine < {one.pid for one in other.processes} for other in whole)


def job_of(pids: Iterable[int], proc: Path = PROC) -> Job:
    """These very processes as a job, whatever started them; those that have gone are left out."""
    seen = _all(proc)
    found = []
    for pid in dict.fromkeys(pids):
        if pid in seen:
            one = seen[pid]
            found.append(_process(one, one, int(one.environment.get(_numbered_by(one), -1))))
    return _job(seen, found)


def below_launchers(job: Job, launchers: Container[int], proc: Path = PROC) -> Job | None:
    """The job without processes of which it has turned out that they only wait for those that they
    have started: these are the ranks. None where they have started none that may be."""
    seen = _all(proc)
    started = _by_parent(seen, {pid for pid in seen if pid in launchers}, proc, seen.keys())
    ranks = [one for found in started for one in found.processes]
    kept = [one for one in job.processes if one.pid not in launchers]
    return _job(seen, [*kept, *ranks]) if ranks else None


def _all(proc: Path) -> dict[int, _Seen]:
    tree = Tree(proc)
    found: dict[int, _Seen] = {}
    for pid, stat in tree.stats.items():
        if stat.state in DEAD_STATES:
            continue
        with suppress(OSError):  # of another user, or gone
            found[pid] = _Seen(pid, stat, command_line(pid, proc), environment(pid, proc))
    for one in found.values():
        one.children = [child for child in tree.children.get(one.pid, ()) if child in found]
    return found


def _numbered(seen: Mapping[int, _Seen], wanted: set[int], proc: Path) -> list[Job]:
    """Jobs whose launcher gave the ranks their numbers. Of processes that have one number, the one
    that started the others counts; where that is a shell, the first Python process below it."""
    by_job: dict[tuple[str, ...], dict[int, Process]] = {}
    for pid in sorted(wanted, key=lambda one: seen[one].stat.start_ticks):
        one = seen[pid]
        name = _numbered_by(one)
        if not name or _same_rank_above(seen, one):
            continue
        at = _the_rank_itself(seen, one, proc)
        if at is None:
            continue
        key = (*(one.environment.get(word, "") for word in _JOBS), _space(one, proc))
        # Two processes that claim one number are both kept: that may be the finding.
        known = by_job.setdefault(key, {})
        known[at.pid] = _process(at, one, int(one.environment[name]))
    parts = [part for found in by_job.values() for part in _by_launcher(list(found.values()))]
    return [_job(seen, part) for part in parts]


def _process(one: _Seen, top: _Seen, rank: int) -> Process:
    """A rank, and what was told to the process `top` above it that was given its number; none is
    -1."""
    told = top.environment
    return Process(
        pid=one.pid,
        parent=top.stat.parent,
        start_ticks=one.stat.start_ticks,
        rank=rank if rank >= 0 else None,
        world_size=_number(told, _WORLD_SIZES),
        local_size=_local_size(told),
        local_rank=_number(told, _LOCAL_RANKS),
        consecutive=_ELASTIC in told,
        told=_told(top),
    )


def _space(one: _Seen, proc: Path) -> str:
    """The network that a job is in, where its address is one of every network: two containers may
    both have theirs at port 29500 of localhost."""
    if not is_loopback(one.environment.get("MASTER_ADDR", "localhost")):
        return ""
    try:
        return namespace(one.pid, "net", proc)
    except OSError:
        return ""


def is_loopback(address: str) -> bool:
    """Whether only processes of one host can meet at this address."""
    return address in ("localhost", "::1") or address.startswith("127.")


def _by_launcher(found: list[Process]) -> list[list[Process]]:
    """The processes, apart where two launchers have each started several, and number them alike:
    two jobs whose environments do not tell them apart."""
    ranks = [one.rank for one in found]
    parts: dict[int, list[Process]] = {}
    for one in found:
        parts.setdefault(one.parent, []).append(one)
    whole = all(
        len(part) == len({one.rank for one in part}) >= min(2, part[0].world_size or 2)
        for part in parts.values()
    )
    return list(parts.values()) if len(set(ranks)) < len(ranks) and whole else [found]


def _ranks_alone(seen: Mapping[int, _Seen], jobs: Sequence[Job]) -> list[Job]:
    """Leaves one of two numbered jobs that are one below the other. Where each process of the upper
    one has started some of the lower one, those are launchers that have inherited a number (`srun
    torchrun`, a pod that has RANK); else a rank has started a job of its own, which is its
    helper."""
    left = list(jobs)
    for upper in jobs:
        below = {one.pid: _descendants(seen, [one.pid]) - {one.pid} for one in upper.processes}
        for lower in jobs:
            mine = {one.pid for one in lower.processes}
            starters = [pid for pid, found in below.items() if found & mine]
            if lower is upper or not starters or upper not in left:
                continue
            are_workers = any(
                name in seen[one.pid].environment
                for one in upper.processes
                for name in (_ELASTIC, "LOCAL_RANK")
            )
            is_launcher = len(starters) == len(below) and not are_workers
            unwanted = upper if is_launcher else lower
            left = [job for job in left if job is not unwanted]
    return left


def _by_parent(
    seen: Mapping[int, _Seen], wanted: set[int], proc: Path, children: Container[int] | None = None
) -> list[Job]:
    """Programs that start Python processes themselves, each of which has torch loaded; a fork
    server starts them for the program that has started the server. `children`: those that may be
    taken, if not those of `wanted`."""
    jobs = []
    allowed = wanted if children is None else children
    for parent in sorted(wanted):
        if not seen[parent].is_python or seen[parent].is_helper or _is_server(seen, parent):
            continue
        started = [
            child
            for one in seen[parent].children
            for child in (seen[one].children if _is_server(seen, one) else [one])
        ]
        found = [
            Process(child, parent, seen[child].stat.start_ticks, told=_told(seen[child]))
            for child in started
            if child in allowed
            and seen[child].is_python
            and not seen[child].is_helper
            and has_torch(child, proc)
        ]
        if found:
            ordered = sorted(found, key=lambda one: (one.start_ticks, one.pid))
            jobs.append(Job(parent, seen[parent].command, tuple(ordered)))
    return _without_helpers(jobs)


def _is_server(seen: Mapping[int, _Seen], pid: int) -> bool:
    """Whether it is a fork server itself. What one has forked has its command line, too."""
    above = seen.get(seen[pid].stat.parent)
    return _SERVER in seen[pid].command and (above is None or _SERVER not in above.command)


def _without_helpers(jobs: Sequence[Job]) -> list[Job]:
    """Leaves out jobs of helpers. What a rank of several starts are its helpers (workers of a data
    loader, a forked child), and who starts nobody but a launcher is none."""
    ranks = {one.pid for job in jobs if len(job.processes) > 1 for one in job.processes}
    left = [job for job in jobs if job.launcher not in ranks]
    launchers = {job.launcher for job in left}
    return [job for job in left if len(job.processes) > 1 or job.processes[0].pid not in launchers]


def _job(seen: Mapping[int, _Seen], found: Sequence[Process]) -> Job:
    parents = {one.parent for one in found}
    launcher = parents.pop() if len(parents) == 1 else 0
    command = seen[launcher].command if launcher in seen else ""
    ordered = sorted(found, key=lambda one: (one.rank or 0, one.start_ticks))
    return Job(launcher, command, tuple(ordered))


def _told(one: _Seen) -> Mapping[str, str]:
    told = ((name, one.environment[name]) for name in _TOLD if name in one.environment)
    return {name: text.encode("utf-8", "replace").decode() for name, text in told}


def _numbered_by(one: _Seen) -> str:
    told = one.environment
    if _number(told, _WORLD_SIZES) is None:
        return ""
    return next((name for name in _NUMBERED_BY if whole_number(told.get(name)) is not None), "")


def _same_rank_above(seen: Mapping[int, _Seen], one: _Seen) -> bool:
    """Whether a process above has the same number of the same job: then this is its helper. It may
    have that number by another name: a rank of `mpiexec` that sets RANK for torch hands RANK on."""
    above = seen.get(one.stat.parent)
    while above is not None:
        theirs = above.environment
        same_job = all(theirs.get(word) in (None, one.environment.get(word)) for word in _JOBS)
        by_elastic = _ELASTIC in one.environment and _ELASTIC not in theirs
        if same_job and not by_elastic and _claim(above) == _claim(one):
            return True
        above = seen.get(above.stat.parent)
    return False


def _claim(one: _Seen) -> tuple[int, int | None] | None:
    """Returns the rank that it is told to be, and of how many."""
    name = _numbered_by(one)
    return (int(one.environment[name]), _number(one.environment, _WORLD_SIZES)) if name else None


def _the_rank_itself(seen: Mapping[int, _Seen], top: _Seen, proc: Path) -> _Seen | None:
    """The first Python process at or below it that has loaded torch, else the first Python one."""
    first: _Seen | None = None
    level = [top]
    while level:
        for one in level:
            if one.is_python:
                if has_torch(one.pid, proc):
                    return one
                first = first or one
        level = [seen[child] for one in level for child in one.children if child in seen]
    return first


def _own_ancestors(seen: Mapping[int, _Seen]) -> set[int]:
    """This process and those above it are no ranks, whatever their environment says."""
    found = {os.getpid()}
    above = seen.get(os.getppid())
    while above is not None and above.pid not in found:
        found.add(above.pid)
        above = seen.get(above.stat.parent)
    return found


def _descendants(seen: Mapping[int, _Seen], roots: Iterable[int]) -> set[int]:
    found: set[int] = set()
    level = [pid for pid in roots if pid in seen]
    while level:
        found.update(level)
        level = [child for pid in level for child in seen[pid].children if child not in found]
    return found


def _number(environment: Mapping[str, str], names: Iterable[str]) -> int | None:
    numbers = (whole_number(environment.get(name)) for name in names)
    return next((one for one in numbers if one is not None), None)


def _local_size(environment: Mapping[str, str]) -> int | None:
    """Returns how many ranks the job has on this host; of Slurm's jobs, where the step has one node
    alone."""
    told = _number(environment, _LOCAL_SIZES)
    nodes = _number(environment, ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"))
    return told or (_number(environment, ("SLURM_NTASKS",)) if nodes == 1 else None)
