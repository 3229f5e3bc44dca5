"""Planned ranks: real processes, forked from one, whose programs are read when they have ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from distdebug.plan.program import CutOff, Ended, Made, Program, Waited, read_programs
from tests.support import runs
from tests.support.planned import plan
from tests.support.torch_loaded import TorchLoaded

VALUES = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
assert os.environ["LOCAL_RANK"] == str(rank % 2) and os.environ["GROUP_RANK"] == str(rank // 2)
total = torch.tensor([rank])
dist.all_reduce(total)
assert total.item() == size * (size - 1) // 2
names = [None] * size
dist.all_gather_object(names, {"rank": rank})
assert [name["rank"] for name in names] == list(range(size))
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    store.set("key", "value")
assert store.get("key") == b"value"
began = time.monotonic()
time.sleep(100)
assert time.monotonic() - began >= 100
data = torch.ones(100_000)
work = dist.all_reduce(data, async_op=True)
work.wait()
if data.mean().item() < 0:  # <- undecided
    dist.barrier()
print("done", rank)
"""
TRAINING = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = torch.nn.Linear(4, 4).cuda()
ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for step in range(1000):
    loss = ddp(torch.randn(2, 4, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{step}: {loss.item():.3f}")
"""
TWO_SENDS = """
import sys, torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
data, other = torch.zeros(int(sys.argv[2]), dtype=getattr(torch, sys.argv[3])), 1 - dist.get_rank()
for call in (dist.send, dist.send, dist.recv, dist.recv):
    call(data, other)
"""
SIZES = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
own = 7 if sys.argv[1] == "odd" and rank == size - 1 else 4
lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
dist.all_gather(lengths, torch.tensor([own]))
expected = 4 * size + (3 if sys.argv[1] == "odd" else 0)
assert sum(int(one) for one in lengths) == expected, lengths
"""
WAITING = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
flag = torch.tensor([1])
if dist.get_rank() == 1:
    raise ValueError("no data")
dist.all_reduce(flag)
print(flag.item())
"""


def planned(
    tmp_path: Path,
    loaded: TorchLoaded | None,
    source: str,
    *arguments: str,
    arguments_of_script: Sequence[str] = (),
) -> tuple[dict[int, Program], dict[str, object]]:
    """The programs of the ranks, and how their running went. `loaded`: where it is forked; else it
    is a command."""
    script = tmp_path / "train.py"
    script.write_text(dedent(source))
    run_dir = tmp_path / "run"
    words = [*arguments, str(script), *arguments_of_script]
    done = plan(loaded, words, tmp_path) if loaded else runs.run("plan", words, tmp_path)
    assert (run_dir / "planned.json").exists(), done.stderr
    return read_programs(run_dir), json.loads((run_dir / "planned.json").read_text())


def why(run: Path, rank: int) -> str:
    return (run / "logs" / f"{rank}.err").read_text()


@pytest.mark.parametrize("memory", [[], ["--memory", "1"]], ids=["kept", "run again"])
def test_values_that_steer_are_real_and_decisions_on_others_are_told(
    tmp_path: Path, memory: list[str], torch_loaded: TorchLoaded
) -> None:
    """With next to no memory for those that wait, they are ended and run again; nothing changes."""
    programs, outcome = planned(
        tmp_path, torch_loaded, VALUES, "-n", "3", "--local-size", "2", *memory
    )
    line = 1 + VALUES[: VALUES.index("# <- undecided")].count("\n")
    for rank in range(3):
        program = programs[rank]
        assert program.events[-1] == Ended(0), why(tmp_path / "run", rank)
        made = [event.call.signature.op for event in program.events if isinstance(event, Made)]
        assert made == ["all_reduce", "all_gather", "all_gather", "all_reduce"]
        assert [event.site.line for event in program.events if isinstance(event, Waited)] == [
            1 + VALUES[: VALUES.index("work.wait()")].count("\n")
        ]
        assert [one.site.line for one in program.undecided] == [line]
        assert (tmp_path / "run" / "logs" / f"{rank}.out").read_text() == f"done {rank}\n"
    assert outcome["cut"] == {}
    assert (outcome["runs"] == 3) is (not memory)


def test_a_training_for_gpus_runs_here_and_ends_after_its_steps(tmp_path: Path) -> None:
    programs, _ = planned(tmp_path, None, TRAINING, "-n", "2", "--steps", "2")
    for rank in range(2):
        program = programs[rank]
        assert program.events[-1] == Ended(0), why(tmp_path / "run", rank)
        assert {group.backend for group in program.groups.values()} == {"nccl"}
        gradients = [
            event.call
            for event in program.events
            if isinstance(event, Made) and event.call.signature.op == "all_reduce"
        ]
        waited = {event.number for event in program.events if isinstance(event, Waited)}
        assert [call.signature.tensors for call in gradients] == [(("float32", (20,)),)] * 2
        assert {call.number for call in gradients} <= waited  # by DDP's reducer, in backward()
        assert program.undecided == ()


def test_a_rank_that_waits_for_one_that_failed_ends_in_its_call(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    programs, outcome = planned(tmp_path, torch_loaded, WAITING, "-n", "2")
    assert programs[1].events[-1] == Ended(1)
    assert [note.message for _, note in programs[1].notes if note.kind == "exception"] == [
        "ValueError: no data"
    ]
    last, end = programs[0].events[-2:]
    assert isinstance(last, Made)
    assert last.call.signature.op == "all_reduce"
    assert isinstance(end, CutOff)
    assert outcome["cut"] == {"0": end.why}


@pytest.mark.parametrize("given", ["equal", "odd"])
def test_what_all_give_alike_needs_no_memory(
    tmp_path: Path, given: str, torch_loaded: TorchLoaded
) -> None:
    """The others are taken to give the same; where one does not, all is run again, and is right."""
    script = ["-n", "10", "--memory", "1"]
    programs, outcome = planned(tmp_path, torch_loaded, SIZES, *script, arguments_of_script=[given])
    assert [program.events[-1] for program in programs.values()] == [Ended(0)] * 10
    assert (outcome["runs"] < 20) is (given == "equal")  # not before several have come


COMPARED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
header = torch.zeros(1 << 20, dtype=torch.int32)  # how a shape travels that only rank 0 knows
if rank == 0:
    header[:2] = torch.tensor([3, 5])
dist.all_reduce(header)
assert header[header.nonzero()].flatten().tolist() == [3, 5]
data = torch.full((1000,), float(rank))
own = data.clone()
dist.all_reduce(data)
assert torch.allclose(data, own) is False  # <- undecided
assert not torch.equal(data, own)  # <- undecided
if not torch.allclose(data, data * 1.5):  # <- undecided
    raise SystemExit("they differ")
"""


def test_what_torch_compares_is_undecided_and_goes_as_the_program_expects(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    programs, _ = planned(tmp_path, torch_loaded, COMPARED, "-n", "3")
    lines = [at for at, line in enumerate(COMPARED.splitlines(), 1) if "# <- undecided" in line]
    for rank in range(3):
        assert programs[rank].events[-1] == Ended(0), why(tmp_path / "run", rank)
        assert sorted({one.site.line for one in programs[rank].undecided}) == lines


WRONG_INDEX = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rows = torch.zeros(0, 4, device="cuda")
print(rows[0])
"""


def test_what_the_program_does_wrong_is_not_ours(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    """Its calls go through us where it asks for GPUs, or where values are followed."""
    programs, _ = planned(tmp_path, torch_loaded, WRONG_INDEX, "-n", "2")
    for rank in range(2):
        (note,) = [note for _, note in programs[rank].notes if note.kind == "exception"]
        assert note.message.startswith("IndexError: index 0 is out of bounds")
        assert not note.data.get("own_fault")
        traceback = why(tmp_path / "run", rank)
        assert "train.py" in traceback
        assert "child.py" not in traceback


ON_GPUS = """
import io, os, torch, torch.distributed as dist, torch.nn as nn
local = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local)
dist.init_process_group("nccl", device_id=device)
assert (device.type, str(device)) == ("cuda", f"cuda:{local}")
assert torch.cuda.nccl.version() >= (2, 10) and torch.version.cuda
torch.randn(2, device=device, generator=torch.Generator(device=device).manual_seed(1))
kept = io.BytesIO()
torch.save(torch.empty(3, pin_memory=True), kept)
kept.seek(0)
with torch.cuda.nvtx.range("load"), torch.cuda.device(local):
    torch.load(kept, map_location=device)
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 2))
net = nn.SyncBatchNorm.convert_sync_batchnorm(net).to(device)
net = nn.parallel.DistributedDataParallel(net, device_ids=[local])
given = torch.randn(2, 3, 8, 8, device=device)
with torch.autocast("cuda"):
    found = net(given)
