"""Values that a plan does not have, as programs use them: in reports, sums, copies, messages and
splits. Nothing fails for it, all ranks go the same way, and each decision is told with its line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.planned import plan
from tests.support.torch_loaded import TorchLoaded

BEGINS = """
import copy, json, math, statistics, sys
import numpy as np, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
wrong = sys.argv[1] == "wrong"
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
"""
REPORTS = """
model = DistributedDataParallel(torch.nn.Linear(16, 4))
losses, correct, total = [], 0, 0
for step in range(3):
    given, wanted = torch.randn(8, 16), torch.randint(0, 4, (8,))
    found = model(given)
    loss = torch.nn.functional.cross_entropy(found, wanted)
    loss.backward()
    losses.append(loss.item())
    correct += (found.argmax(1) == wanted).sum().item()
    total += len(wanted)
counts = torch.tensor([correct, total] + [0] * (wrong and rank == 1))
dist.all_reduce(counts)
right = counts[0].item()
row = {
    "right": right,
    "accuracy": right / counts[1].item(),
    "loss": sum(losses) / len(losses),
    "mean": statistics.mean(losses),
    "deviation": statistics.stdev(losses),
    "perplexity": math.exp(losses[-1]),
    "share": (torch.ones(2) * right / total).tolist(),
}
print(json.dumps(copy.deepcopy(row)), f"{right:d}", divmod(right, 7))
"""
DECISIONS = """
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.randn(4, 64)).square().mean()
    loss.backward()
    optimizer.step()
best, behind = float("inf"), 0
for epoch in range(6):
    reduced = loss.detach() * (rank + 1)
    dist.all_reduce(reduced)
    if reduced.item() < best - 1e-3:  # <- undecided
        best, behind = reduced.item(), 0
    else:
        behind += 1
    if behind == 2:
        break
    dist.barrier()
averaged = copy.deepcopy(model.module)
if averaged.weight.sum().item() > 1e9:  # <- undecided
    dist.barrier()
every = [None] * world
dist.all_gather_object(every, {"loss": loss.item(), "output": loss.detach()})
if max(one["loss"] for one in every) > 1e9:  # <- undecided
    dist.barrier()
if sum(one["output"] for one in every) > 1e9:  # <- undecided
    dist.barrier()
if statistics.fmean([loss.item()]) > 1e9:  # <- undecided
    dist.barrier()
if np.mean([loss.item()]) > 1e9:  # <- undecided
    dist.barrier()
if not math.isfinite(loss.item() * float("inf")):  # <- undecided
    sys.exit(1)
if torch.isnan(loss / 0 - loss / 0):  # <- undecided
    sys.exit(1)
dist.all_reduce(torch.ones(2 + (wrong and rank == 1)))
"""
ROUTED = """
gate = DistributedDataParallel(torch.nn.Linear(16, world))
for step in range(2):
    tokens = torch.randn(32, 16)
    weight, to = gate(tokens).softmax(-1).max(-1)
    counts = torch.bincount(to, minlength=world)
    told = torch.empty_like(counts)
    dist.all_to_all_single(told, counts)
    sends, receives = counts.tolist(), told.tolist()
    if wrong and rank == 1 and step:
        receives = [int(one) + 1 for one in receives]
    arrived = torch.empty(sum(receives), 16)
    dist.all_to_all_single(arrived, tokens[to.argsort()], receives, sends)
    weight.sum().backward()
"""

ALIKE = """
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(300, 64), torch.nn.Dropout()))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
torch.manual_seed(7)
held_out = torch.randn(9, 300)
torch.manual_seed(rank)
least = float("inf")
for epoch in range(6):
    model.train()
    model(torch.randn(4, 300)).square().mean().backward()
    if torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 2.2:  # <- undecided
        dist.barrier()
    optimizer.step()
    optimizer.zero_grad()
    averaged = copy.deepcopy(model.module).eval()
    with torch.no_grad():
        loss = averaged(held_out).square().mean().item()
    if loss < least:  # <- undecided
        least = loss
        dist.all_reduce(torch.ones(8))
    every = [torch.empty(40, 40) for _ in range(world)]
    dist.all_gather(every, torch.randn(40, 40))
    if torch.stack(every).sum() > 0:  # <- undecided
        dist.barrier()
