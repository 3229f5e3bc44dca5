"""The backend on NCCL and CUDA themselves: one rank, and two that share a GPU.

NCCL refuses two ranks of one host on one GPU, so those give themselves different host names
(NCCL_HOSTID), and talk over sockets. Their kernels take turns on the GPU: nothing is fast there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.spawned import ROOT, spawn

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).with_name("ranks_on_a_gpu.py")
LIMIT_S = 300
BAR = 1.05
"""all_reduce from 1 MiB on may take so much of what torch's own NCCL takes."""


def run(size: int, what: str, directory: Path) -> list[str]:
    """What each rank printed."""
    arguments = (str(directory / "store"), what)
    return spawn(
        PROGRAM,
        size,
        arguments,
        lambda rank: {"NCCL_HOSTID": f"rank-{rank}", "NCCL_NET": "Socket"},
        LIMIT_S,
    )


@pytest.mark.parametrize("size", [1, 2])
def test_the_conformance_suite(size: int, tmp_path: Path) -> None:
    for text in run(size, "suite", tmp_path):
        assert "calls are right" in text


MORE = ("streams", "graph", "kept", "messages", "factors", "named", "split", "combined")


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("what", MORE)
def test_more(what: str, size: int, tmp_path: Path) -> None:
    for text in run(size, what, tmp_path):
        assert f"{what}: right" in text


def test_a_rank_that_does_not_come_is_a_deadline_that_names_the_call(tmp_path: Path) -> None:
    for text in run(2, "deadline", tmp_path):
        assert "deadline: right" in text


def bench(directory: Path, *flags: str) -> list[dict[str, Any]]:
    """The rows of `bench comm` for both NCCLs, on two ranks."""
    figures = directory / "figures.json"
    command = [sys.executable, "-m", "distdebug", "bench", "comm", "-n", "2", *flags]
    done = subprocess.run(
        [*command, "--backends", "distcore_nccl,nccl", "--json", figures],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, Any]] = json.loads(figures.read_text())["rows"]
    assert rows, done.stdout
    return rows


def test_every_op_beside_torchs_own_nccl(tmp_path: Path) -> None:
    for row in bench(tmp_path, "--sizes", "4K:64K", "--factor", "16", "--budget", "60"):
        assert set(row["backends"]) == {"distcore_nccl", "nccl"}


def test_all_reduce_beside_torchs_own_nccl(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("kernels that share a GPU take turns: their times say nothing")
    rows = bench(
        tmp_path, "--ops", "all_reduce", "--sizes", "1M:64M", "--factor", "4", "--budget", "60"
    )
    slow = {}
    for row in rows:
        ours, theirs = (row["backends"][name] for name in ("distcore_nccl", "nccl"))
        ratio = ours["time_us"] / theirs["time_us"]
        if ratio > BAR:
            slow[row["size_bytes"]] = ratio
    assert not slow, rows
