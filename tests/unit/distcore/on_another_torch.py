"""Uses distcore on a torch that lacks a private name or calls it otherwise; for each name in a fork
of one process. Prints a line for each: its name, and `ok` or what went wrong."""

from __future__ import annotations

import inspect
import os
import re
import sys
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

REMOVED: dict[str, tuple[Any, str]] = {
    "ErrorType": (torch._C._distributed_c10d, "ErrorType"),
    "_profiler_enabled": (torch._C._autograd, "_profiler_enabled"),
    "_make_nccl_premul_sum": (dist, "_make_nccl_premul_sum"),
    "_debug_has_internal_overlap": (torch, "_debug_has_internal_overlap"),
}
"""Names that torch itself does not need for a group of ours."""
RENAMED = (
    "_new_process_group_helper",
    "_new_group_with_tag",
    "_get_default_group",
    "_rank_not_in_group",
    "_check_p2p_op_list",
    "_coalescing_manager",
    "_register_process_group",
    "_MPI_AVAILABLE",
)
"""Names that torch uses under another name, everywhere in the module."""


def remove(name: str) -> None:
    owner, attribute = REMOVED[name]
    if hasattr(owner, attribute):
        delattr(owner, attribute)


def rename(name: str) -> None:
    """Load torch's module anew, into itself, with another word for it."""
    source = re.sub(rf"\b{name}\b", f"{name}_anew", inspect.getsource(c10d))
    source = source.replace(f"    {name}_anew,\n    ", f"    {name} as {name}_anew,\n    ", 1)
    vars(c10d).pop(name, None)
    if name in ("_register_process_group",):  # imported from torch's C++ code
        bindings: Any = torch._C._distributed_c10d
        setattr(bindings, f"{name}_anew", getattr(bindings, name))
        source = source.replace(f"{name} as {name}_anew", f"{name}_anew")
    exec(compile(source, c10d.__file__, "exec"), vars(c10d))
    assert not hasattr(c10d, name), "it is still there"
    for public in c10d.__all__:
        setattr(dist, public, getattr(c10d, public))


def use() -> None:
    """What a program does with a group of ours; of one rank."""
    import distcore

    dist.init_process_group("tcp", rank=0, world_size=1, store=dist.HashStore())
    tensor = torch.arange(6.0)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor.reshape(2, 3).t(), async_op=True).wait()
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5]
    group = dist.new_group([0], backend="tcp")
    dist.barrier(group=group)
    dist.monitored_barrier(group)
    assert "tcp" in repr(dist.group.WORLD), dist.group.WORLD
    assert issubclass(distcore.GroupFailed, Exception)
    dist.destroy_process_group()


def main() -> int:
    plans = [(remove, name) for name in REMOVED] + [(rename, name) for name in RENAMED]
    code = 0
    for change, name in plans:
        child = os.fork()
        if child == 0:
            try:
                change(name)
                use()
            except BaseException:
                print(name, traceback.format_exc(), flush=True)
                os._exit(1)
            print(name, "ok", flush=True)
            os._exit(0)
        code |= os.waitpid(child, 0)[1]
    return int(code != 0)


if __name__ == "__main__":
    sys.exit(main())
