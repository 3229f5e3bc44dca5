"""Tests each of which fails in its own way."""

import os
import signal
import time
import unittest

import pytest
import torch
import torch.distributed as dist


@pytest.mark.distributed(nproc=4)
def test_two_tracebacks(dist_rank):
    print(f"printed {dist_rank.rank == 3}")
    if dist_rank.rank == 3:
        raise KeyError("only three")
    values = [1, 2, 3]
    assert values == [1, 2, 4]


@pytest.mark.distributed(nproc=4)
def test_one_fails_and_the_others_wait(dist_rank):
    if dist_rank.rank == 2:
        assert dist_rank.world_size == 5
    dist.barrier()


@pytest.mark.distributed(nproc=3, timeout=100)
def test_mismatch(dist_rank):
    t = torch.ones(4)
    if dist_rank.rank == 1:
        dist.broadcast(t, 1)  # culprit
    else:
        dist.all_reduce(t)
    dist.barrier()


@pytest.mark.distributed(nproc=3, strict=True)
def test_lines_part(dist_rank):
    for step in range(24):
        sums = [
            lambda: dist.all_reduce(torch.ones(1)),  # loss
            lambda: dist.all_reduce(torch.ones(1)),  # count
            lambda: dist.all_reduce(torch.ones(1)),
        ]
        if (dist_rank.rank, step) == (1, 10):
            del sums[0]
        for one in sums:
            one()
    if dist_rank.rank == 1:
        dist.all_reduce(torch.ones(1))


@pytest.mark.distributed(nproc=3, timeout=100)
def test_one_leaves_early(dist_rank):
    if dist_rank.rank != 1:
        dist.all_reduce(torch.ones(4))


@pytest.mark.distributed(nproc=2, timeout=100)
def test_deadlock(dist_rank):
    other = 1 - dist_rank.rank
    t = torch.ones(1)
    dist.recv(t, other)
    dist.send(t, other)


@pytest.mark.distributed(nproc=2)
def test_killed(dist_rank):
    print("last words of", dist_rank.rank)
    if dist_rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


@pytest.mark.distributed(nproc=2)
def test_leaves_python(dist_rank):
    if dist_rank.rank == 1:
        os._exit(0)


@pytest.mark.distributed(nproc=3, timeout=12)
def test_hangs(dist_rank):
    if dist_rank.rank == 2:
        time.sleep(1000)  # here
    dist.barrier()


@pytest.fixture
def broken(dist_rank):
    if dist_rank.rank == 1:
        raise ValueError("no fixture for rank 1")


@pytest.mark.distributed(nproc=2)
def test_fixture(broken):
    dist.barrier()


@pytest.mark.distributed(nproc=2)
def test_skipped_by_one(dist_rank):
    if dist_rank.rank == 1:
        pytest.skip("only me")


class TestParts(unittest.TestCase):
    @pytest.mark.distributed(nproc=2)
    def test_a_part_fails_and_the_body_goes_on(self):
        for part in range(3):
            with self.subTest(part=part):
                t = torch.ones(1)
                dist.all_reduce(t)
                assert part != 1 or dist.get_rank() == 0, "only in rank 1"
        print("all parts were run")


@pytest.mark.distributed(nproc=2, backend="nosuch")
def test_unknown_backend():
    pass


@pytest.mark.distributed(nproc=2, check="nan,heat")
def test_unknown_check():
    pass


@pytest.mark.distributed(nprocs=2)
def test_wrong_mark():
    pass


def test_without_mark(dist_rank):
    pass


@pytest.mark.distributed(nproc=2)
def test_after_all_that(dist_rank):
    dist.barrier()
