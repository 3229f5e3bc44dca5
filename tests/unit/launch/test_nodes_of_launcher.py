"""Which commands start one node's part of a greater job."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.launch.nodes_of_launcher import NodesOfLauncher, nodes_of_launcher


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's flags are read together with the script, which must be there."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


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
