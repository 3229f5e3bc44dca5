"""Ranks that stop at breakpoints, in the way that the first argument says."""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

if sys.argv[1] == "library":
    import distdebug

    distdebug.install(run_dir=sys.argv[3])

MODE = sys.argv[1]
STOPS = dict.fromkeys(("plain", "library", "received", "dying", "awaited"), (1,))
STOPS["loop"] = (0, 1, 2)
TIMEOUT = timedelta(seconds=float(sys.argv[2]))


def step(number: int) -> torch.Tensor:
    rank = dist.get_rank()
    x = torch.full((2,), float(10 * rank + number))
    if rank == 1 and number in STOPS.get(MODE, ()):
        breakpoint()
    if MODE == "torch" and number == 1:
        dist.breakpoint(1)
    if MODE == "condition":
        import distdebug

        distdebug.breakpoint(rank=1, condition=lambda: number == 2)
    y = x * 2
    communicate(rank, number, y)
    return y


def communicate(rank: int, number: int, y: torch.Tensor) -> None:
    if MODE == "late" and rank == 1 and number == 1:
        time.sleep(60)
    if MODE in ("received", "late-message"):
        if MODE == "late-message" and rank == 1 and number == 1:
            time.sleep(60)
        if rank == 1:
            dist.send(y, 0)
        elif rank == 0:
            dist.recv(y, 1)
    elif MODE == "awaited":
        dist.all_reduce(y, async_op=True).get_future().wait()
    elif MODE == "dying" and rank == 0 and number == 1:
        while not os.path.exists(sys.argv[3]):
            time.sleep(0.05)
        os.kill(os.getpid(), 9)
    else:
        dist.all_reduce(y)


def main() -> None:
    dist.init_process_group("gloo", timeout=TIMEOUT)
    began = time.monotonic()
    try:
        for number in range(3):
            y = step(number)
        if MODE == "raising" and dist.get_rank() == 1:
            raise ValueError("planted")
        dist.barrier()
    except RuntimeError as error:
        sys.stdout.write(f"failed after {time.monotonic() - began:.1f} s: {error}\n")
        sys.stdout.flush()
        raise
    sys.stdout.write(f"result {y.tolist()}\n")  # in one piece: the ranks may share a pipe
    sys.stdout.flush()
    dist.destroy_process_group()


main()
