"""Looks at a Slurm job on all its nodes: `srun --overlap` starts one look on each, beside the job's
own steps, and their parts are judged here as one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import UsageError
from ..hook import loading
from ..record.safe_text import clean, whole_number
from .limits import LOOKED_S, TOOL_S
from .parts import Part, Whole, read, whole


def look_at(job: str, flags: Sequence[str]) -> Whole:
    """Takes a look at a job that runs. Raises UsageError where Slurm does not let us."""
    if whole_number(job) is None:
        raise UsageError(f"--slurm takes the number of a job, not {clean(job, 40)!r}")
    nodes = _nodes(job)
    # One process on each node, in a step that shares what the job's own steps have taken.
    words = ["srun", f"--jobid={job}", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}"]
    words += ["--ntasks-per-node=1", "--input=none", "--mpi=none", "--kill-on-bad-exit=0"]
    done = _run([*words, *_command(), "inspect", "--slurm-part", job, *flags], LOOKED_S)
    parts, others = read(done.stdout)
    if not parts:
        said = [*others, *done.stderr.splitlines()]
        why = clean("; ".join(said[:3]), 400) or f"srun ended with {done.returncode}"
        raise UsageError(f"no node of Slurm's job {job} could be looked at: {why}")
    return _told(whole(parts), parts, nodes, done.stderr)


def _told(found: Whole, parts: Sequence[Part], nodes: int, errors: str) -> Whole:
    notes = list(found.notes)
    silent = nodes - len(parts)
    if silent > 0:
        why = clean("; ".join(errors.splitlines()[:3]), 400)
        notes.append(f"{silent} of {nodes} nodes did not answer: {why or 'nothing was said'}")
    look = found.look
    if silent > 0:
        # What is there is not known, so nobody is missing.
        look = replace(look, missing=())
    return Whole(look, found.hosts, found.pids, found.signs, notes)


def _nodes(job: str) -> int:
    done = _run(
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


def _run(words: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
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
