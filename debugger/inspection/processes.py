"""Finds the ranks of the jobs on this host, by what their environments and their parents say.

A launcher that gives each rank its number in the environment (torchrun, Slurm, Open MPI, MPICH) is
recognised by it. A program that starts its ranks itself (`mp.spawn`, `multiprocessing`) is not: its
children are taken for possible ranks, and their stacks decide (`stance.started_as`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..record.process_stat import DEAD_STATES, Stat, read_stat

_NUMBERED_BY = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_JOBS = (
    "TORCHELASTIC_RUN_ID",
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
_HELPERS = (
    b"multiprocessing.resource_tracker",
    b"multiprocessing.forkserver",
    b"torch._inductor.compile_worker",
)
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Process:
    """One process that may be a rank. `rank` is None where only its stack can tell."""

    pid: int
    parent: int
    start_ticks: int
    rank: int | None = None
    world_size: int | None = None
    local_size: int | None = None
    told: Mapping[str, str] = field(default_factory=dict)
    """What its environment says of where things are (`_TOLD`)."""


@dataclass(frozen=True, slots=True)
class Job:
    """The processes of one job on this host. `launcher` is the process that has started them, 0
    where they have no common one; `command` is its command line."""

    launcher: int
    command: str
    processes: Sequence[Process] = field(default_factory=tuple)

    @property
    def numbered(self) -> bool:
        """Whether the environment says who is which rank."""
        return all(one.rank is not None for one in self.processes)


@dataclass(slots=True)
class _Seen:
    """A process of this user, as /proc has it."""

    pid: int
    stat: Stat
    command: bytes
    environment: dict[str, str]
    children: list[int] = field(default_factory=list)

    @property
    def is_python(self) -> bool:
        words = self.command.split(b"\0")
        return b"python" in os.path.basename(words[0]) or _links_to_python(self.pid)


def find_jobs(below: Iterable[int] = (), proc: Path = Path("/proc")) -> list[Job]:
    """The jobs on this host that this user may look at, oldest first; with `below`, those of these
    processes and their descendants only."""
    seen = _all(proc)
    wanted = _descendants(seen, below) if below else set(seen)
    wanted -= _own_ancestors(seen)
    jobs = _numbered(seen, wanted, proc)
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


def _all(proc: Path) -> dict[int, _Seen]:
    found: dict[int, _Seen] = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        stat = read_stat(pid, proc)
        if stat is None or stat.state in DEAD_STATES:
            continue
        try:
            environment = _read(entry / "environ")
            command = _read(entry / "cmdline")
        except OSError:
            continue  # of another user, or gone
        found[pid] = _Seen(pid, stat, command, _parsed(environment))
    for one in found.values():
        if one.stat.parent in found:
            found[one.stat.parent].children.append(one.pid)
    return found


def _numbered(seen: Mapping[int, _Seen], wanted: set[int], proc: Path) -> list[Job]:
    """Jobs whose launcher gave the ranks their numbers. Of processes that have one number, the one
    that started the others counts; where that is a shell, the first Python process below it."""
    by_job: dict[tuple[str, ...], dict[int, Process]] = {}
    for pid in sorted(wanted, key=lambda one: seen[one].stat.start_ticks):
        one = seen[pid]
        name = _numbered_by(one.environment)
        if not name or _same_rank_above(seen, one, name):
            continue
        at = _the_rank_itself(seen, one, proc)
        if at is None:
            continue
        rank = int(one.environment[name])
        key = tuple(one.environment.get(word, "") for word in _JOBS)
        # Two processes that claim one number are both kept: that is the finding.
        known = by_job.setdefault(key, {})
        known[at.pid] = Process(
            pid=at.pid,
            parent=one.stat.parent,
            start_ticks=at.stat.start_ticks,
            rank=rank,
            world_size=_number(one.environment, _WORLD_SIZES),
            local_size=_number(one.environment, _LOCAL_SIZES),
            told=_told(one),
        )
    return [_job(seen, list(found.values())) for found in by_job.values()]


def _by_parent(seen: Mapping[int, _Seen], wanted: set[int], proc: Path) -> list[Job]:
    """Programs that start Python processes themselves, each of which has torch loaded."""
    jobs = []
    for parent in sorted(wanted):
        if not seen[parent].is_python:
            continue
        children = [
            seen[child]
            for child in seen[parent].children
            if child in wanted
            and seen[child].is_python
            and not any(word in seen[child].command for word in _HELPERS)
            and has_torch(child, proc)
        ]
        if children:
            found = [
                Process(one.pid, parent, one.stat.start_ticks, told=_told(one))
                for one in sorted(children, key=lambda one: (one.stat.start_ticks, one.pid))
            ]
            jobs.append(Job(parent, _printed(seen[parent].command), tuple(found)))
    return _without_helpers(jobs)


def _without_helpers(jobs: Sequence[Job]) -> list[Job]:
    """Of jobs one below the other: what a rank of several starts are its helpers (workers of a data
    loader, a forked child), and who starts nobody but a launcher is none."""
    ranks = {one.pid for job in jobs if len(job.processes) > 1 for one in job.processes}
    left = [job for job in jobs if job.launcher not in ranks]
    launchers = {job.launcher for job in left}
    return [job for job in left if len(job.processes) > 1 or job.processes[0].pid not in launchers]


def _job(seen: Mapping[int, _Seen], found: Sequence[Process]) -> Job:
    parents = {one.parent for one in found}
    launcher = parents.pop() if len(parents) == 1 else 0
    command = _printed(seen[launcher].command) if launcher in seen else ""
    ordered = sorted(found, key=lambda one: (one.rank or 0, one.start_ticks))
    return Job(launcher, command, tuple(ordered))


def _told(one: _Seen) -> Mapping[str, str]:
    return {name: one.environment[name] for name in _TOLD if name in one.environment}


def _numbered_by(environment: Mapping[str, str]) -> str:
    for name in _NUMBERED_BY:
        if environment.get(name, "").isdigit() and _number(environment, _WORLD_SIZES) is not None:
            return name
    return ""


def _same_rank_above(seen: Mapping[int, _Seen], one: _Seen, name: str) -> bool:
    """Whether a process above has the same number of the same job: then this is its helper."""
    mine = [one.environment.get(word) for word in (name, *_JOBS)]
    above = seen.get(one.stat.parent)
    while above is not None:
        if [above.environment.get(word) for word in (name, *_JOBS)] == mine:
            return True
        above = seen.get(above.stat.parent)
    return False


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


def has_torch(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether the process has torch's library mapped. About a millisecond."""
    try:
        with open(proc / str(pid) / "maps", "rb") as file:
            return any(b"libtorch_cpu" in line or b"libtorch_python" in line for line in file)
    except OSError:
        return False


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


def _links_to_python(pid: int) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False


def _number(environment: Mapping[str, str], names: Iterable[str]) -> int | None:
    return next((int(environment[n]) for n in names if environment.get(n, "").isdigit()), None)


def _parsed(environment: bytes) -> dict[str, str]:
    words = environment.decode("utf-8", "replace").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def _printed(command: bytes) -> str:
    return command.replace(b"\0", b" ").decode("utf-8", "replace").strip()


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MOST_BYTES)
