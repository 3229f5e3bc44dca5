"""What a backend takes beside time: memory, processor time while it waits, and what a group costs.

python -m tests.benchmarks.resources_ranks REQUEST

REQUEST, as `forked.program` takes it: backends, ops, ranks (one number), largest_bytes, groups and
wait_s.
Each backend has ranks of its own, one backend after the other: memory is counted by process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distdebug.benchmarks import comm_ranks
from distdebug.benchmarks.comm_figures import ELEMENT_BYTES, true_size
from distdebug.benchmarks.comm_ranks import TIMEOUT, transport
from distdebug.benchmarks.forked import Row, measure, program

SIZE_FACTOR = 16
SMALLEST_BYTES = 4096
CALLS = 2
_PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class Memory:
    """Of this process, in bytes.

    `own` is what it has for itself (anonymous pages) and its share of what it shares with others
    (Pss of shared memory): files, such as torch's libraries, are not counted. Pages that a forked
    process shares with its parent until one of them writes count as its own all along. `resident`
    is all that is mapped now, shared memory and files in full; `peak` the most there was of that
    since `forget_peak`.
    """

    own: int
    resident: int
    peak: int


def memory() -> Memory:
    """Read it from the kernel."""
    rollup = _numbers(_PROCESS / "smaps_rollup")
    status = _numbers(_PROCESS / "status")
    return Memory(rollup["Anonymous"] + rollup["Pss_Shmem"], status["VmRSS"], status["VmHWM"])


def forget_peak() -> None:
    """The peak is what is resident now."""
    (_PROCESS / "clear_refs").write_text("5")


def _numbers(file: Path) -> dict[str, int]:
    """The lines "Name:  12 kB" of a file, in bytes."""
    found = {}
    for line in file.read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            found[name] = int(value[:-3]) * 1024
    return found


def _join(backend: str, rank: int, size: int, directory: Path) -> None:
    """The default group, through a store as torchrun's: rank 0 serves it."""
    untyped: Any = dist  # torch's annotations leave the stores out
    notes = untyped.FileStore(str(directory / "port"), size)
    if rank == 0:
        store = untyped.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        notes.set("port", str(store.port))
    else:
        store = untyped.TCPStore("127.0.0.1", int(notes.get("port")), size)
    with transport(backend):
        dist.init_process_group(
            backend.partition("/")[0], store=store, rank=rank, world_size=size, timeout=TIMEOUT
        )


def _largest(numbers: dict[str, float]) -> dict[str, float]:
    """Each number from the rank where it is largest."""
    tensor = torch.tensor(list(numbers.values()), dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return dict(zip(numbers, tensor.tolist(), strict=True))


def _row(
    asked: dict[str, Any], backend: str, rank: int, size: int, directory: Path, _ends_at: float
) -> Iterator[Row]:
    buffers = [torch.zeros(asked["largest_bytes"] // ELEMENT_BYTES + size) for _ in range(2)]
    for buffer in buffers:
        buffer.fill_(0)  # each page is there
    before = memory()
    _join(backend, rank, size, directory)
    with transport(backend):
        taken = _take_memory(asked, rank, size, buffers, before)
        row = {
            "backend": backend,
            "ranks": size,
            "memory_bytes": _largest(taken),
            "wait_cpu_s": _largest(_wait(asked["wait_s"], rank)),
            "groups_s": _largest(_make_groups(asked["groups"], size)),
        }
    dist.barrier()
    dist.destroy_process_group()
    yield row


def _take_memory(
    asked: dict[str, Any], rank: int, size: int, buffers: list[torch.Tensor], before: Memory
) -> dict[str, float]:
    """Bytes more than `before` the group was made: once it was, at most during calls of all kinds
    on the `buffers`, and after them."""
    joined = memory()
    peak = joined.own
    sizes = [asked["largest_bytes"]]
    while sizes[-1] >= SIZE_FACTOR * SMALLEST_BYTES:
        sizes.append(sizes[-1] // SIZE_FACTOR)
    for op in asked["ops"]:
        for size_bytes in reversed(sizes):
            moved = true_size(op, size_bytes, size)
            call = comm_ranks.make(op, moved, rank, size, _one_after_the_other(buffers))
            here = memory()
            forget_peak()
            for _ in range(CALLS):
                call.run(None)
            peak = max(peak, here.own + memory().peak - here.resident)
    taken = {"joined": joined.own, "peak": peak, "after": memory().own}
    return {when: own - before.own for when, own in taken.items()}


def _one_after_the_other(buffers: list[torch.Tensor]) -> Callable[[int], torch.Tensor]:
    """Gives the beginning of the first, then of the next."""
    remaining = iter(buffers)
    return lambda count: next(remaining)[:count]


def _wait(wait_s: float, rank: int) -> dict[str, float]:
    """Processor seconds (user and system, all threads) of a rank in barrier, for `wait_s`."""
    dist.barrier()
    if rank == 0:
        time.sleep(wait_s)
    began = time.process_time()
    dist.barrier()
    return {"barrier": time.process_time() - began}


def _make_groups(count: int, size: int) -> dict[str, float]:
    """Seconds to make `count` groups of all ranks, and to make them and call barrier on each."""
    dist.barrier()
    began = time.monotonic()
    groups = [dist.new_group(list(range(size))) for _ in range(count)]
    made = time.monotonic() - began
    for group in groups:
        dist.barrier(group=group)
    return {"made": made, "used": time.monotonic() - began}


def _rows(asked: dict[str, Any], _began: float) -> Generator[Row, None, None]:
    for backend in asked["backends"]:
        yield from measure(partial(_row, asked, backend), asked["ranks"], math.inf)


if __name__ == "__main__":
    program(_rows)
