"""Programs for GPUs, planned: every tensor is said to be on the device that the program chose."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.plan.program import Ended, Made, read_programs
from tests.support.planned import plan
from tests.support.torch_loaded import TorchLoaded

PLACES = """
import copy, io, os, torch, torch.distributed as dist, torch.nn as nn
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
gpu, cpu = torch.device("cuda", local), torch.device("cpu")

def on(device, *tensors):
    for tensor in tensors:
        is_gpu = device.type == "cuda"
        assert tensor.device == device, tensor.device
        assert (tensor.is_cuda, tensor.is_cpu) == (is_gpu, not is_gpu)
        assert tensor.get_device() == (local if is_gpu else -1)

x = torch.randn(3, 4)
y = x.cuda()
on(cpu, x)
on(gpu, y, x.to(gpu), x.to("cuda"), x.to(local), x.to(y), x.to(gpu, torch.half), x.type_as(y))
y += 1
assert not torch.equal(x, y.cpu()), "a device has its own memory"
assert y.cuda() is y and y.to(gpu) is y
on(cpu, x, y.cpu(), y.to("cpu"), torch.zeros_like(y, device="cpu"), torch.empty(3, 4).copy_(y))
on(gpu, y * 2, y[0], y.sum(), torch.cat([y, y]), y.new_zeros(3), copy.deepcopy(y), *y.max(dim=1))
on(gpu, torch.empty(3, device=local), torch.tensor([1], device=gpu), torch.zeros(2).to(y.device))
on(gpu, torch.as_tensor(x, device=gpu), torch.eye(3, device=gpu).to_sparse())
on(cpu, x, torch.empty(2, pin_memory=True))
with torch.device("cuda"):
    on(gpu, torch.zeros(3), torch.tensor([1.0]), nn.Linear(2, 2).weight)
torch.set_default_device("cuda")
on(gpu, torch.randn(2), torch.tensor([[1]]))
torch.set_default_device("cpu")
with torch.device("meta"):
    deferred = nn.Linear(3, 3)
on(gpu, deferred.to_empty(device="cuda").weight)

kept = io.BytesIO()
torch.save(y, kept)
for where in (cpu, gpu):
    kept.seek(0)
    on(where, torch.load(kept, map_location=where))

net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).to(gpu)
on(gpu, *net.parameters(), *net.buffers())
for moved in (nn.Linear(2, 2).to(local), nn.Linear(2, 2).to(device=local)):
    on(gpu, *moved.parameters())
halved = nn.Linear(2, 2).to(local, torch.half)
on(gpu, *halved.parameters())
assert halved.weight.dtype == torch.half
ddp = nn.parallel.DistributedDataParallel(net, device_ids=[local], gradient_as_bucket_view=True)
optimizer, scaler = torch.optim.AdamW(ddp.parameters()), torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert torch.is_autocast_enabled() and torch.get_autocast_dtype("cuda") == torch.bfloat16
    loss = ddp(y).sum()
on(gpu, loss)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
on(gpu, net[0].weight.grad, optimizer.state[net[0].weight]["exp_avg"])

side = torch.cuda.Stream()
with torch.cuda.stream(side):
    assert torch.cuda.current_stream() is side
assert torch.cuda.current_stream() == torch.cuda.default_stream() != side
event = torch.cuda.Event(enable_timing=True)
event.record()
event.synchronize()
y.record_stream(side)
with torch.cuda.device(0):
    assert torch.cuda.current_device() == 0
assert torch.cuda.current_device() == torch.accelerator.current_device_index() == local
before = torch.cuda.memory_allocated()
held = torch.empty(1 << 20, device=gpu)
assert torch.cuda.memory_allocated() == before + (4 << 20)
del held
assert torch.cuda.memory_allocated() == before < torch.cuda.max_memory_allocated()
chosen = torch.accelerator.current_accelerator()
assert (chosen.type, torch.accelerator.device_count()) == ("cuda", torch.cuda.device_count())
torch.accelerator.synchronize()
try:
    torch.zeros(1, device="cuda:99")
except RuntimeError as error:
    assert "invalid device ordinal" in str(error)
else:
    raise AssertionError("there is no such device")
"""
MESHES = """
import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor, randn
local = int(os.environ["LOCAL_RANK"])
gpu = torch.device("cuda", local)
torch.cuda.set_device(gpu)
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (2, 1), mesh_dim_names=("dp", "tp"))
assert mesh.device_type == mesh["dp"].device_type == "cuda"
spread = distribute_tensor(torch.ones(8, 4), mesh["dp"], [Shard(0)])
for one in (spread, spread.to_local(), spread.full_tensor(), (spread * 2).to_local()):
    assert one.device == gpu, one.device