dist.all_reduce(torch.ones(2 + (wrong and rank == 1)))
"""


def planned(
    tmp_path: Path, loaded: TorchLoaded, source: str, mode: str, flags: Sequence[str] = ()
) -> runs.Run:
    script = tmp_path / "train.py"
    script.write_text(source)
    return plan(loaded, ["-n", "3", *flags, str(script), mode], tmp_path)


def check_outcome(done: runs.Run, mode: str, kind: str, code: int = 91) -> None:
    """Nothing of the right form; of the wrong one, this."""
    wanted = ("ok", 0) if mode == "right" else (kind, code)
    assert (done.report["outcome"], done.exit_code) == wanted, done.explain()


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        pytest.param(REPORTS, "shape_mismatch", id="reports"),
        pytest.param(DECISIONS, "shape_mismatch", id="decisions"),
        pytest.param(ROUTED, "split_mismatch", id="splits"),
        pytest.param(ALIKE, "shape_mismatch", id="the same of the same"),
    ],
)
@pytest.mark.parametrize("mode", ["right", "wrong"])
def test_nothing_fails_for_a_value_that_is_not_known(
    source: str, kind: str, mode: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    done = planned(tmp_path, torch_loaded, BEGINS + source, mode)
    check_outcome(done, mode, kind)
    if mode == "wrong":
        assert 1 in done.report["findings"][0]["culprits"], done.explain()
    lines = (BEGINS + source).splitlines()
    marked = [at for at, line in enumerate(lines, 1) if "# <- undecided" in line]
    if marked:
        assert sorted({row["line"] for row in done.report["undecided"]}) == marked


FEW_OPTIMISERS = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1) if rank else None
for step in range(5):
    if not (sys.argv[1] == "wrong" and rank == 2 and step == 1):
        dist.all_reduce(torch.ones(40))
    if optimizer:
        net(torch.ones(4)).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("mode", ["right", "wrong"])
def test_a_rank_without_an_optimiser_has_not_to_end_after_the_steps(
    mode: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    done = planned(tmp_path, torch_loaded, FEW_OPTIMISERS, mode, ["--steps", "2"])
    check_outcome(done, mode, "early_exit", 93)
    if mode == "wrong":
        assert done.report["findings"][0]["culprits"] == [2]


LOOKING = """
import sys, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
store = dist.TCPStore("127.0.0.1", 29777, world, rank == 0)
if not (sys.argv[1] == "wrong" and rank == 2):
    store.set(f"ready{rank}", "1")
while not store.check([f"ready{one}" for one in range(world)]):
    pass
dist.barrier()
"""


@pytest.mark.parametrize("mode", ["right", "wrong"])
def test_a_loop_that_only_looks_for_keys_leaves_its_place_to_others(
    mode: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    done = planned(tmp_path, torch_loaded, LOOKING, mode, ["--jobs", "1"])
    if mode == "right":
        assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
        return
    assert done.report["outcome"] == "failed", done.explain()
    (row,) = done.report["plan"]["unknown"]
    assert row["ranks"] == [0, 1, 2]
    assert "again and again" in row["why"]


MAILBOX = """
import sys, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.PrefixStore("mail", dist.distributed_c10d._get_default_store())
if rank == 0:
    before = store.num_keys()
    store.set("letter", "for rank 1")
    assert store.num_keys() == before + 1
elif rank == 1:
    assert store.get("letter") == b"for rank 1"
    assert store.delete_key("letter")
    assert not store.delete_key("letter")
    assert not store.check(["letter"])
if not (sys.argv[1] == "wrong" and rank == 1):
    dist.barrier()
