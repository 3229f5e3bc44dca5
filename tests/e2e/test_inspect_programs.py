"""`distdebug inspect` on kinds of programs that wait in other ways than in a call of their own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.foreign_jobs import job, mp_spawn
from tests.support.runs import DISTDEBUG
from tests.support.standstill import hangs

pytestmark = pytest.mark.long

LIMIT_S = 300.0
BEGIN = """
import asyncio, os, time, torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds=600))
rank = dist.get_rank()
x = torch.ones(4)
"""
EVENT_LOOP = """
async def main():
    for step in range(5):
        if rank == 1 and step == 2:
            await asyncio.get_running_loop().create_future()
        await asyncio.to_thread(dist.all_reduce, x)
asyncio.run(main())  # <- here
"""
ELASTIC_BARRIER = """
from torch.distributed.elastic.utils import store
if rank == 2:
    os.read(os.pipe()[0], 1)  # <- here
store.barrier(dist.distributed_c10d._get_default_store(), 3, "ready", barrier_timeout=600)
"""
BOTH_RECEIVE = """
def exchange(rank):
    if rank == 0:
        dist.irecv(x, src=rank + 1).wait()
    else:
        dist.irecv(x, src=rank - 1).wait()  # <- here
exchange(rank)
"""
OF_A_MESH = """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
for step in range(5):
    dist.all_reduce(x, group=tp)
    if rank != 3 or step != 2:
        dist.all_reduce(x, group=dp)  # <- here
dist.barrier()
"""
BY_RPC = """
import torch.distributed.rpc as rpc
def work():
    os.read(os.pipe()[0], 1)  # <- here
dist.destroy_process_group()
options = rpc.TensorPipeRpcBackendOptions(
    init_method=f"file://{__file__}.store", _transports=["uv"]  # others poll, and never stand still
)
rpc.init_rpc(f"w{rank}", rank=rank, world_size=3, rpc_backend_options=options)
if rank == 0:
    rpc.rpc_sync("w1", work, timeout=0)  # else it gives up after a minute
rpc.shutdown()
"""
AT_WORK = """
for step in range(100_000):
    if rank > 0:
        dist.irecv(x, src=rank - 1).wait()
    time.sleep(0.2)
    if rank < 2:
        dist.isend(x, dst=rank + 1).wait()
    asyncio.run(asyncio.to_thread(dist.all_reduce, x))
    print("step", flush=True)
"""


@pytest.mark.parametrize(
    ("program", "ranks", "kind", "culprits", "shown"),
    [
        (EVENT_LOOP, 3, "missing_rank", [1], "1"),
        (ELASTIC_BARRIER, 3, "missing_rank", [2], "2"),
        (BOTH_RECEIVE, 3, "deadlock", [0, 1], "1"),
        (OF_A_MESH, 4, "deadlock", [0, 1, 2, 3], "1"),  # whose groups no stack shows
        (BY_RPC, 3, "missing_rank", [1], "1"),
    ],
    ids=["event loop", "elastic barrier", "both receive", "of a mesh", "by rpc"],
)
def test_who_holds_it_up(
    tmp_path: Path, program: str, ranks: int, kind: str, culprits: list[int], shown: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text(BEGIN + program)
    with job(mp_spawn(ranks, [str(script)]), tmp_path) as running:
        assert hangs(running, 12.0, LIMIT_S), (tmp_path / "output").read_text()
        asked = [str(DISTDEBUG), "inspect", "--job", str(running.pid), "--json"]
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["kind"], sorted(finding["culprits"])) == (kind, culprits), finding
    rows = script.read_text().splitlines()
    line = next(at for at, row in enumerate(rows, 1) if "<- here" in row)
    assert finding["ranks"][shown]["location"]["line"] == line


def test_such_a_program_at_work_is_left_alone(tmp_path: Path) -> None:
    script, output = tmp_path / "program.py", tmp_path / "output"
    script.write_text(BEGIN + AT_WORK)
    asked = [str(DISTDEBUG), "inspect", "--json"]
    with job(mp_spawn(3, [str(script)]), tmp_path) as running:
        looks = 0
        while looks < 3:
            assert running.poll() is None, output.read_text()
            words = [*asked, "--job", str(running.pid)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                report = json.loads(done.stdout)
                assert report["findings"] == []
                looks += "step" in output.read_text()
            else:
                assert "no rank was found" in done.stderr, done.stderr
