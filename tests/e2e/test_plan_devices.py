"""Programs for GPUs, planned: every tensor is said to be on the device that the program chose."""

from __future__ import annotations

from pathlib import Path

from debugger.plan.program import Ended, Made
from debugger.plan.programs import read_programs
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