assert found.dtype == torch.float16
found.float().sum().backward()
"""


@pytest.mark.parametrize(
    ("flags", "size", "outcome"),
    [
        ([], 4096, "ok"),
        ([], 4097, "deadlock"),
        (["--buffered-sends", "65536"], 20_000, "ok"),
    ],
)
def test_what_distcore_buffers_is_what_distcore_says(
    tmp_path: Path, flags: list[str], size: int, outcome: str, torch_loaded: TorchLoaded
) -> None:
    """8,192 bytes on its tcp; and 20,000 bytes are as many as they are, of whatever type."""
    script = tmp_path / "train.py"
    script.write_text(TWO_SENDS)
    done = plan(torch_loaded, ["-n", "2", *flags, str(script), "tcp", str(size), "uint8"], tmp_path)
    assert (done.report["outcome"], done.exit_code) == (
        outcome,
        92 if outcome == "deadlock" else 0,
    ), done.explain()
    assert ("needs luck" in done.stderr) is (outcome == "ok"), done.explain()


def test_what_torch_has_for_gpus_alone(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    """SyncBatchNorm makes its two calls, and autocast goes to the type that a GPU would have."""
    programs, _ = planned(tmp_path, torch_loaded, ON_GPUS, "-n", "2")
    for rank in range(2):
        program = programs[rank]
        assert program.events[-1] == Ended(0), why(tmp_path / "run", rank)
        assert program.undecided == ()
        calls = [event.call.signature for event in program.events if isinstance(event, Made)]
        rows = [(call.op, call.tensors[0][1]) for call in calls if call.tensors]
        assert ("all_gather_into_tensor", (17,)) in rows, rows  # mean, deviation and count
        assert ("all_reduce", (16,)) in rows, rows  # two sums of the gradient
