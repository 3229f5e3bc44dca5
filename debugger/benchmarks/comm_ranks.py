"""Measures how fast backends communicate, one number of ranks after the other: each rank, with the
others, every backend in turn.

python -m distdebug.benchmarks.comm_ranks REQUEST

REQUEST has `backends`, `ops`, `sizes` (in bytes), `ranks`, `latency` and `budget_s`, as
`forked.program` takes it. A call is checked to give what it must: a fast wrong answer is no figure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from .arguments import GPU_BACKENDS, MPI_BACKEND
from .comm_figures import COPY, OPS, PING_PONG, WAKE_UP, elements, neighbours, true_size
from .forked import Row, Turns, Way, here, measure, program

TRANSPORT_VARIABLE = "DISTCORE_TRANSPORT"
TIMEOUT = timedelta(seconds=120)


@contextmanager
def joined(
    backends: Sequence[str], rank: int, size: int, directory: Path
) -> Iterator[dict[str, Any]]:
    """A group per backend, such as "gloo" or "tcp/shm", beside the default group, which is gloo's.

    The ranks find each other through a file in `directory`. All leave together, unless one fails.
    """
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory / 'rendezvous'}",
        rank=rank,
        world_size=size,
        timeout=TIMEOUT,
    )
    groups = {}
    for name in backends:
        backend = name.partition("/")[0]
        with transport(name):
            groups[name] = dist.new_group(list(range(size)), backend=backend, timeout=TIMEOUT)
    yield groups
    dist.barrier()
    dist.destroy_process_group()


def transport(name: str) -> AbstractContextManager[Any]:
    """Has new groups in the `with` use the transport that "tcp/shm" names after its slash."""
    _, slash, chosen = name.partition("/")
    return patch.dict(os.environ, {TRANSPORT_VARIABLE: chosen} if slash else {})


@dataclass(frozen=True)
class MeasuredCall:
    """An operation on buffers of its own: `run(group)`, on every rank.

    With `fill`ed buffers, the output's equal parts hold the numbers `expected` after one run.
    """

    run: Callable[[Any], None]
    source: torch.Tensor
    target: torch.Tensor
    rank: int
    expected: torch.Tensor

    def is_right(self, group: Any) -> bool:
        """Run it once with numbers that tell; the buffers are zeros afterwards."""
        self.target.fill_(-1)
        self.source.fill_(self.rank + 1)
        self.run(group)
        expected = self.expected.to(self.target.device)
        right = self.target.view(len(self.expected), -1) == expected[:, None]
        self.source.zero_()  # what is summed in place over and over stays finite
        return bool(right.all())


def make(
    op: str,
    size_bytes: int,
    rank: int,
    ranks: int,
    allocate: Callable[[int], torch.Tensor] = torch.empty,
) -> MeasuredCall:
    """The call for this rank. `size_bytes` comes from `true_size`; `allocate` gives a tensor of so
    many float32."""
    count, target_count = elements(op, size_bytes, ranks)
    source = allocate(count)
    target = source if target_count is None else allocate(target_count)
    expected = torch.tensor(OPS[op].expected(rank, ranks))
    # By its new name, where this torch has that: the old one then costs 5 us more, for a warning.
    newer = op.replace("_into_tensor", "_single").replace("_tensor", "_single")
    function: Any = getattr(dist, newer, None) or getattr(dist, op, None)
    run: Callable[[Any], None]
    if op == PING_PONG:
        run = partial(_ping_pong, source, target, rank, ranks)
    elif op == "send_recv":
        run = partial(_send_recv, source, target, *neighbours(rank, ranks))
    elif op == "barrier":
        run = lambda group: function(group=group)  # noqa: E731
    elif op == "broadcast":
        run = lambda group: function(source, group_src=0, group=group)  # noqa: E731
    elif target is source:
        run = lambda group: function(source, group=group)  # noqa: E731
    else:
        run = lambda group: function(target, source, group=group)  # noqa: E731
    return MeasuredCall(run, source, target, rank, expected)


def _send_recv(
    source: torch.Tensor, target: torch.Tensor, following: int, preceding: int, group: Any
) -> None:
    """All at once, as nccl-tests' sendrecv does."""
    if source.is_cuda:
        # torch's NCCL keeps all messages of two ranks on one stream: each would wait for the other.
        both = [
            dist.P2POp(dist.isend, source, group=group, group_peer=following),
            dist.P2POp(dist.irecv, target, group=group, group_peer=preceding),
        ]
        for one in dist.batch_isend_irecv(both):
            one.wait()
        return
    works = (
        dist.isend(source, group_dst=following, group=group),
        dist.irecv(target, group_src=preceding, group=group),
    )
    for work in works:
        assert work is not None
        work.wait()