other = spread.redistribute(placements=[Shard(1)])
drawn = randn(8, 4, device_mesh=mesh["dp"], placements=[Shard(0)])
assert drawn.to_local().device == gpu
"""


def test_tensors_and_devices_answer_as_on_gpus(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLACES)
    done = plan(torch_loaded, ["-n", "2", str(script)], tmp_path)
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    asked = 1 + PLACES[: PLACES.index("scaler.step")].count("\n")  # whether a gradient is infinite
    assert [one["line"] for one in done.report["undecided"]] == [asked]


def test_a_mesh_of_gpus_makes_the_calls_that_it_makes_there(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    """all_to_all for shards that change their dimension, and one broadcast before the first random
    operator: on the CPU torch makes others."""
    script = tmp_path / "train.py"
    script.write_text(MESHES)
    done = plan(torch_loaded, ["-n", "2", str(script)], tmp_path)
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    for program in read_programs(tmp_path / "run").values():
        assert program.events[-1] == Ended(0)
        made = [event.call.signature.op for event in program.events if isinstance(event, Made)]
        assert made == [
            "scatter",
            "all_gather_into_tensor_coalesced",
            "all_to_all_single",
            "broadcast",
        ]


GRAPHS_AND_TYPES = """
import os, sys, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, wrong = dist.get_rank(), sys.argv[1] == "wrong"
flag = torch.cuda.FloatTensor([rank])
assert flag.type() == "torch.cuda.FloatTensor" and isinstance(flag, torch.cuda.FloatTensor)
assert torch.ones(2).type(torch.cuda.LongTensor).is_cuda
assert not isinstance(flag.cpu(), torch.cuda.FloatTensor)
net = torch.nn.Linear(4, 4).cuda()
given = torch.randn(2, 4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    total = net(given).detach().sum()
    dist.all_reduce(total)
graph.replay()
if total.item() > 1e9:  # <- undecided
    dist.barrier()
torch.cuda.make_graphed_callables(torch.nn.Linear(4, 4).cuda(), (given,))(given).sum().backward()
if not (wrong and rank == 1):
    dist.all_reduce(flag)
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    dist.all_reduce(torch.zeros(3))
"""
LEFT_ON_THE_CPU = """
import os, sys, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group(sys.argv[2])
flag = torch.tensor([1.0])
moved, kept = flag.cuda(), torch.empty(3)
objects = [{"lr": 0.1}]
dist.broadcast_object_list(objects, 0)
dist.all_reduce(moved)
if sys.argv[1] == "wrong":
    dist.all_reduce(flag)
"""
TWO_ORDERS = """
import os, sys, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
groups = [dist.new_group([0, 1]) for _ in range(2)]
if sys.argv[1] == "wrong" and dist.get_rank() == 1:
    groups.reverse()
for group in groups:
    dist.all_reduce(torch.ones(8, device="cuda"), group=group)
torch.cuda.synchronize()
"""

CONTEXT_PARALLEL = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.tensor.experimental import _attention, context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = dist.init_device_mesh("cuda", (2,), mesh_dim_names=("cp",))
wrong = sys.argv[1] == "wrong" and dist.get_rank() == 1
_attention.set_rotate_method("alltoall" if wrong else "allgather")
net = torch.nn.Linear(16, 48).cuda().bfloat16()
given = torch.randn(2, 16, 16, device="cuda", dtype=torch.bfloat16)
with context_parallel(mesh, buffers=[given], buffer_seq_dims=[1]), sdpa_kernel(
    SDPBackend.FLASH_ATTENTION
):
    whole = net(given).unflatten(-1, (3, 2, 8)).movedim(2, 0).transpose(2, 3)
    found = torch.nn.functional.scaled_dot_product_attention(*whole, is_causal=True)
    assert found.is_cuda and found.shape == (2, 2, 8, 8)
    found.float().square().mean().backward()
assert net.weight.grad.is_cuda
"""


@pytest.mark.parametrize(
    ("source", "more", "wanted"),
    [
        pytest.param(CONTEXT_PARALLEL, (), ("op_mismatch", 91), id="context parallel"),
        pytest.param(GRAPHS_AND_TYPES, (), ("early_exit", 93), id="graphs"),
        pytest.param(LEFT_ON_THE_CPU, ("nccl",), ("rank_exception", 1), id="tensor on the CPU"),
        pytest.param(LEFT_ON_THE_CPU, ("cpu:gloo,cuda:nccl",), ("ok", 0), id="has a backend"),
        pytest.param(TWO_ORDERS, (), ("deadlock", 92), id="one stream"),
    ],
)
@pytest.mark.parametrize("mode", ["right", "wrong"])
def test_what_programs_for_gpus_do(
    source: str,
    more: tuple[str, ...],
    wanted: tuple[str, int],
    mode: str,
    tmp_path: Path,
    torch_loaded: TorchLoaded,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    done = plan(torch_loaded, ["-n", "2", str(script), mode, *more], tmp_path)
    expected = wanted if mode == "wrong" else ("ok", 0)
    assert (done.report["outcome"], done.exit_code) == expected, done.explain()
    if wanted[0] == "rank_exception" and mode == "wrong":
        line = 1 + source[: source.index("dist.all_reduce(flag)")].count("\n")
        said = done.report["findings"][0]["message"]
        assert f"all 2 ranks raised the same at train.py:{line}" in said
        assert "No backend type associated with device type cpu" in said
    lines = [at for at, text in enumerate(source.splitlines(), 1) if "<- undecided" in text]
    assert [row["line"] for row in done.report["undecided"]] == lines
