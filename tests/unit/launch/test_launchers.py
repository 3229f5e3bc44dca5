"""What launchers' command lines start, read without starting them; and which start one node's part
of a greater job."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.errors import UsageError
from distdebug.launch.launchers import LauncherJob, NodesOfLauncher, nodes_of_launcher, read


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "program", "ranks", "local_size"),
    [
        ("torchrun --nproc-per-node 8 --nnodes=4 train.py --lr 1", "train.py --lr 1", 32, 8),
        ("/opt/bin/torchrun --standalone --nproc_per_node=2 train.py", "train.py", 2, 2),
        (
            "python -m torch.distributed.run --nproc-per-node 2 -m json.tool x",
            "-m json.tool x",
            2,
            2,
        ),
        (
            "accelerate launch --num-processes 8 --num_machines 2 train.py -n 3",
            "train.py -n 3",
            8,
            4,
        ),
        ("mpiexec -n 4 -ppn 2 python -u train.py -n 9", "train.py -n 9", 4, 2),
        (
            "mpirun -np 4 --bind-to none -x A=b --mca a b python3 -m json.tool",
            "-m json.tool",
            4,
            None,
        ),
    ],
)
def test_a_launcher_says_how_many_ranks_run_what(
    line: str, program: str, ranks: int, local_size: int | None
) -> None:
    job = read(line.split())
    assert (job.program, job.ranks, job.local_size) == (tuple(program.split()), ranks, local_size)
    assert not job.starts_itself


def test_what_the_launcher_sets_for_the_ranks_is_kept() -> None:
    found = read(["mpirun", "-np", "2", "-x", "A=b", "python", "-O", "train.py"]).environment
    assert {name: found.get(name) for name in ("A", "PYTHONOPTIMIZE")} == {
        "A": "b",
        "PYTHONOPTIMIZE": "1",
    }
    assert "OMPI_COMM_WORLD_RANK" in found  # of which each planned rank has its own
    accelerated = read(
        ["accelerate", "launch", "--num_processes", "2", "--mixed_precision", "bf16", "train.py"]
    )
    assert accelerated.environment == {"ACCELERATE_MIXED_PRECISION": "bf16"}


def test_python_starts_one_process_that_starts_the_ranks() -> None:
    assert read(["python", "-u", "train.py", "-n", "4"]) == LauncherJob(
        ("train.py", "-n", "4"), starts_itself=True
    )


@pytest.mark.parametrize(
    ("line", "unsaid"),
    [
        ("torchrun --nproc-per-node gpu train.py", "depends on the machine"),
        ("torchrun --nproc-per-node 2 --nnodes 1:4 train.py", "leaves it open"),
        ("accelerate launch train.py", "its configuration"),
        ("mpiexec python train.py", "there is no -n"),
    ],
)
def test_a_number_that_is_not_said_is_not_guessed(line: str, unsaid: str) -> None:
    job = read(line.split())
    assert job.ranks is None
    assert unsaid in job.unsaid


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("bash run.sh", "what 'bash' starts is not known"),
        ("mpiexec -n 2 --some-flag python train.py", "does not know mpiexec's flag --some-flag"),
        ("mpiexec -n 2 python a.py : -n 2 python b.py", "several programs"),
        ("mpiexec -n x python train.py", "a number of ranks"),
        ("mpiexec -n 2 torchrun --nproc-per-node 2 train.py", "starts ranks itself"),
        ("accelerate launch --use_fsdp train.py", "--use_fsdp"),
        ("python -m torch.distributed.launch train.py", "an argument of its own"),
        ("python -c pass", "cannot plan python -c"),
        ("python", "no script"),
        ("torchrun --nproc-per-node 2 absent.py", "does not exist"),
    ],
)
def test_what_cannot_be_planned_is_told(line: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read(line.split())


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nnodes 2 --node-rank 1 train.py", NodesOfLauncher(2, 2, "--node-rank 1", 1)),
        (
            "/env/bin/torchrun --nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=node0:1 train.py",
            NodesOfLauncher(1, 4, ranks=1),
        ),
        (
            "python3.11 -Wignore -u -m torch.distributed.run --nnodes 3 train.py --nnodes 9",
            NodesOfLauncher(3, 3, "--node-rank 0", 1),
        ),
        (
            "python -W ignore -m torch.distributed.launch --use_env --nnodes 2 train.py",
            NodesOfLauncher(2, 2, "--node-rank 0", 1),
        ),
        ("python /env/bin/torchrun --nnodes 2 train.py", NodesOfLauncher(2, 2, "--node-rank 0", 1)),
        (
            "torchrun --nnodes 2 --nproc-per-node 8 --node-rank 1 train.py",
            NodesOfLauncher(2, 2, "--node-rank 1", 8),
        ),
        # As many as the machine has of them.
        (
            "torchrun --nnodes 2 --nproc-per-node gpu train.py",
            NodesOfLauncher(2, 2, "--node-rank 0"),
        ),
        (
            "accelerate launch --num_machines 2 --machine-rank=1 --cpu train.py",
            NodesOfLauncher(2, 2, "--machine_rank 1"),
        ),
        # Its configuration may have the number, and c10d gives one: two nodes are not twice one.
        ("accelerate launch --num_machines 2 train.py", NodesOfLauncher(2, 2)),
        (
            "accelerate launch --num_machines 2 --rdzv_backend c10d --machine_rank 0 train.py",
            NodesOfLauncher(2, 2),
        ),
    ],
)
def test_a_part_of_a_greater_job(command: str, expected: NodesOfLauncher) -> None:
    assert nodes_of_launcher(command.split()) == expected


@pytest.mark.parametrize(
    "command",
    [
        "torchrun train.py --nnodes 2",
        "torchrun --nproc-per-node 2 train.py",
        "torchrun --standalone --nnodes 2 train.py",
        "torchrun --no-such-flag --nnodes 2 train.py",
        "torchrun --nnodes 2 not_there.py",
        "torchrun --help",
        "python train.py --nnodes 2",
        "python -m train --nnodes 2",
        "python",
        "accelerate launch train.py --num_machines 2",
        "accelerate config",
        "mpiexec -n 4 python train.py",
    ],
)
def test_all_ranks_are_here_or_nobody_knows(command: str) -> None:
    assert nodes_of_launcher(command.split()) is None
