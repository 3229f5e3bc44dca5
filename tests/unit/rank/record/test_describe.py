"""From the arguments of a process group's method to a signature."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from distdebug.rank.record.describe import METHODS, UNKNOWN_SIZE, signature
from distdebug.record.signature import Signature, disagreements


@pytest.mark.parametrize("by_device", [False, True])
def test_the_device_counts_where_backends_differ_by_it(by_device: bool) -> None:
    method = METHODS["allreduce"]
    here = torch.ones(4)
    there = SimpleNamespace(dtype=here.dtype, shape=here.shape, is_cpu=False, is_sparse=False)
    one, other = (
        signature(method.op, method.facts(([tensor],)), (0, 1), by_device)
        for tensor in (here, there)
    )
    assert (one == other) is not by_device
    assert one.device == ("cpu" if by_device else "")


def test_a_barrier_has_no_device() -> None:
    assert signature("barrier", METHODS["barrier"].facts(()), (0, 1), True).device == ""


def test_sizes_that_are_no_numbers() -> None:
    """Those of a nested tensor, say: such a call is told from others by what is a number."""
    method = METHODS["allreduce"]
    made = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert not all(isinstance(size, int) for size in made.shape)
    found = signature(method.op, method.facts(([made],)), (0, 1))
    assert found.shapes == ((2, UNKNOWN_SIZE),)
    assert Signature.from_json(found.to_json()) == found


def test_sparse_tensors_are_told_from_dense_ones() -> None:
    """Of one shape and dtype: backends exchange their elements in other ways."""
    method = METHODS["allreduce"]
    dense = torch.eye(3)
    options = dist.AllreduceOptions()
    calls = [([dense], options), ([dense.to_sparse()], options)]
    assert len({method.key(arguments) for arguments in calls}) == 2
    one, other = (signature(method.op, method.facts(each), (0, 1)) for each in calls)
    assert list(disagreements(one, other)) == ["dtype_mismatch"]
    assert str(other) == "all_reduce(sum, sparse float32[3,3])"
    assert Signature.from_json(other.to_json()) == other
