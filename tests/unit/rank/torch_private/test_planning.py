"""What planned ranks share is what torch finds by itself: shapes of DTensor's results, and parts of
parameters that FSDP2 makes."""

from __future__ import annotations

from pathlib import Path

from tests.support.torch_loaded import TorchLoaded

SHAPES = """
import torch
import torch.distributed as dist
from distdebug.rank.torch_private import planning
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator

usual, made = ShardingPropagator._propagate_tensor_meta_non_cached, []

def counted(self, schema):
    made.append((self, schema))
    return usual(self, schema)

ShardingPropagator._propagate_tensor_meta_non_cached = counted
known = {}
planning.share_shapes(known.get, known.__setitem__)
shared = ShardingPropagator._propagate_tensor_meta_non_cached
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
whole = distribute_tensor(torch.arange(24.0).reshape(4, 6), mesh, [Shard(0)])
(whole * 2 + 1).sum(1)
whole.topk(2)
whole.to(torch.bfloat16).t().split(2)
torch.cat([whole, whole]).clone(memory_format=torch.contiguous_format)
whole.max()
before = list(made)
assert len(before) > 8 and len(known) == len(before), (len(before), len(known))
kinds = set()
for propagator, schema in before:
    found, wanted = shared(propagator, schema), usual(propagator, schema)
    assert found == wanted and type(found) is type(wanted), (schema, found, wanted)
    kinds.add(type(found).__name__)
    for one, other in zip(found, wanted):
        assert type(one) is type(other), (schema, found, wanted)
assert len(made) == len(before)  # nobody has found anything again
assert {"TensorMeta", "tuple"} <= kinds, kinds
torch.set_default_dtype(torch.float64)
shared(*before[0])
assert len(made) == len(before) + 1  # of which the result may depend
print("through")
"""

CHUNKS = """
import torch
import torch.distributed.fsdp._fully_shard._fsdp_param as home
from distdebug.rank.torch_private import planning

usual = home._chunk_with_empty
planning.share_empty_chunks()
assert home._chunk_with_empty is not usual
for shape, count, dim in (((6, 2), 4, 0), ((6, 2), 64, 0), ((3, 8), 8, 1), ((6,), 1, 0)):
    given = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    found, wanted = (make(given, count, dim=dim) for make in (home._chunk_with_empty, usual))
    assert len(found) == len(wanted) == count
    for one, other in zip(found, wanted):
        assert torch.equal(one, other) and one.shape == other.shape
        assert not one.numel() or one.data_ptr() == other.data_ptr()
print("through")
"""


def test_shapes_are_found_once_and_are_torchs(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    done = torch_loaded.python(SHAPES, tmp_path)
    assert (done.returncode, done.stdout) == (0, "through\n"), done.stderr


def test_parts_of_a_parameter_are_those_of_fsdp2(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    done = torch_loaded.python(CHUNKS, tmp_path)
    assert (done.returncode, done.stdout) == (0, "through\n"), done.stderr
