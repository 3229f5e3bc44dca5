"""Ranks that run until the file `go` is there, in the way that the first argument says."""

import ctypes
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

MODE, GO = sys.argv[1], Path(sys.argv[2])
TIMEOUT_S = float(sys.argv[3]) if len(sys.argv) > 3 else 60.0


def ready(rank: int) -> None:
    """Tell the test that the rank has come so far."""
    (GO.parent / f"ready{rank}").touch()


def computing() -> int:
    """No call until `go` is there."""
    ready(1)
    turns = 0
    while not GO.exists():
        turns += 1
        time.sleep(0.001)
    return turns


def calling(tensor: torch.Tensor) -> None:
    """Calls until `go` is there for all."""
    while not tensor[1]:
        tensor[0] += 1
        tensor[1] = float(GO.exists())
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        time.sleep(0.001)


def traced(tensor: torch.Tensor) -> None:
    """Under a tracer of its own, as coverage is."""
    seen = []
    sys.settrace(lambda frame, event, _: seen.append((frame.f_code.co_name, event)))
    calling(tensor)
    assert ("calling", "call") in seen
    sys.settrace(None)


def main() -> None:
    from datetime import timedelta

    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    rank = dist.get_rank()
    tensor = torch.zeros(2)
    dist.all_reduce(tensor)
    if (MODE, rank) != ("computing", 1):  # which is to be asked to stop there, and not on its way
        ready(rank)
    if MODE == "held" and rank == 1:
        ctypes.PyDLL(None).sleep(8)  # which keeps the GIL
    if MODE == "thread":
        worker = threading.Thread(target=calling, args=(tensor,))
        worker.start()
        worker.join()
    elif MODE == "traced" and rank == 1:
        traced(tensor)
    elif MODE == "computing" and rank == 1:
        computing()
    elif MODE != "computing":
        calling(tensor)
    dist.barrier()
    sys.stdout.write(f"rank {rank} is through\n")  # in one piece: the ranks may share a pipe
    sys.stdout.flush()
    dist.destroy_process_group()


main()
