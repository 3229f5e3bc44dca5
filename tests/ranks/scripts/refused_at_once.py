"""At DETAIL: rank 0 makes calls that the backend refuses, and goes on; rank 1 makes none of them.

Prints of each what the call raised, what the backend itself raises for it, and what is foretold.
"""

import json
import sys

import torch
import torch.distributed as dist

from distdebug.rank.checks import argument_checks

backend = sys.argv[1]
dist.init_process_group(backend)
rank = dist.get_rank()
group = dist.group.WORLD
t, others, short = torch.ones(4), torch.ones(4, dtype=torch.int32), torch.ones(3)


def of(kind, root, **more):
    options = kind()
    for name, value in {"asyncOp": True, "rootRank": root, **more}.items():
        if hasattr(options, name):
            setattr(options, name, value)
    return options


WRONG = {
    "tensors of two dtypes": ("allreduce", [t, others]),
    "sparse ones to take the greatest of": (
        "allreduce",
        [t.to_sparse()],
        of(dist.AllreduceOptions, 0, reduceOp=dist.ReduceOp.MAX),
    ),
    "root of a broadcast": ("broadcast", [t], of(dist.BroadcastOptions, 5)),
    "root tensor": ("broadcast", [t], of(dist.BroadcastOptions, 0, rootTensor=1)),
    "root of a reduce": ("reduce", [t], of(dist.ReduceOptions, -1)),
    "root tensor of a reduce": ("reduce", [t], of(dist.ReduceOptions, 0, rootTensor=1)),
    "two tensors to reduce": ("reduce", [t, t], of(dist.ReduceOptions, 0)),
    "too few outputs": ("allgather", [[t]], [t]),
    "an output of another dtype": ("allgather", [[torch.ones(4), others]], [t]),
    "an output that is too small": ("_allgather_base", torch.ones(7), t),
    "one of another dtype": ("_allgather_base", torch.ones(8, dtype=torch.int32), t),
    "several that are too small": ("allgather_into_tensor_coalesced", [torch.ones(7)], [t]),
    "too few to gather to": ("gather", [[t]], [t], of(dist.GatherOptions, 0)),
    "outputs where no root is": ("gather", [[t, torch.ones(4)]], [t], of(dist.GatherOptions, 1)),
    "an output of another size": ("gather", [[t, short]], [t], of(dist.GatherOptions, 0)),
    "its own output of another size": ("allgather", [[short, t]], [t]),
    "its own input of another size": ("reduce_scatter", [t], [[short, t]]),
    "another size to scatter": ("scatter", [t], [[t, short]], of(dist.ScatterOptions, 0)),
    "too few to scatter": ("scatter", [t], [[t]], of(dist.ScatterOptions, 0)),
    "inputs where no root is": ("scatter", [t], [[t, t]], of(dist.ScatterOptions, 1)),
    "too few to reduce": ("reduce_scatter", [t], [[t]]),
    "too small to scatter": ("_reduce_scatter_base", t, torch.ones(7)),
    "too few for all": ("alltoall", [torch.ones(2)], [torch.ones(2), torch.ones(2)]),
}
OF_GLOO = {
    "tensors of two sizes": ("allreduce", [t, short]),
    "an output that does not fit": ("allgather", [[torch.ones(4), short]], [t]),
    "coalesced dtypes": ("allreduce_coalesced", [t, others]),
    "an output of another shape": ("allgather", [[torch.ones(2, 2), torch.ones(2, 2)]], [t]),
    "stacked": ("_allgather_base", torch.ones(2, 4), t),
}
"""Others compare numbers of elements, which may differ from rank to rank, and coalesce several
dtypes."""
OF_OTHERS = {
    "rows that are not for all": ("alltoall_base", torch.ones(2), torch.ones(3), [], []),
    "splits of more than there is": ("alltoall_base", torch.ones(2), torch.ones(2), [], [1, 2]),
    "more for itself than it takes": ("alltoall_base", t, torch.ones(4), [1, 3], [3, 1]),
}
"""gloo takes these, and finds out later."""
WRONG |= OF_GLOO if backend == "gloo" else OF_OTHERS


def said(call, args):
    try:
        call(*args)
    except (RuntimeError, ValueError) as error:
        return str(error).partition("\n")[0].rpartition("] ")[2]
    return "nothing"


dist.barrier()
if rank == 0:
    for what, (method, *args) in WRONG.items():
        row = {"what": what, "call": said(getattr(group, method), args)}
        row["backend"] = said(getattr(group._inner, method), args)
        row["foretold"] = argument_checks.expected(backend, method, tuple(args), 2, 0)
        print(json.dumps(row), flush=True)
# What the first rank has made in vain counts for nothing.
dist.all_reduce(t, async_op=True).wait()
dist.barrier()
dist.destroy_process_group()
