"""The ranks of a job among the processes of a host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from debugger.inspection.processes import Job, Process, _without_helpers, find_jobs

SLEEPER = "import sys; print(flush=True); sys.stdin.read()"
PARENT = (
    "import subprocess, sys; "
    f"child = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], stdin=sys.stdin); "
    "child.wait()"
)


@contextmanager
def process(program: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has begun, and ends with the block."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    running = subprocess.Popen(
        program, env={**kept, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stdin is not None
    with running:
        running.stdout.readline()
        try:
            yield running
        finally:
            running.stdin.close()


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_ranks_are_found_by_what_their_launcher_told_them() -> None:
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                process(python(SLEEPER), RANK=str(rank), WORLD_SIZE="4", LOCAL_WORLD_SIZE="2")
            )
            for rank in (3, 2)
        ]
        jobs = find_jobs([one.pid for one in ranks])
    assert len(jobs) == 1
    found = [(one.rank, one.pid, one.world_size, one.local_size) for one in jobs[0].processes]
    assert found == [(2, ranks[1].pid, 4, 2), (3, ranks[0].pid, 4, 2)]
    assert jobs[0].launcher == os.getpid()


def test_a_helper_with_the_number_of_its_rank_is_none() -> None:
    with process(python(PARENT), PMI_RANK="0", PMI_SIZE="1") as rank:
        jobs = find_jobs([rank.pid])
    assert [one.pid for job in jobs for one in job.processes] == [rank.pid]


def test_below_a_shell_the_python_process_counts() -> None:
    shell = ["sh", "-c", f'"{sys.executable}" -c "{SLEEPER}"; true']
    with process(shell, SLURM_PROCID="1", SLURM_NTASKS="2") as top:
        jobs = find_jobs([top.pid])
    (only,) = [one for job in jobs for one in job.processes]
    assert only.rank == 1
    assert only.pid != top.pid


def test_two_jobs_are_told_apart() -> None:
    with ExitStack() as stack:
        below = [
            stack.enter_context(
                process(python(SLEEPER), RANK="0", WORLD_SIZE="1", MASTER_PORT=port)
            ).pid
            for port in ("29500", "29501")
        ]
        assert len(find_jobs(below)) == 2


def test_other_processes_are_no_ranks() -> None:
    with process(python(SLEEPER), RANK="first", WORLD_SIZE="1") as one:
        assert find_jobs([one.pid]) == []
    with process(python(PARENT)) as one:
        assert find_jobs([one.pid]) == []


@pytest.mark.parametrize(
    ("below", "launchers"),
    [
        ({1: [2, 3]}, [1]),
        ({1: [2, 3], 2: [4], 3: [5]}, [1]),  # each rank has forked a child
        ({1: [2, 3], 2: [4, 5, 6]}, [1]),  # or has a data loader with workers
        ({1: [2], 2: [3, 4]}, [2]),  # a program with torch has started the launcher
        ({1: [2], 2: [3, 4], 3: [5, 6]}, [2]),
        ({1: [2, 3], 7: [8, 9]}, [1, 7]),  # two jobs, side by side
    ],
)
def test_what_ranks_start_is_no_job(below: dict[int, list[int]], launchers: list[int]) -> None:
    jobs = [
        Job(parent, "", tuple(Process(pid, parent, pid) for pid in children))
        for parent, children in below.items()
    ]
    assert [job.launcher for job in _without_helpers(jobs)] == launchers
