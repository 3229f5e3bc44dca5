"""Tests that pass in their ranks; what they leave behind must not reach the next."""

import os
import random
import sys
import threading
import time
import unittest

import pytest
import torch
import torch.distributed as dist

from distdebug.errors import DataError

HERE = os.getcwd()


@pytest.fixture(scope="session")
def doubled(dist_rank):
    return 2 * dist_rank.rank


@pytest.fixture
def agreed(dist_rank):
    total = torch.ones(1)
    dist.all_reduce(total)
    yield int(total)
    dist.barrier()  # a fixture may communicate until its end


@pytest.mark.distributed(nproc=[1, 2], backend=["gloo", "tcp"])
def test_grid(dist_rank, distdebug_nproc, distdebug_backend):
    assert (dist_rank.world_size, dist_rank.backend) == (distdebug_nproc, distdebug_backend)
    assert dist.get_backend() == dist_rank.backend
    t = torch.ones(3) * (dist_rank.rank + 1)
    dist.all_reduce(t)
    assert t[0] == sum(range(dist_rank.world_size + 1))


@pytest.mark.distributed(nproc=2)
@pytest.mark.parametrize("value", [object(), lambda: 3], ids=["object", "lambda"])
def test_values_that_cannot_be_pickled(value, doubled, agreed, conftest_value):
    assert value is not None
    assert doubled == 2 * dist.get_rank()
    assert agreed == 2
    assert conftest_value == "from conftest"


@pytest.mark.distributed(nproc=2)
class TestInClass:
    def setup_method(self):
        self.ready = True

    def test_method(self, tmp_path):
        assert self.ready
        (tmp_path / "mine").write_text(str(dist.get_rank()))
        dist.barrier()
        assert (tmp_path / "mine").read_text() == str(dist.get_rank())


@pytest.mark.distributed(nproc=2)
def test_leaves_everything_behind(dist_rank):
    os.environ["LEFT_BEHIND"] = "1"
    os.chdir("/")
    torch.manual_seed(1234)
    sys.modules[__name__].HERE = "elsewhere"
    dist.new_group([0])
    threading.Thread(target=time.sleep, args=(1000,)).start()  # not a daemon
    if not os.fork():
        os.execvp("sleep", ["sleep", "1000.25"])


@pytest.mark.distributed(nproc=2)
def test_finds_nothing_of_that(dist_rank):
    assert "LEFT_BEHIND" not in os.environ
    assert os.getcwd() == HERE
    assert torch.initial_seed() != 1234
    assert [one.name for one in threading.enumerate() if not one.daemon] == ["MainThread"]


@pytest.mark.distributed(nproc=2)
def test_random_numbers_differ(dist_rank):
    found = [None, None]
    dist.all_gather_object(found, random.random())
    assert found[0] != found[1]


@pytest.mark.distributed
def test_skipped_by_all():
    pytest.skip("not here")


@pytest.mark.distributed(nproc=2)
@pytest.mark.xfail(reason="a known bug", strict=True)
def test_expected_failure(dist_rank):
    assert dist_rank.rank == 0
    dist.barrier()


@pytest.mark.distributed(nproc=2, ignore="dtype_mismatch", level="DETAIL")
def test_expected_finding(dist_rank):
    with pytest.raises(dist.DistBackendError, match="dtype_mismatch"):
        dist.all_reduce(torch.ones(2, dtype=(torch.float32, torch.int32)[dist_rank.rank]))


@pytest.mark.distributed(nproc=2, check="nan", ignore="nan")
def test_expected_nan_of_a_rank_for_which_the_other_waits(dist_rank):
    with pytest.raises(DataError, match="nan"):
        dist.all_reduce(torch.tensor((1.0, float("nan"))[dist_rank.rank]))


@pytest.mark.distributed(nproc=3)
def test_a_warning_fails_no_test_that_is_not_strict(dist_rank):
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


@pytest.mark.distributed(nproc=2)
def test_properties(record_property):
    record_property("same", "x")
    record_property("own", dist.get_rank())


@pytest.mark.requires_gpus(999)
def test_needs_gpus():
    raise AssertionError


@pytest.mark.distributed(nproc=2)
@pytest.mark.requires_gpus(998)
def test_needs_gpus_in_ranks():
    raise AssertionError


def test_ordinary():
    assert "RANK" not in os.environ


class TestParts(unittest.TestCase):
    @pytest.mark.distributed(nproc=2)
    def test_every_part_passes(self):
        for part in range(3):
            with self.subTest(part=part):
                dist.barrier()


@pytest.mark.distributed(nproc=[pytest.param(1), pytest.param(2, id="a_pair")])
def test_values_within_param(dist_rank, distdebug_nproc):
    assert dist_rank.world_size == distdebug_nproc


@pytest.mark.distributed(nproc=1)
def test_parameters_that_the_mark_does_not_give(distdebug_nproc, distdebug_backend):
    assert (distdebug_nproc, distdebug_backend) == (1, "gloo")