def _ping_pong(
    source: torch.Tensor, target: torch.Tensor, rank: int, ranks: int, group: Any
) -> None:
    other = rank ^ 1
    if other >= ranks:
        return
    if rank < other:
        dist.send(source, group_dst=other, group=group)
        dist.recv(target, group_src=other, group=group)
    else:
        dist.recv(target, group_src=other, group=group)
        dist.send(target, group_dst=other, group=group)


def _least(call: MeasuredCall, bells: Sequence[int], rank: int) -> dict[str, Way]:
    """Returns the ways of what a ping-pong cannot do without, or only while it spins: one copy of
    the data each way, and one wake-up each way. `bells`: an eventfd of each rank."""
    other = rank ^ 1

    def wake_up() -> None:
        if other >= len(bells):
            return
        if rank < other:
            os.eventfd_write(bells[other], 1)
        os.eventfd_read(bells[rank])
        if rank > other:
            os.eventfd_write(bells[other], 1)

    def copy() -> None:
        if rank < other < len(bells):  # one of the two at a time, as the data goes
            call.target.copy_(call.source)
            call.source.copy_(call.target)

    return {WAKE_UP: here(wake_up), COPY: here(copy)}


MOST_ROUNDS = 15
Prepare = Callable[[str, int], tuple[bool, Way]]
"""`prepare(op, size_bytes)`: whether it gives right data once, and the way to measure."""
Elsewhere = Callable[[int, int, Path], AbstractContextManager[Prepare]]
"""`elsewhere(rank, size, directory)`: MPI, in processes of its own."""


def rows(
    request: dict[str, Any],
    elsewhere: Elsewhere | None,
    bells: Sequence[int],
    rank: int,
    size: int,
    directory: Path,
    ends_at: float,
) -> Iterator[dict[str, Any]]:
    """The rows, as `comm_figures.summarise` takes them; done by `ends_at` (monotonic). Each backend
    has given right data once before it is measured. `bells`: an eventfd of each rank."""
    names = request["backends"]
    on_gpu = set(names) <= set(GPU_BACKENDS)
    # On the CPU a call is over when it returns.
    allocate, finish = place_on_gpu(rank, size) if on_gpu else (torch.empty, lambda: None)
    with ExitStack() as stack:
        torchs = [name for name in names if name != MPI_BACKEND]
        groups = stack.enter_context(joined(torchs, rank, size, directory))
        if elsewhere is not None:
            prepare = stack.enter_context(elsewhere(rank, size, directory))
        turns = Turns(size)
        cells = dict.fromkeys(
            (op, true_size(op, size_bytes, size))
            for op in request["ops"]
            for size_bytes in request["sizes"]
        )
        weights = [1.0 + size_bytes / (1 << 24) for _, size_bytes in cells]
        for index, (op, size_bytes) in enumerate(cells):
            ends_by = turns.now()
            ends_by += max(0.0, ends_at - ends_by) * weights[index] / sum(weights[index:])
            call = make(op, size_bytes, rank, size, allocate)
            ways: dict[str, Way] = {}
            for name in names:
                if name in groups:
                    right = call.is_right(groups[name])
                    ways[name] = here(partial(call.run, groups[name]), finish)
                else:
                    right, ways[name] = prepare(op, size_bytes)
                if not right:
                    raise RuntimeError(f"{name} gives wrong data for {op} of {size_bytes} B")
            least = _least(call, bells, rank) if request["latency"] else {}
            measured = turns.measure(ways | least, ends_by, MOST_ROUNDS)
            row = {"op": op, "ranks": size, "size_bytes": size_bytes, "backends": measured}
            yield row | {name: measured.pop(name) for name in least}


def place_on_gpu(rank: int, size: int) -> tuple[Callable[[int], torch.Tensor], Callable[[], None]]:
    """Returns what gives a tensor of so many float32 on this rank's GPU, one of its own as long as
    there are enough, and what waits there for all that was asked so far.

    NCCL refuses two ranks of one host on one GPU: those that share one name different hosts.
    """
    cuda: Any = torch.cuda
    count = cuda.device_count()
    if size > count:
        os.environ["NCCL_HOSTID"] = f"distdebug-rank-{rank}"
    cuda.set_device(rank % count)
    return partial(torch.empty, device=f"cuda:{rank % count}"), cuda.synchronize


def all_rows(
    request: dict[str, Any], began: float, elsewhere: Elsewhere | None = None
) -> Generator[Row, None, None]:
    """Yields the rows of all numbers of ranks."""
    ends_at = began + request["budget_s"]
    sizes = request["ranks"]
    for index, size in enumerate(sizes):
        now = time.monotonic()
        share = (4 + size) / sum(4 + later for later in sizes[index:])
        bells = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(size)]
        body = partial(rows, request, elsewhere, bells)
        try:
            yield from measure(body, size, now + max(0.0, ends_at - now) * share)
        finally:
            for bell in bells:
                os.close(bell)


def main() -> None:
    """The program."""
    program(all_rows)
