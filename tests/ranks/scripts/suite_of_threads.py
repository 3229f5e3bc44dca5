"""Tests whose ranks are threads, as torch's own of functional collectives are."""

import unittest

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.common_distributed import (
    MultiThreadedTestCase,
    spawn_threads_and_init_comms,
)
from torch.testing._internal.common_utils import TestCase


class Threaded(MultiThreadedTestCase):
    @property
    def world_size(self):
        return 4

    def setUp(self):
        super().setUp()
        self._spawn_threads()


class TestGroups(Threaded):
    def test_ranks_of_groups(self):
        mine = dist.get_rank() // 2
        groups = [dist.new_group([2 * pair, 2 * pair + 1]) for pair in range(2)]
        assert dist.get_process_group_ranks(groups[mine]) == [2 * mine, 2 * mine + 1]
        assert dist.get_rank(groups[mine]) == dist.get_rank() % 2

    def test_tags(self):
        one = c10d._new_group_with_tag([0, 1, 2, 3], pg_tag="one")
        again = c10d._new_group_with_tag([0, 1, 2, 3], pg_tag="one")
        other = c10d._new_group_with_tag([0, 1, 2, 3], pg_tag="other")
        assert one == again
        assert one != other
        assert c10d._get_group_tag(one) == "one"
        assert c10d._find_pg_by_ranks_and_tag("one", [0, 1, 2, 3]) == one

    def test_meshes(self):
        mesh = DeviceMesh("cpu", torch.arange(4).view(2, 2))
        rows = dist.get_process_group_ranks(mesh.get_group(mesh_dim=1))
        assert rows == [0, 1] if dist.get_rank() < 2 else [2, 3]

    def test_names(self):
        world = dist.group.WORLD
        assert c10d._resolve_process_group(world.group_name) == world
        assert c10d._world.pg_names[world] == world.group_name
        assert dist.get_backend(world) == "threaded"


class TestFunctional(Threaded):
    def test_all_reduce(self):
        mesh = DeviceMesh("cpu", torch.arange(4))
        assert torch.equal(functional.all_reduce(torch.ones(4), "sum", mesh), torch.full((4,), 4.0))
        square = DeviceMesh("cpu", torch.arange(4).view(2, 2))
        found = functional.all_reduce(torch.ones(4), "sum", (square, 1))
        assert torch.equal(found, torch.full((4,), 2.0))

    def test_broadcast(self):
        given = torch.full((4,), float(dist.get_rank()))
        found = functional.broadcast(given, 2, DeviceMesh("cpu", torch.arange(4)))
        assert torch.equal(found, torch.full((4,), 2.0))

    def test_all_gather(self):
        mesh = DeviceMesh("cpu", torch.arange(4).view(2, 2))
        for dim in range(2):
            shape = [3, 3]
            shape[dim] *= 2
            found = functional.all_gather_tensor(torch.ones(3, 3), dim, (mesh, 0))
            assert torch.equal(found, torch.ones(shape))

    def test_coalesced(self):
        mesh = DeviceMesh("cpu", torch.arange(4))
        given = [torch.ones(4), torch.ones(6)]
        found = functional.all_reduce_coalesced(given, "sum", mesh)
        assert torch.equal(found[1], torch.full((6,), 4.0))
        found = functional.all_gather_into_tensor_coalesced(given, mesh)
        assert torch.equal(found[0], torch.ones(16))
        found = functional.reduce_scatter_tensor_coalesced([torch.ones(4)], "sum", [0], mesh)
        assert torch.equal(found[0], torch.full((1,), 4.0))

    def test_reduce_scatter(self):
        mesh = DeviceMesh("cpu", torch.arange(4))
        found = functional.reduce_scatter_tensor(torch.ones(8, 3), "sum", 0, mesh)
        assert torch.equal(found, torch.full((2, 3), 4.0))


class TestCalls(MultiThreadedTestCase):
    @property
    def world_size(self):
        return 4

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_all_gather(self):
        into = [torch.empty(3) for _ in range(4)]
        dist.all_gather(into, torch.full((3,), float(dist.get_rank())))
        assert [one[0].item() for one in into] == [0, 1, 2, 3]

    def test_scatter(self):
        rows = [torch.full((3,), float(rank)) for rank in range(4)]
        into = torch.empty(3)
        dist.scatter(into, rows if dist.get_rank() == 0 else None)
        assert into[0].item() == dist.get_rank()

    def test_objects(self):
        found = [99 if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(found)
        assert found == [99]

    def test_sums(self):
        found = torch.ones(3) * dist.get_rank()
        dist.all_reduce(found)
        assert torch.equal(found, torch.full((3,), 6.0))


class TestWithWrapper(TestCase):
    @spawn_threads_and_init_comms(world_size=4)
    def test_objects(self):
        found = [99 if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(found)
        assert found == [99]

    def test_an_error_on_one_rank(self):
        @spawn_threads_and_init_comms(world_size=4)
        def method(self):
            into = [torch.empty(3) for _ in range(4)]
            dist.all_gather(into, torch.ones(3))
            if dist.get_rank() == 1:
                raise AssertionError("of rank 1")
            dist.all_gather(into, torch.ones(3))

        with pytest.raises(Exception, match="of rank 1"):
            method(self)


if __name__ == "__main__":
    unittest.main()
