"""distcore's conformance suite on the backend, over the stand-in for NCCL: real data, real ranks.

What it shows is that plans, views of elements, copies and messages are right, not how NCCL or CUDA
behave.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.spawned import spawn

PROGRAM = Path(__file__).with_name("ranks_on_the_fake.py")
LIMIT_S = 100


def run(size: int, what: str, scratch: Path) -> list[str]:
    """What each rank printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return spawn(PROGRAM, size, (port, what), lambda _: {"TMPDIR": str(scratch)}, LIMIT_S)


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


def test_hooks_of_ddp(tmp_path: Path) -> None:
    for text in run(2, "hooks", tmp_path):
        assert "hooks and callbacks: right" in text
