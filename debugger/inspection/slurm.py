"""Looks at a Slurm job on all its nodes: `srun --overlap` starts one look on each, beside the job's
own steps, and their parts are judged here as one. A part is one line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..hook import loading
from ..record.limits import MOST_RANKS
from ..record.safe_text import clean, whole_number
from ..record.snapshot import CallSite
from ..record.wording import RankState
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
_MOST_LINES = 60


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
    told = asdict(part.look)
    for rank, one in part.look.ranks.items():
        told["ranks"][rank]["doing"] = one.doing.name
    told |= {"schema": _SCHEMA, "host": part.host, "pids": dict(part.pids)}
    return MARK + json.dumps({**told, "signs": list(part.signs), "notes": list(part.notes)})


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
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
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


def _part(told: Mapping[str, Any]) -> Part:
    if told["schema"] != _SCHEMA:
        raise ValueError(f"it is {told['schema']!r}, and this is {_SCHEMA}")
    ranks = {
        _rank(rank): Stance(**{name: read(one[name]) for name, read in _FIELDS.items()})
        for rank, one in told["ranks"].items()
    }
    look = Look(
        ranks,
        tuple(map(_rank, told["missing"])),
        tuple(map(_rank, told["twice"])),
        tuple(map(_rank, told["never_came"])),
        _rank(told["world_size"]),
        _text(told["unserved"]),
        float(told.get("age_s", 0.0)),
    )
    return Part(
        clean(str(told["host"]), 80),
        look,
        {_rank(rank): int(pid) for rank, pid in told["pids"].items()},
        [clean(str(sign), _MOST_TEXT) for sign in told["signs"]],
        [clean(str(note), _MOST_TEXT) for note in told["notes"]],
    )


def _rank(value: object) -> int:
    if not re.fullmatch(r"\d{1,6}", str(value)) or int(str(value)) > MOST_RANKS:
        raise ValueError(f"{value!r} is no rank")
    return int(str(value))


def _site(told: Mapping[str, Any]) -> CallSite:
    file, function, through = (_text(told[name]) for name in ("file", "function", "through"))
    return CallSite(file, int(told["line"]), function, through)


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _each(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: tuple(map(read, values[:_MOST_LINES]))


def _text(value: object) -> str:
    return clean(str(value), _MOST_TEXT)


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "doing": lambda name: RankState[str(name)],
    "op": _text,
    "call": _optional(_text),
    "site": _optional(_site),
    "still_s": float,
    "running": bool,
    "group": _optional(_text),
    "not_in": _each(_text),
    "peers": _each(_rank),
    "keys": _each(_text),
    "arguments": lambda told: {_text(name): _text(value) for name, value in told.items()},
    "cause": _optional(_text),
    "computes": bool,
    "moves_data": bool,
    "at_work": bool,
    "serves": _text,
    "wakes_in_s": _optional(float),
    "lines": _each(_text),
}
"""How each field of a stance is read: another node has told it. That of `thread` has served its
purpose where the node looked."""
