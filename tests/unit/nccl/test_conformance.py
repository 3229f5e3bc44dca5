"""distcore's conformance suite on the backend, over the stand-in for NCCL: real data, real ranks.

What it shows is that plans, views of elements, copies and messages are right, not how NCCL or CUDA
behave.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("ranks_on_the_fake.py")
ROOT = Path(__file__).parents[3]
LIMIT_S = 100


def run(size: int, what: str, scratch: Path) -> list[str]:
    """What each rank printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, str(rank), str(size), port, what],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        for rank in range(size)
    ]
    try:
        printed = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank, text in zip(ranks, printed, strict=True):
        assert rank.returncode == 0, f"{rank.args}: {rank.returncode}\n" + "\n---\n".join(printed)
        assert text.strip()
    return printed


@pytest.mark.timeout(150)
def test_the_suite_on_two_ranks(tmp_path: Path) -> None:
    for text in run(2, "suite", tmp_path):
        assert "calls are right" in text


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_suite_on_three_ranks(tmp_path: Path) -> None:
    for text in run(3, "suite", tmp_path):
        assert "calls are right" in text


def test_groups_split_and_dtypes_of_nccls_own(tmp_path: Path) -> None:
    for text in run(3, "more", tmp_path):
        assert "split, float8, unsigned, mixed groups: right" in text


def test_beside_tcp_for_the_cpus_tensors(tmp_path: Path) -> None:
    for text in run(2, "combined", tmp_path):
        assert "tcp and NCCL together: right" in text
