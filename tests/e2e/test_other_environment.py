"""distdebug in one environment, without torch, and the program with its torch in another, which has
nothing of distdebug's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.environments import OURS, TORCH, environment_without

TRAIN = """
import distcore, distdebug, sys, torch, torch.distributed as dist
import psutil, structlog, wrapt  # of the program's own
assert [one.MINE for one in (psutil, structlog, wrapt)] == [1, 1, 1]
assert sys.executable == {python!r}, sys.executable
assert issubclass(distdebug.errors.MismatchError, dist.DistBackendError), distdebug
print("both are here", flush=True)
dist.init_process_group("gloo")
distdebug.log.info("begins", answer=42)
rank, data = dist.get_rank(), torch.ones(4)
dist.all_reduce(data)
"""
MISMATCH = """
if rank == 1:
    dist.broadcast(data, 0)  # here
else:
    dist.all_reduce(data)
"""
WELL = """
dist.all_reduce(data)
dist.destroy_process_group()
"""
DEADLOCK = """
import torch, torch.distributed as dist, torch.multiprocessing as mp

def rank(number, store):
    dist.init_process_group("gloo", store, rank=number, world_size=2)
    dist.recv(torch.ones(1), 1 - number)

if __name__ == "__main__":
    import tempfile
    mp.spawn(rank, ("file://" + tempfile.mkdtemp() + "/store",), nprocs=2)
"""
ABSENT = """
import threading
if rank == 1:
    threading.Event().wait()
dist.all_reduce(data)
"""
RAISES = """
if rank == 1:
    raise KeyError("loss")
dist.all_reduce(data)
"""


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python that has torch."""
    return str(environment_without(OURS, tmp_path_factory.mktemp("environments") / "other"))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command `distdebug` of an environment without torch."""
    folder = tmp_path_factory.mktemp("environments") / "ours"
    return str(environment_without(TORCH, folder).with_name("distdebug"))


def _run(words: list[str], folder: Path) -> runs.Run:
    done = subprocess.run(
        [*words[:2], "--run-dir", str(folder / "run"), *words[2:]],
        cwd=folder,
        env=runs.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=runs.LIMIT_S,
        check=False,
    )
    return runs.Run(done.returncode, done.stdout, done.stderr, folder / "run")


def _program(folder: Path, other: str, ends: str) -> str:
    for name in ("psutil", "structlog", "wrapt"):
        (folder / f"{name}.py").write_text("MINE = 1\n")
    path = folder / "train.py"
    path.write_text(TRAIN.format(python=other) + ends)
    return str(path)


def test_a_mismatch_of_a_program_of_another_environment(
    tmp_path: Path, ours: str, other: str
) -> None:
    program = _program(tmp_path, other, MISMATCH)
    done = _run([ours, "run", "--nproc-per-node", "2", "--python", other, program], tmp_path)
    assert done.exit_code == 91, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["seq"]) == ("op_mismatch", 1)
    line = error["ranks"]["1"]["location"]["line"]
    assert Path(program).read_text().splitlines()[line - 1].endswith("# here")
    assert "both are here" in done.stdout, done.explain()
    assert "No module named" not in done.stdout + done.stderr
    log = (done.directory / "logs" / "0.jsonl").read_text()
    events = [json.loads(one) for one in log.splitlines()]
    assert 42 in [one.get("answer") for one in events]


def test_without_torch_and_without_a_python_one_sentence_says_what_to_type(
    tmp_path: Path, ours: str
) -> None:
    (tmp_path / "train.py").touch()
    done = _run([ours, "run", "-n", "2", "train.py"], tmp_path)
    assert done.exit_code == 2, done.explain()
    assert done.stderr.startswith("distdebug: torch is not installed in /")
    assert "distdebug run --python PATH" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("ends", "code", "kind", "culprits"),
    [
        (WELL, 0, None, None),
        (ABSENT, 93, "missing_rank", [1]),
        (RAISES, 1, "rank_exception", [1]),
    ],
    ids=["well", "absent", "raises"],
)
def test_verdicts(
    *, tmp_path: Path, ours: str, other: str, ends: str, code: int, kind: str, culprits: list[int]
) -> None:
    program = _program(tmp_path, other, ends)
    flags = ["--hang-timeout", "3", "--notice-after", "1"]
    done = _run([ours, "run", "--python", other, "-n", "2", *flags, program], tmp_path)
    assert done.exit_code == code, done.explain()
    found = [(one["kind"], one["culprits"]) for one in done.report["findings"]]
    assert found == ([(kind, culprits)] if code else [])


@pytest.mark.long
def test_a_deadlock_below_exec(tmp_path: Path, ours: str, other: str) -> None:
    (tmp_path / "train.py").write_text(DEADLOCK)
    done = _run([ours, "exec", "--", other, "train.py"], tmp_path)
    assert (done.exit_code, done.report["outcome"]) == (92, "deadlock"), done.explain()


@pytest.mark.long
def test_a_program_with_a_distcore_of_its_own_below_mpiexec(
    tmp_path: Path, ours: str, other: str
) -> None:
    program = _program(tmp_path, other, MISMATCH)
    (tmp_path / "distcore.py").write_text("")
    done = _run([ours, "run", "--launcher", "mpi", "--python", other, "-n", "2", program], tmp_path)
    assert done.exit_code == 91, done.explain()
    assert "both are here" in done.stdout, done.explain()
