"""Looks at a Slurm job on all its nodes: `srun --overlap` starts one look on each, beside the job's
own steps, and their parts are judged here as one. A part is one line of JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..hook import loading
from ..record.limits import MOST_RANKS
from ..record.reading.plain_data import WRONG, made_of
from ..record.safe_text import clean, whole_number
from .limits import TOOL_S
from .look import Look, Stance


def look_at(job: str, flags: Sequence[str]) -> Whole:
    """Takes a look at a job that runs. Raises UsageError where Slurm does not let us."""
    if whole_number(job) is None:
        raise UsageError(f"--slurm takes the number of a job, not {clean(job, 40)!r}")
    nodes = _nodes(job)
    # One process on each node, in a step that shares what the job's own steps have taken.
    words = ["srun", f"--jobid={job}", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}"]
    words += ["--ntasks-per-node=1", "--input=none", "--mpi=none", "--kill-on-bad-exit=0"]
    done = _slurms([*words, *_command(), "inspect", "--slurm-part", job, *flags], limit_s=90.0)
    parts, others = read(done.stdout)
    if not parts:
        said = [*others, *done.stderr.splitlines()]
        why = clean("; ".join(said[:3]), 400) or f"srun ended with {done.returncode}"
        raise UsageError(f"no node of Slurm's job {job} could be looked at: {why}")
    found, silent = whole(parts), nodes - len(parts)
    if silent <= 0:
        return found
    why = clean("; ".join(done.stderr.splitlines()[:3]), 400) or "nothing was said"
    notes = [*found.notes, f"{silent} of {nodes} nodes did not answer: {why}"]
    # What is there is not known, so nobody is missing.
    return replace(found, look=replace(found.look, missing=()), notes=notes)


def _nodes(job: str) -> int:
    done = _slurms(
        ["squeue", "--noheader", f"--jobs={job}", "--states=RUNNING", "--format=%D"], TOOL_S
    )
    count = whole_number(done.stdout.strip())
    if count is None:
        why = clean(done.stderr.strip(), 200) or "it does not run"
        raise UsageError(f"Slurm has no job {job} that could be looked at: {why}")
    return count


def _command() -> list[str]:
    """This very command, where the nodes have it at the same place: as a program of the job has."""
    beside = Path(sys.executable).with_name("distdebug")
    found = str(beside) if beside.exists() else shutil.which("distdebug")
    return [found] if found else loading.command("cli")


def _slurms(words: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    # What this shell says of a job of its own would be taken for flags.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SRUN_")) or name == "SLURM_CONF"
    }
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError(f"--slurm needs Slurm's `{words[0]}`, which is not on PATH here") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"Slurm's `{words[0]}` has not ended within {limit_s:.0f} s") from None


MARK = "distdebug-part:"
_SCHEMA = "distdebug.look/3"
_MOST_TEXT = 512


@dataclass(frozen=True, slots=True)
class Part:
    """The ranks of one node. `signs` are what was seen beside their stacks, in lines."""

    host: str
    look: Look
    pids: Mapping[int, int]
    signs: Sequence[str]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Whole:
    """All parts as one; `hosts` and `pids` are by rank."""

    look: Look
    hosts: Mapping[int, str]
    pids: Mapping[int, int]
    signs: Sequence[str]
    notes: Sequence[str]


def written(part: Part) -> str:
    """The part as a line that `read` finds among whatever else is printed."""
    return MARK + json.dumps({"schema": _SCHEMA, **asdict(part)})


def read(output: str) -> tuple[list[Part], list[str]]:
    """The parts in what the nodes have printed, and the other lines."""
    parts, others = [], []
    for line in output.splitlines():
        mark, found, text = line.partition(MARK)
        if not found:
            others.append(clean(line, _MOST_TEXT))
            continue
        try:
            parts.append(_part(json.loads(text)))
        except (*WRONG, RecursionError) as error:
            others.append(
                f"{clean(mark, 80)} a look that cannot be read: {clean(repr(error), 200)}"
            )
    return parts, [line for line in others if line.strip()]


def whole(parts: Sequence[Part]) -> Whole:
    """The job that these nodes have looked at. A rank that two of them have is claimed twice; one
    that none has is missing where the world is known, and each node has some."""
    ranks: dict[int, Stance] = {}
    hosts: dict[int, str] = {}
    pids: dict[int, int] = {}
    twice = {rank for part in parts for rank in part.look.twice}
    for part in parts:
        for rank, one in part.look.ranks.items():
            if rank in ranks:
                twice.add(rank)
                continue
            ranks[rank], hosts[rank] = one, part.host
            pids[rank] = part.pids.get(rank, 0)
    world_size = max((part.look.world_size for part in parts), default=0)
    missing = {rank for rank in range(world_size) if rank not in ranks}
    never_came: set[int] = set()
    for part in parts:
        never_came |= set(part.look.never_came)
    return Whole(
        Look(
            ranks,
            tuple(sorted(missing)),
            tuple(sorted(twice)),
            tuple(sorted(never_came)),
            world_size,
            next((part.look.unserved for part in parts if part.look.unserved), ""),
            min((part.look.age_s for part in parts), default=0.0),
        ),
        hosts,
        pids,
        list(dict.fromkeys(sign for part in parts for sign in part.signs)),
        [f"{part.host}: {note}" for part in parts for note in part.notes],
    )


def _part(told: dict[str, Any]) -> Part:
    schema = told.pop("schema")
    if schema != _SCHEMA:
        raise ValueError(f"it is {schema!r}, and this is {_SCHEMA}")
    part = made_of(Part, told, _MOST_TEXT, MOST_RANKS)
    look = part.look
    ranks = {*look.ranks, *look.missing, *look.twice, *look.never_came, look.world_size}
    ranks.update(peer for one in look.ranks.values() for peer in one.peers)
    if not all(0 <= rank <= MOST_RANKS for rank in ranks):
        raise ValueError(f"{min(ranks)} or {max(ranks)} is no rank")
    return part
