"""One rank on a GPU: arguments are rank, size, a file where the ranks meet, and what to do."""

from __future__ import annotations

import faulthandler
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[4]))

import distcore as dist
from distcore.errors import DeadlineExceeded, GroupFailed
from tests.support.conformance import check_backend

DEVICE = torch.device("cuda", 0)
LONG_CYCLES = 200_000_000
LEFT_OUT = r"broadcast\(src=1, float32\[5\]\)"


def suite(rank: int, size: int) -> None:
    done = check_backend("distcore_nccl", device="cuda:0")
    print(f"{len(done)} calls are right")


def streams(rank: int, size: int) -> None:
    """A call runs after what its stream had to do, and does not hold up the host."""
    # Of the same size: NCCL connects the ranks anew for another algorithm, and the host waits.
    dist.all_reduce(torch.zeros(1 << 20, device=DEVICE))
    torch.cuda.synchronize()
    place = next(iter(dist.group.WORLD._engine._places.values()))  # type: ignore[union-attr]
    assert isinstance(place.lane.stream, torch.cuda.ExternalStream), "it may be another's too"
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            tensor = torch.zeros(1 << 20, device=DEVICE)
            began_s = time.monotonic()
            torch.cuda._sleep(LONG_CYCLES)
            tensor.fill_(rank + 1)
            work = dist.all_reduce(tensor, async_op=True)
            assert not work.is_completed(), "it ran before what its stream had to do"
            work.wait()
            issued_s = time.monotonic() - began_s
            tensor.add_(1)  # on the stream that waits
            torch.cuda.synchronize()
            waited_s = time.monotonic() - began_s
        assert work.is_completed()
        assert issued_s < waited_s / 2, f"wait() held up the host: {issued_s} of {waited_s} s"
        assert tensor.unique().tolist() == [sum(range(size + 1)) + 1]
        assert work._get_duration() > 0
        for _ in range(100):
            if work.times_ns() is not None:
                break
            time.sleep(0.02)
        started_ns, ended_ns = work.times_ns()
        assert 0 < ended_ns - started_ns < 60e9
    dist.barrier()


def capture() -> tuple[torch.Tensor, torch.cuda.CUDAGraph]:
    """A tensor of ones, and the graph of a call on it; the group is connected by one before."""
    tensor = torch.ones(1024, device=DEVICE)
    dist.all_reduce(tensor.clone())
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        dist.all_reduce(tensor)
    return tensor, captured


def graph(rank: int, size: int) -> None:
    """A call is captured into a CUDA graph, and runs whenever the graph does."""
    tensor, captured = capture()
    for times in (1, 2, 3):
        captured.replay()
        torch.cuda.synchronize()
        assert tensor.unique().tolist() == [float(size**times)]
    dist.all_reduce(tensor)
    torch.cuda.synchronize()


KEPT: list[Any] = []


def kept(rank: int, size: int) -> None:
    """A graph that outlives its group holds up neither the group's end nor the program's."""
    _, captured = capture()
    captured.replay()
    torch.cuda.synchronize()
    KEPT.append(captured)


def messages(rank: int, size: int) -> None:
    """Both ranks send first, twice, and receive then; and all of it in a batch."""
    if size == 1:
        return
    peer = 1 - rank
    sent = [torch.full((1 << 20,), float(10 * rank + n), device=DEVICE) for n in range(2)]
    works = [dist.isend(one, peer) for one in sent]
    arrived = [torch.empty_like(one) for one in sent]
    works += [dist.irecv(one, peer) for one in arrived]
    for work in works:
        assert work is not None
        work.wait()
    assert [one.unique().tolist() for one in arrived] == [[10.0 * peer], [10.0 * peer + 1]]
    ops = [dist.P2POp(dist.isend, one, peer) for one in sent]
    ops += [dist.P2POp(dist.irecv, one, peer) for one in arrived[::-1]]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert [one.unique().tolist() for one in arrived] == [[10.0 * peer + 1], [10.0 * peer]]


def factors(rank: int, size: int) -> None:
    """PREMUL_SUM is NCCL's own, and keeps nothing."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64):
        tensor = torch.ones(5, dtype=dtype, device=DEVICE)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        assert tensor.tolist() == [size * 0.5] * 5
    (member,) = dist.group.WORLD._session.members()  # type: ignore[union-attr]
    assert member.communicator._resources == []


def named(rank: int, size: int) -> None:
    """What is wrong with a call is said before anything is sent."""
    for wrong, words in (
        (lambda: dist.all_reduce(torch.zeros(1)), "expected a tensor on a CUDA device"),
        (
            lambda: dist.all_reduce(torch.zeros(1, device=DEVICE), dist.ReduceOp.BAND),
            "distcore_nccl cannot reduce torch.float32",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            wrong()
    dist.all_reduce(torch.zeros(1, device=DEVICE))


def split(rank: int, size: int) -> None:
    """Groups by a split of the communicator."""
    dist.all_reduce(torch.zeros(1, device=DEVICE))
    mine: Any = dist.split_group(dist.group.WORLD, [[one] for one in range(size)])
    tensor = torch.full((3,), float(rank), device=DEVICE)
    dist.all_reduce(tensor, group=mine)
    assert tensor.tolist() == [rank] * 3
    whole: Any = dist.split_group(dist.group.WORLD, [list(range(size))])
    dist.all_reduce(tensor, group=whole)
    assert tensor.tolist() == [sum(range(size))] * 3


def deadline(rank: int, size: int) -> None:
    """Rank 1 leaves out a call."""
    dist.broadcast(torch.zeros(5, device=DEVICE), src=1)  # so that its ranks are connected
    torch.cuda.synchronize()
    if rank == 0:
        began_s = time.monotonic()
        work = dist.broadcast(torch.zeros(5, device=DEVICE), src=1, async_op=True)
        assert work is not None
        with pytest.raises(DeadlineExceeded, match=LEFT_OUT):
            work.wait(timedelta(seconds=30))
        assert time.monotonic() - began_s < 20
        torch.cuda.synchronize()  # the kernel was aborted
    else:
        time.sleep(12)  # the group's limit is 5 s; this rank hears of it from the other
    with pytest.raises(GroupFailed, match=LEFT_OUT):
        dist.all_reduce(torch.zeros(1, device=DEVICE))


def combined(rank: int, size: int) -> None:
    """The CPU's tensors go to tcp, the GPU's to NCCL."""
    for device in ("cpu", DEVICE):
        tensor = torch.full((4,), float(rank + 1), device=device)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [float(sum(range(1, size + 1)))] * 4
    nccl: Any = dist.group.WORLD._get_backend(DEVICE)  # type: ignore[union-attr]
    assert nccl._session.calls == 1


BODIES = {
    one.__name__: one
    for one in (
        suite,
        streams,
        graph,
        kept,
        messages,
        factors,
        named,
        split,
        combined,
        deadline,
    )
}


def main() -> None:
    faulthandler.dump_traceback_later(250, exit=True)
    warnings.filterwarnings("ignore", "ComplexHalf")
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    what = sys.argv[4]
    torch.cuda.set_device(DEVICE)
    limit_s = 5 if what == "deadline" else 120
    dist.init_process_group(
        "cpu:tcp,cuda:nccl" if what == "combined" else "nccl",
        init_method=f"file://{sys.argv[3]}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=limit_s),
        device_id=DEVICE,
    )
    assert "distcore_nccl" in dist.get_backend()
    BODIES[what](rank, size)
    dist.destroy_process_group()
    print(f"{what}: right", torch.cuda.get_device_name(), torch.cuda.nccl.version())


if __name__ == "__main__":
    main()