"""


@pytest.mark.parametrize("mode", ["right", "wrong"])
def test_keys_are_deleted_and_counted_through_a_store_around_the_planned_one(
    mode: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    done = planned(tmp_path, torch_loaded, MAILBOX, mode)
    check_outcome(done, mode, "early_exit", 93)


ON_NODES = """
import os, socket, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
names = [None] * dist.get_world_size()
dist.all_gather_object(names, socket.gethostname())
rank = dist.get_rank()
assert names[:rank].count(names[rank]) == int(os.environ["LOCAL_RANK"])
assert os.uname().nodename == socket.gethostname() == socket.getfqdn()
assert socket.gethostbyname(names[0])
members = {one: [r for r in range(3) if names[r] == one] for one in sorted(set(names))}
groups = {one: dist.new_group(ranks) for one, ranks in members.items()}
dist.all_reduce(torch.ones(2 + (sys.argv[1] == "wrong" and rank == 1)), group=groups[names[rank]])
"""


@pytest.mark.parametrize("mode", ["right", "wrong"])
def test_the_ranks_of_each_node_find_that_they_share_a_host(
    mode: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    done = planned(tmp_path, torch_loaded, ON_NODES, mode, ["--local-size", "2"])
    check_outcome(done, mode, "shape_mismatch")


FIRST_UNKNOWN = """
import sys, threading, torch, torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

class Counting(TorchDispatchMode):
    calls = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))

class Reducing(threading.Thread):
    def run(self):
        self.found = reduced()

def reduced(*_):
    given = torch.randn(100)
    dist.all_reduce(given, group=first)
    return given.sum()

dist.init_process_group("gloo")
rank = dist.get_rank()
first = dist.new_group([0, 1, 2])
if rank == 0:  # within a backward pass
    found = []
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(lambda _: found.append(reduced()))
    weight.sum().backward()
    (value,) = found
elif rank == 1:  # within other modes, which end before it is looked at
    with torch.device("cpu"), Counting() as counting:
        value = reduced()
    seen = counting.calls
    value = value + 0
    assert seen and counting.calls == seen, (seen, counting.calls)
    assert torch.utils._device.CURRENT_DEVICE is None
elif rank == 2:  # in a thread
    thread = Reducing()
    thread.start()
    thread.join()
    value = thread.found
if rank == 0:
    dist.send_object_list([(value * 2).item()], 3)
elif rank == 3:  # out of another rank's object
    received = [None]
    dist.recv_object_list(received, 0)
    value = torch.ones(2).mul(received[0]).sum()
if (value * 2).item() > 1e9:  # <- undecided
    dist.barrier()
dist.all_reduce(torch.ones(2 + (sys.argv[1] == "wrong" and rank == 1)))
"""


@pytest.mark.parametrize("mode", ["right", "wrong"])
def test_values_are_followed_from_the_first_that_is_not_known(
    mode: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    done = planned(tmp_path, torch_loaded, FIRST_UNKNOWN, mode, ["-n", "4"])
    check_outcome(done, mode, "shape_mismatch")
    line = FIRST_UNKNOWN.splitlines().index("if (value * 2).item() > 1e9:  # <- undecided") + 1
    (row,) = done.report["undecided"]
    assert (row["line"], row["ranks"]) == (line, [0, 1, 2, 3]), done.explain()


MODEL_PARALLEL = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
wrong = sys.argv[1] == "wrong"
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "model"))
data, model = mesh.get_group("data"), mesh.get_group("model")
torch.manual_seed(rank)
weight = torch.randn(64, 64, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
best = float("inf")
for step in range(8):
    (torch.randn(4, 64) @ weight).square().mean().backward()
    dist.all_reduce(weight.grad, group=data)
    norm = weight.grad.square().sum()
    if not (wrong and rank == world - 1 and step == 1):
        dist.all_reduce(norm, group=model)
    if norm.item() < best:  # <- undecided
        best = norm.item()
        optimizer.step()
        gathered = [torch.empty_like(weight) for _ in range(world // 2)]
        dist.all_gather(gathered, weight.detach(), group=data)
    optimizer.zero_grad()
    dist.barrier()
"""


@pytest.mark.parametrize("mode", ["right", "wrong"])
def test_groups_that_stand_beside_each_other_decide_alike(
    mode: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    """The norm of gradients that were averaged over the replicas is reduced over the ranks that
    share a model: all replicas have the same, which no call says."""
    done = planned(tmp_path, torch_loaded, MODEL_PARALLEL, mode, ["-n", "8"])
    assert [row["ranks"] for row in done.report["undecided"]] == [list(range(8))], done.explain()
    if mode == "right":
        assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    else:
        assert done.exit_code in (91, 92, 93), done.explain()
        assert 7 in done.report["findings"][0]["culprits"], done.explain()
