"""One rank of two on the real nccl4py, over a C stand-in for libnccl: prints what went wrong."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[4]))

from distcore.base.deadline import Deadline, Timer
from distcore.nccl import library
from distcore.nccl.communicators import Comm, Connector, abort_all, close_all
from distcore.nccl.elements import reducing_for

STREAM = 77


def on_the_cpu(member: Comm) -> Comm:
    """nccl4py would ask CUDA which device it is on, and compares it with the tensors'."""
    member.communicator._device = types.SimpleNamespace(device_id=None)
    return member


def main() -> None:
    nccl = library.load()
    assert str(nccl.version()).startswith("2.28.3"), nccl.version()
    store: Any = dist.HashStore()
    connector = Connector(nccl, store, Timer())

    def connect(key: str) -> Comm:
        made = connector.connect(key, "g", (0, 1), 0, Deadline.after(20.0), lambda: None)
        return on_the_cpu(made)

    member = connect("a")

    def settled() -> None:
        member.settle(Deadline.after(20.0), lambda: None, "a call")

    def issue(*what: library.Transfer) -> None:
        library.issue(nccl, member.communicator, STREAM, what, member.calling, settled)

    def reducing(op: Any, dtype: torch.dtype) -> Any:
        return reducing_for(op, dtype, "distcore_nccl")

    ops = dist.ReduceOp
    for dtype, op in (
        (torch.float32, ops.SUM),
        (torch.int64, ops.AVG),
        (torch.bool, ops.BOR),
        (torch.float8_e5m2, ops.MAX),
        (torch.complex64, ops.SUM),
        (torch.bfloat16, dist._make_nccl_premul_sum(0.5)),
        (torch.float32, dist._make_nccl_premul_sum(0.5)),
    ):
        how = reducing(op, dtype)
        given = how.contribution(torch.zeros(6, dtype=dtype))
        issue(library.AllReduce(given, given, how))
    assert member.communicator._resources == []

    six, three = torch.zeros(6), torch.zeros(3)
    sums = reducing(ops.SUM, torch.float32)
    issue(library.Reduce(six, six, 1, sums))
    issue(library.ReduceScatter(six, three, sums))
    issue(library.AllGather(three, six))
    issue(library.Broadcast(six, 1))
    issue(library.Sending(six, 1, 5), library.Receiving(six, 1, 4), library.Broadcast(three, 0))

    deadline = Deadline.after(20.0)
    half = connector.split(member, 0, 1, "half", deadline, lambda: None)
    assert half is not None
    assert half.communicator.is_valid
    assert half.communicator.rank == 1
    assert connector.split(member, None, 0, "none", deadline, lambda: None) is None

    close_all([member, half], nccl)
    abort_all([connect("b"), connect("c")], nccl)
    print("asked")


if __name__ == "__main__":
    main()
