"""Small jobs that never ran, with a planted truth, as torch's recorder would have left them.

A job is one list of steps in an order that all ranks keep: collectives of overlapping groups, and
batches of messages along a pipeline. On NCCL a host issues ahead of its device, on gloo it waits
for each call. The simulation goes on until nothing can move; then each rank's ring is written.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OPS = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "all_gather", "barrier")
OTHER = {"op": "_broadcast_oop", "dtype": "Half", "size": 96}
FAULTS = ("none", "host", "device", "op", "size", "dtype", "at_work")
BATCH = "batch"
START_NS = 1_780_000_000 * 10**9


@dataclass(frozen=True)
class Step:
    """One collective, or a batch of messages each from one rank to the next of its group."""

    group: str
    op: str
    ranks: tuple[int, ...]


@dataclass
class Rank:
    """Steps by their index in the job: those to make, made, and complete."""

    steps: list[int]
    issued: int = 0
    done: int = 0
    stuck: bool = False


@dataclass
class Job:
    """A job and its truth: `culprits` are who is at fault, () where nothing is or can be seen."""

    library: str
    groups: dict[str, tuple[str, tuple[int, ...]]]
    steps: list[Step]
    fault: str
    rank: int
    at: int
    ranks: dict[int, Rank] = field(default_factory=dict)

    @property
    def moving(self) -> bool:
        """The step of the fault stops nobody: it is none, or has not come."""
        return self.fault in ("none", "at_work")


def job(seed: int, library: str, fault: str) -> Job:
    """One of them; equal for equal seeds."""
    chance = random.Random(f"{seed} {library} {fault}")
    world = chance.choice((6, 8))
    groups = {"0": ("default_pg", tuple(range(world)))}
    half = world // 2
    for number in range(half):
        groups[str(1 + number)] = ("tensor", (2 * number, 2 * number + 1))
    for number in range(2):
        groups[str(10 + number)] = ("data", tuple(range(number, world, 2)))
    steps = []
    for _ in range(chance.randint(20, 60)):
        group = chance.choice(sorted(groups))
        pipeline = library == "nccl" and groups[group][0] == "data" and chance.random() < 0.5
        steps.append(Step(group, BATCH if pipeline else chance.choice(OPS), groups[group][1]))
    steps.append(Step("0", "all_reduce", groups["0"][1]))  # everybody meets
    at = chance.randrange(5, len(steps) - 1)
    while fault in OTHER and (steps[at].op in (BATCH, "barrier") or len(steps[at].ranks) < 3):
        at = len(steps) - 1 if at + 1 >= len(steps) else at + 1
    made = Job(library, groups, steps, fault, chance.choice(steps[at].ranks), at)
    made.ranks = {
        rank: Rank([at for at, step in enumerate(steps) if rank in step.ranks])
        for rank in range(world)
    }
    _run(made, chance)
    return made


def _run(job: Job, chance: random.Random) -> None:
    """Until nothing moves, or (a job at work) for a while."""
    lead = 1 if job.library == "gloo" else chance.randint(2, 12)
    left = chance.randint(10, 60) if job.fault == "at_work" else 1 << 30
    moved = True
    while moved and left > 0:
        moved = False
        order = list(job.ranks)
        chance.shuffle(order)
        for rank in order:
            left -= 1
            moved |= _issue(job, rank, lead)
            moved |= _complete(job, rank)


def _issue(job: Job, rank: int, lead: int) -> bool:
    mine = job.ranks[rank]
    if mine.issued == len(mine.steps) or mine.issued - mine.done >= lead:
        return False
    if job.fault == "host" and rank == job.rank and mine.steps[mine.issued] >= job.at:
        return False
    mine.issued += 1
    return True


def _complete(job: Job, rank: int) -> bool:
    """The oldest call of the rank, if all who take part have come to it."""
    mine = job.ranks[rank]
    if mine.done == mine.issued or mine.stuck:
        return False
    at = mine.steps[mine.done]
    if job.fault in OTHER and at == job.at:
        return False
    parts = [job.ranks[one] for one in job.steps[at].ranks]
    if not all(
        one.issued > one.steps.index(at) and one.done >= one.steps.index(at) for one in parts
    ):
        return False
    if job.fault == "device" and any(one.stuck for one in parts):
        return False
    for number, one in zip(job.steps[at].ranks, parts, strict=True):
        if job.fault == "device" and number == job.rank and at >= job.at:
            one.stuck = True
        else:
            one.done += 1
    return True


# -- what is left of it --------------------------------------------------------------------------


def somebody_waits(job: Job) -> bool:
    """Whether the fault has stopped anybody else."""
    return any(one.done < one.issued for rank, one in job.ranks.items() if rank != job.rank)


def form_of(job: Job, chance: random.Random) -> str:
    """How much the dumps hold."""
    return chance.choice(("whole", "wrapped", "active" if job.library == "nccl" else "whole"))


def dumps(job: Job, chance: random.Random) -> dict[int, dict[str, Any]]:
    """Each rank's dump: whole, with the ring wrapped, or of the active calls alone (NCCL)."""
    form = form_of(job, chance)
    found = {}
    for rank in job.ranks:
        entries = _entries(job, rank)
        if form == "wrapped":
            # A ring holds some thousand calls: what pends, and many before it, is there.
            pending = 3 * (job.ranks[rank].issued - job.ranks[rank].done)
            entries = entries[-max(pending + 12, len(entries) - chance.randint(0, 60)) :]
        elif form == "active":
            entries = [entry for entry in entries if entry["state"] != "completed"]
        found[rank] = {
            "version": "2.10",
            "comm_lib_version": "2.27.3" if job.library == "nccl" else "",
            "pg_config": _config(job, rank),
            "pg_status": {},
            "entries": entries,
        }
    return found


