"""The ranks of a job among the processes of a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from distdebug.inspection.processes import Job, Process, _without_helpers, find_jobs, job_of

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


def test_what_only_looks_like_a_number_is_none() -> None:
    with ExitStack() as stack:
        odd = [{"RANK": "²", "WORLD_SIZE": "4"}, {"RANK": "0", "WORLD_SIZE": "9" * 5000}]
        odd.append({"RANK": "1", "WORLD_SIZE": "4"})  # the twin
        pids = [stack.enter_context(process(python(SLEEPER), **one)).pid for one in odd]
        found = {one.pid: one for job in find_jobs(pids) for one in job.processes}
    assert (found[pids[2]].rank, found[pids[2]].world_size) == (1, 4)
    assert all(found[pid].rank is None for pid in pids[:1] if pid in found)
    assert all(found[pid].world_size is None for pid in pids[1:2] if pid in found)


def test_a_helper_with_the_number_of_its_rank_is_none() -> None:
    with process(python(PARENT), PMI_RANK="0", PMI_SIZE="1") as rank:
        jobs = find_jobs([rank.pid])
    assert [one.pid for job in jobs for one in job.processes] == [rank.pid]


def test_a_helper_has_the_number_by_the_name_that_its_rank_has_set() -> None:
    """Under mpiexec many a program sets what torch's `env://` reads, and starts a converter."""
    told = "dict(os.environ, RANK='1', WORLD_SIZE='2', MASTER_ADDR='127.0.0.1')"
    text = PARENT.replace("stdin=sys.stdin", f"stdin=sys.stdin, env={told}")
    with process(
        python(f"import os; {text}"), OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2"
    ) as rank:
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


MAPPED = """
import mmap, os, subprocess, sys, time
def has_torch():
    file = open(sys.argv[1], "rb")
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
"""
"""What makes a process look as if it had loaded torch, in a millisecond instead of seconds."""
WORKER = MAPPED + "kept = has_torch(); print(flush=True); sys.stdin.read()"
LAUNCHER = (
    MAPPED
    + f"""
import json
kept = has_torch()
rank, pipe = [sys.executable, "-c", {WORKER!r}, sys.argv[1]], subprocess.PIPE
told = [{{**os.environ, **one}} for one in json.loads(sys.argv[2])]
children = [subprocess.Popen(rank, env=one, stdin=sys.stdin, stdout=pipe) for one in told]
for child in children:
    child.stdout.readline()
print(flush=True)
sys.stdin.read()
"""
)


@pytest.fixture
def library(tmp_path: Path) -> str:
    """A file that is called as torch's library is."""
    path = tmp_path / "libtorch_cpu.so"
    path.write_bytes(b"not really")
    return str(path)


def launcher(library: str, *told: dict[str, str]) -> list[str]:
    return [*python(LAUNCHER), library, json.dumps(told)]


def elastic(rank: int, size: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "TORCHELASTIC_RUN_ID": "x",
        "MASTER_PORT": "29500",
    }


@pytest.mark.parametrize(
    "inherited",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"},  # srun torchrun
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "23456"},  # torchrun in a numbered pod
        {
            "OMPI_COMM_WORLD_RANK": "0",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        },
    ],
)
def test_a_launcher_that_has_inherited_a_number_is_no_rank(
    library: str, inherited: dict[str, str]
) -> None:
    command = launcher(library, elastic(0, 2), elastic(1, 2))
    with process(command, **inherited) as agent:
        (job,) = find_jobs([agent.pid])
        assert [one.rank for one in job.processes] == [0, 1]
        assert all(one.parent == agent.pid for one in job.processes)
        assert job.launcher == agent.pid


def test_a_job_that_a_rank_has_started_is_its_helper(library: str) -> None:
    evaluation = {**elastic(0, 1), "MASTER_PORT": "29600", "TORCHELASTIC_RUN_ID": "y"}
    with process(launcher(library, evaluation), **elastic(0, 1)) as rank:
        (job,) = find_jobs([rank.pid])
        assert [one.pid for one in job.processes] == [rank.pid]


def test_two_launchers_that_tell_their_ranks_the_same_have_two_jobs(library: str) -> None:
    ranks = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    with process(launcher(library, *ranks)) as one, process(launcher(library, *ranks)) as other:
        jobs = find_jobs([one.pid, other.pid])
        assert [job.launcher for job in jobs] == [one.pid, other.pid]
        assert [[rank.rank for rank in job.processes] for job in jobs] == [[0, 1], [0, 1]]
        assert not any(job.partial for job in jobs)
    # But two processes that one launcher has given the same number are one job: of that it is ill.
    with process(launcher(library, ranks[0], ranks[0])) as one:
        (job,) = find_jobs([one.pid])
        assert [rank.rank for rank in job.processes] == [0, 0]


def test_a_part_of_a_job_is_told_to_be_one(library: str) -> None:
    with process(launcher(library, elastic(0, 2), elastic(1, 2))) as agent:
        (whole,) = find_jobs([agent.pid])
        (part,) = find_jobs([whole.processes[1].pid])
        assert ([one.rank for one in part.processes], part.partial) == ([1], True)
        assert not whole.partial


FORK_SERVER = (
    MAPPED
    + """
import multiprocessing
def work(told):
    kept = has_torch()
    told.put(os.getpid())
    time.sleep(600)
if __name__ == "__main__":
    kept = has_torch()
    context = multiprocessing.get_context("forkserver")
    told = context.Queue()
    for _ in range(2):
        context.Process(target=work, args=(told,), daemon=True).start()
    pids = sorted(told.get() for _ in range(2))
    print(*pids, flush=True)
    sys.stdin.read()
"""
)


def test_ranks_of_a_fork_server_are_those_of_the_program(tmp_path: Path, library: str) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(FORK_SERVER)
    command = [sys.executable, str(script), library]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as main:
        assert main.stdout is not None
        assert main.stdin is not None
        pids = [int(word) for word in main.stdout.readline().split()]
        (job,) = find_jobs([main.pid])
        assert (job.launcher, sorted(one.pid for one in job.processes)) == (main.pid, pids)
        main.stdin.close()


def test_the_compilers_of_a_rank_are_no_job(tmp_path: Path, library: str) -> None:
    """Each rank has one process for them, and that has several."""
    folder = tmp_path / "torch" / "_inductor" / "compile_worker"
    folder.mkdir(parents=True)
    (folder / "__main__.py").write_text(
        MAPPED + "kept = has_torch()\nos.fork()\nos.fork()\nprint(flush=True)\nsys.stdin.read()\n"
    )
    with process([sys.executable, str(folder / "__main__.py"), library]) as compiler:
        assert compiler.stdout is not None
        for _ in range(3):
            compiler.stdout.readline()
        assert find_jobs([compiler.pid]) == []


def test_processes_that_are_named_are_a_job_whoever_started_them(library: str) -> None:
    with process([*python(WORKER), library], RANK="3", WORLD_SIZE="4", LOCAL_RANK="1") as one:
        job = job_of([one.pid, one.pid])
        (only,) = job.processes
        assert (only.pid, only.rank, only.local_rank) == (one.pid, 3, 1)
    with process([*python(WORKER), library]) as one:
        (only,) = job_of([one.pid]).processes
        assert only.rank is None
    assert job_of([one.pid]).processes == ()
