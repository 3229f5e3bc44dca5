"""What torch's functions are to others with the layer in place, and what newer torches have: each
line says what it looked at. Two ranks; fails where something is not as it should be."""

import builtins
import gc
import inspect
import os
import pickle
import sys
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import distcore  # noqa: F401

rank = int(os.environ["RANK"])

shadowed = [
    (name, module.__name__)
    for module in list(sys.modules.values())
    if str(getattr(module, "__name__", "")).partition(".")[0] == "torch"
    for name, value in vars(module).items()
    if name in vars(builtins)
    and "distdebug"
    in str(getattr(inspect.unwrap(value) if callable(value) else value, "__module__", ""))
]
assert not shadowed, shadowed
print("builtins")

for name in (
    "init_process_group",
    "destroy_process_group",
    "batch_isend_irecv",
    "get_debug_level",
    "set_debug_level",
    "monitored_barrier",
    "send",
    "recv",
):
    function = getattr(dist, name)
    assert pickle.loads(pickle.dumps(function)) is function, name
    assert function.__name__ == name, function
    if "debug_level" not in name:  # of which torch's own code has its own
        assert getattr(c10d, name, function) is function, name
assert next(iter(inspect.signature(dist.init_process_group).parameters)) == "backend"
assert list(inspect.signature(dist.batch_isend_irecv).parameters) == ["p2p_op_list"]
assert next(iter(inspect.signature(c10d._new_process_group_helper).parameters)) == "group_size"
print("functions")

dist.init_process_group("gloo")
world = dist.group.WORLD
assert type(world).__name__ == "CheckedGroup", world
sent, received = torch.full((2,), float(rank)), torch.zeros(2)
batch = [dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
for one in dist.batch_isend_irecv(batch):
    one.wait()
assert received.tolist() == [1.0 - rank] * 2
print("messages")


def handle_of(work):
    known = weakref.ref(work)
    work.wait()
    return known


# The first call of each kind and the second one: nothing of them is left for the collector.
gc.collect()
gc.disable()
fresh = dist.new_group([0, 1])
for _ in range(2):
    handles = [
        handle_of(dist.broadcast(torch.ones(2), 0, group=fresh, async_op=True)),
        handle_of(dist.barrier(group=fresh, async_op=True)),
        handle_of((dist.irecv, dist.isend)[rank](torch.ones(2), 1 - rank, group=fresh)),
    ]
    assert not [one for one in handles if one() is not None], handles
gc.enable()
print("handles")

for group in (world, fresh):
    assert group._device_types == group._inner._device_types, group._device_types
print("devices")

handle = dist.all_reduce(torch.ones(1), group=fresh, async_op=True)
handle.wait()
for name in ("timeout", "_get_sequence_number"):
    assert hasattr(handle, name) == hasattr(dist.Work, name), name
if hasattr(handle, "timeout"):
    assert handle.timeout == dist.default_pg_timeout, handle.timeout
    assert handle._get_sequence_number() > 0
print("what a handle knows")

if getattr(world, "supports_window", None) is False:
    try:
        dist._new_window()
        raise AssertionError("gloo has no windows")
    except RuntimeError:
        pass
print("windows")

if hasattr(world, "register_pre_hook"):
    seen = []
    world.register_pre_hook(77, lambda given: seen.append(str(given.name)))
    dist.all_reduce(torch.ones(1))
    assert len(seen) == 1, seen
    world.unregister_pre_hook(77)
    dist.all_reduce(torch.ones(1))
    assert len(seen) == 1, seen
print("hooks")

if hasattr(c10d, "NanCheckHook"):
    own = dist.new_group([0, 1])
    hook = c10d.NanCheckHook.attach(own)
    dist.all_reduce(torch.ones(1), group=own)
    try:
        dist.all_reduce(torch.tensor([float("nan")]), group=own)
        raise AssertionError("torch's check for NaN did not see the call")
    except RuntimeError as error:
        refused = str(error)
    assert "NaN" in refused, refused
    hook.remove()
print("nan check")

if hasattr(dist, "gather_single"):
    rows, refused = torch.zeros(2, 3) if rank == 0 else None, ""
    try:
        dist.gather_single(torch.full((1, 3), float(rank)), rows, dst=0)
        assert rows is None or rows.tolist() == [[0.0] * 3, [1.0] * 3]
    except RuntimeError as error:
        refused = str(error)
    assert not refused or "does not support" in refused, refused  # gloo in 2.14 and 2.15
print("gather_single")

parent = dist.new_group([0, 1], backend="tcp", timeout=timedelta(seconds=44))
short = parent.split_group([0, 1], timedelta(seconds=33), group_name="short", group_desc="short")
like = parent.split_group([0, 1], group_name="like", group_desc="like")
assert (short._record.timeout_s, like._record.timeout_s) == (33, 44)
short.shutdown()
like.shutdown()
print("splits")
dist.barrier()
dist.destroy_process_group()