def _config(job: Job, rank: int) -> Mapping[str, Any]:
    if job.library == "gloo":
        return {"": {"name": "", "desc": "", "ranks": "[]"}}
    return {
        name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
        for name, (desc, ranks) in job.groups.items()
        if rank in ranks
    }


def _entries(job: Job, rank: int) -> list[dict[str, Any]]:
    """All that the rank has issued."""
    mine = job.ranks[rank]
    names = [name for name, (_, ranks) in job.groups.items() if rank in ranks]
    collectives = dict.fromkeys(names, 0)
    messages = dict.fromkeys(names, 0)
    rows: list[dict[str, Any]] = []
    for index, at in enumerate(mine.steps[: mine.issued]):
        step = job.steps[at]
        batch = step.op == BATCH
        (messages if batch else collectives)[step.group] += 1
        ready = index < mine.done
        parts = _batch(step, rank) if batch else [step.op]
        for number, op in enumerate(parts):
            # Of a batch only the last entry is ever marked complete.
            over = ready and (not batch or number == len(parts) - 1)
            rows.append(
                {
                    "record_id": len(rows),
                    "pg_id": names.index(step.group),
                    "process_group": (step.group, job.groups[step.group][0]),
                    "collective_seq_id": collectives[step.group],
                    "p2p_seq_id": messages[step.group],
                    "op_id": len(rows) + 1,
                    "profiling_name": f"{job.library}:{op}",
                    "time_created_ns": START_NS + at * 10**6 + rank,
                    **_content(job, rank, at, op),
                    **_state(job.library, over),
                    "timeout_ms": 600_000,
                    "is_p2p": batch,
                    "frames": [{"name": "step", "filename": "/x/train.py", "line": 100 + at}],
                }
            )
    return rows


def _batch(step: Step, rank: int) -> Sequence[str]:
    """Send to the next rank of the group, receive from the one before, in one launch."""
    own = step.ranks.index(rank)
    last = len(step.ranks) - 1
    onward = [f"send {own}->{own + 1}"] if own < last else []
    return [*onward, *([f"recv {own}<-{own - 1}"] if own else []), "coalesced"]


def _content(job: Job, rank: int, at: int, op: str) -> Mapping[str, Any]:
    odd = job.fault if at == job.at and rank == job.rank else ""
    size = OTHER["size"] if odd == "size" else 64
    dtype = OTHER["dtype"] if odd == "dtype" else "Float"
    tensors: Mapping[str, Any] = {
        "input_sizes": [[size]],
        "input_dtypes": [dtype],
        "output_sizes": [[size]],
        "output_dtypes": [dtype],
    }
    if op == "coalesced":
        tensors = {key: [] for key in tensors}
    if odd == "op":
        return {**tensors, "profiling_name": f"{job.library}:{OTHER['op']}"}
    return tensors


def _state(library: str, over: bool) -> Mapping[str, Any]:
    """gloo says only that a call has been put away."""
    told = over and library == "nccl"
    return {
        "state": "completed" if told else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": START_NS + 10**12 if told else None,
        "retired": over,
    }
