"""Workers of torch.distributed.rpc that make no group, below a launcher which tells each its rank
only after it has forked it, or has had it started: they are ranks all the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import runs

LAUNCHER = """
import os, sys
import torch
import torch.multiprocessing as mp
from torch.distributed import rpc


def work(x):
    if sys.argv[2] == "dies":
        os._exit(3)  # <- dies
    if sys.argv[2] == "raises":
        raise ValueError("planted")
    return x + 1


def main(rank, size):
    os.environ["RANK"] = str(rank)
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{sys.argv[3]}", _transports=["uv"]
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size, rpc_backend_options=options)
    if rank == 0:
        assert rpc.rpc_sync("worker1", work, args=(torch.ones(2),))[0] == 2  # <- raises
    rpc.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "spawned":
        mp.spawn(main, args=(2,), nprocs=2)
        sys.exit()
    children = []
    for rank in range(2):
        if not (child := os.fork()):
            main(rank, 2)
            sys.exit()
        children.append(child)
    sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def program(tmp_path: Path, *mode: str) -> list[str]:
    script = tmp_path / "launcher.py"
    script.write_text(LAUNCHER)
    return ["--", sys.executable, str(script), *mode, str(tmp_path / "store")]


@pytest.mark.parametrize("how", ["forked", pytest.param("spawned", marks=pytest.mark.long)])
def test_who_dies_is_named(tmp_path: Path, how: str) -> None:
    found = runs.run("exec", program(tmp_path, how, "dies"), tmp_path)
    assert found.exit_code == 94, found.explain()
    (error,) = found.errors
    assert (error["kind"], error["culprits"]) == ("rank_died", [1])
    assert "<- dies" in LAUNCHER.splitlines()[error["ranks"]["1"]["location"]["line"] - 1]


def test_what_a_worker_has_raised_is_no_wrong_argument_of_its_caller(tmp_path: Path) -> None:
    found = runs.run("exec", program(tmp_path, "forked", "raises"), tmp_path)
    assert found.exit_code == 1, found.explain()
    (error,) = found.errors
    assert (error["kind"], error["culprits"]) == ("rank_exception", [0])
    assert "<- raises" in LAUNCHER.splitlines()[error["ranks"]["0"]["location"]["line"] - 1]


@pytest.mark.parametrize("how", ["forked", pytest.param("spawned", marks=pytest.mark.long)])
def test_workers_that_are_right(tmp_path: Path, how: str) -> None:
    found = runs.run("exec", program(tmp_path, how, "answers"), tmp_path)
    assert (found.exit_code, found.errors) == (0, []), found.explain()
    assert found.report["world_size"] == 2
