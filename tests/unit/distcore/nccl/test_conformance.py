"""distcore's conformance suite on the backend, over the stand-in for NCCL: real data, real ranks.

What it shows is that plans, views of elements, copies and messages are right, not how NCCL or CUDA
behave.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded

PROGRAM = Path(__file__).with_name("ranks_on_the_fake.py")
LIMIT_S = 100


def check(loaded: TorchLoaded, size: int, what: str, scratch: Path, says: str) -> None:
    """All of so many ranks end well, and say this."""
    run = ranks.forked(loaded, scratch, size, PROGRAM, what, observed=False)
    run.extra = {"TMPDIR": str(scratch)}
    assert run.run(LIMIT_S) == 0, run.stderr + run.stdout
    assert run.stdout.count(says) == size, run.stdout


@pytest.mark.timeout(150)
def test_the_suite_on_two_ranks(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    check(torch_loaded, 2, "suite", tmp_path, "calls are right")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_suite_on_three_ranks(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    check(torch_loaded, 3, "suite", tmp_path, "calls are right")


def test_groups_split_and_dtypes_of_nccls_own(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    check(torch_loaded, 3, "more", tmp_path, "split, float8, unsigned, mixed groups: right")


def test_beside_tcp_for_the_cpus_tensors(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    check(torch_loaded, 2, "combined", tmp_path, "tcp and NCCL together: right")


def test_hooks_of_ddp(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    check(torch_loaded, 2, "hooks", tmp_path, "hooks and callbacks: right")
