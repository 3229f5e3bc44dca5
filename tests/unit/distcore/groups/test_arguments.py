"""Wrong arguments, overlapping tensors, staging, call texts, and whose turn it is."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

import distcore
from distcore import torch_private
from distcore.base import call_text
from distcore.engine import staging
from distcore.engine.call_queue import Callbacks, CallQueue
from distcore.engine.work import FINISHED, JoinedWork, PendingWork
from distcore.groups import arguments

CALLER = arguments.Caller("gather", (4, 6, 9), 1)
ONE = torch.zeros(1)


@pytest.mark.parametrize(
    ("check", "error", "words"),
    [
        (
            lambda: arguments.tensor(CALLER, "x", 3),
            TypeError,
            "x: expected a tensor, given int",
        ),
        (
            lambda: arguments.tensor(CALLER, "x", ONE.to_sparse()),
            ValueError,
            "use to_dense()",
        ),
        (
            lambda: arguments.tensor(CALLER, "x", ONE.to("meta")),
            ValueError,
            "given one on meta",
        ),
        (
            lambda: arguments.tensor(CALLER, "x", ONE.expand(2, 3), written=True),
            ValueError,
            "given float32[2, 3] with strides (0, 0): use clone()",
        ),
        (
            lambda: arguments.tensors(CALLER, "x", ONE),
            TypeError,
            "a list of tensors, given Tensor",
        ),
        (
            lambda: arguments.tensors(CALLER, "x", [ONE], 3),
            ValueError,
            "expected 3 tensors, one for each rank, given 1",
        ),
        (
            lambda: arguments.tensors(CALLER, "x", [ONE, ONE.int()]),
            ValueError,
            "x[1]: expected float32, as x[0] is, given int32",
        ),
        (lambda: arguments.only_one(CALLER, "x", [1, 2]), ValueError, "one element, given 2"),
        (
            lambda: arguments.count(CALLER, "x", ONE, 4, "twice y"),
            ValueError,
            "x: expected 4 elements (twice y), given 1, float32[1]",
        ),
        (
            lambda: arguments.counts(CALLER, "x", [ONE, ONE.int()], "y", ONE),
            ValueError,
            "x[1]: expected 1 elements of float32, as y has, given int32[1]",
        ),
        (
            lambda: arguments.group_rank(CALLER, "dst", 3),
            ValueError,
            "of 3 (0 to 2), given 3",
        ),
        (lambda: arguments.group_rank(CALLER, "dst", "a"), TypeError, "a rank, given str"),
        (
            lambda: arguments.peer(CALLER, "dst", 1),
            ValueError,
            "another rank, given 1, this rank",
        ),
        (lambda: arguments.tag(CALLER, 2**40), ValueError, "a number of 32 bits"),
        (lambda: arguments.tag(CALLER, -1), ValueError, "Tag must be nonnegative"),
        (lambda: arguments.tag(CALLER, None), TypeError, "an int, given NoneType"),
        (
            lambda: arguments.divides(CALLER, "x", torch.zeros(4)),
            ValueError,
            "x: expected a first dimension that is a multiple of 3, the ranks, given float32[4]",
        ),
        (
            lambda: arguments.splits(CALLER, "s", [1, 2], torch.zeros(3), "x"),
            ValueError,
            "s: expected 3 numbers, one for each rank, given 2: [1, 2]",
        ),
        (
            lambda: arguments.splits(CALLER, "s", [4, -2, 1], torch.zeros(3), "x"),
            ValueError,
            "s: expected no negative number",
        ),
        (
            lambda: arguments.splits(CALLER, "s", [1, 1, 2], torch.zeros(3, 2), "x"),
            ValueError,
            "add up to 3, the first dimension of x, given [1, 1, 2], which add up to 4",
        ),
    ],
)
def test_wrong_arguments(check: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        check()
    assert str(raised.value).startswith("gather on rank 6: ")
    assert words in str(raised.value)


def test_splits_are_elements() -> None:
    arguments.divides(CALLER, "x", torch.zeros(3, 2))
    arguments.divides(CALLER, "x", torch.zeros(0, 2))
    assert arguments.splits(CALLER, "s", [0, 2, 1], torch.zeros(3, 2), "x") == [0, 4, 2]
    assert arguments.splits(CALLER, "s", [0, 0, 0], torch.zeros(0, 2), "x") == [0, 0, 0]


@pytest.mark.parametrize(
    ("tensor", "overlaps"),
    [
        (torch.zeros(4, 4).t(), False),
        (torch.zeros(8)[::2], False),
        (torch.zeros(1).expand(3), True),
        (torch.zeros(0).expand(3, 0), False),
        (torch.zeros(9).as_strided((3, 3), (2, 1)), True),
        (torch.zeros(9).as_strided((2, 2), (3, 4)), False),  # no dimension steps over the other
        (torch.zeros(9).as_strided((3, 2), (2, 3)), False),
        (torch.zeros(9).as_strided((4, 2), (1, 3)), True),
    ],
)
def test_overlap(tensor: torch.Tensor, overlaps: bool) -> None:
    assert torch_private.overlaps_itself(tensor) is overlaps


def test_staging_copies_only_what_it_must() -> None:
    plain, gapped = torch.arange(4.0), torch.arange(8.0)[::2]
    copies = staging.Staging()
    assert copies.take(plain, True, True) is plain
    assert not copies._copies
    leaf = torch.zeros(2, requires_grad=True)
    assert copies.take(leaf, True, True).data_ptr() == leaf.data_ptr()
    scratch = copies.take(gapped, True, True)

    def body(_net: object) -> None:
        assert torch.equal(scratch, gapped)
        scratch.add_(1)

    copies.around(body)(None)
    assert gapped.tolist() == [1, 3, 5, 7]


def test_texts() -> None:
    f32 = torch.float32
    assert call_text.reducing("all_reduce", 0, f32, 1024) == "all_reduce(sum, float32[1024])"
    assert call_text.rooted("broadcast", "src", 0, f32, 12) == "broadcast(src=0, float32[12])"
    assert call_text.reducing_to(3, 0, f32, 5) == "reduce(dst=3, sum, float32[5])"
    assert call_text.uncounted("all_to_all_single", f32) == "all_to_all_single(float32)"
    assert call_text.of_list("all_gather", None, f32, [5, 3]) == "all_gather(float32[5, 3])"
    assert call_text.message("send", 1, 7, "float32[4]") == "send(dst=1, float32[4], tag=7)"
    assert call_text.message("recv", None, 7, "float32[4]") == "recv(src=any, float32[4], tag=7)"
    facts = [(f32, 4), (f32, 4), (torch.int64, 1)]
    assert call_text.coalesced("c", 0, facts) == "c(sum, 2 x float32[4], int64[1])"
    many = call_text.coalesced("c", None, [(f32, n) for n in range(99)])
    other = call_text.coalesced("c", None, [(f32, n) for n in range(98)] + [(f32, 5)])
    assert "and 91 more" in many
    assert many != other
    assert len(many) < 200


def test_the_queue_keeps_the_order_of_calls() -> None:
    queue = CallQueue("test")
    ran: list[str] = []
    queue.enter()
    assert queue.pending == 1
    for name in "ab":
        queue.submit(lambda name=name: ran.append(name))  # type: ignore[misc]

    def call() -> None:
        queue.enter()
        ran.append("c")
        queue.leave()

    thread = threading.Thread(target=call)
    thread.start()
    while queue.pending < 4:
        pass
    queue.submit(lambda: ran.append("d"))
    assert not queue.drain(0.01)
    queue.leave()
    assert queue.drain(10)
    thread.join()
    assert ran == ["a", "b", "c", "d"]
    assert queue.pending == 0
    queue.stop()


def test_handles() -> None:
    works = [PendingWork("barrier()", [ONE], Callbacks("a group")) for _ in range(2)]
    joined = JoinedWork(works)
    future = joined.get_future()
    assert repr(works[0]) == "<PendingWork barrier(): pending>"
    assert not joined.is_completed()
    with pytest.raises(distcore.DeadlineExceeded, match=r"barrier\(\) is not complete"):
        joined.wait(torch_dist.default_pg_timeout * 1e-6)
    works[0].finish(None)
    assert works[0].get_future().wait() == [ONE]
    works[1].finish(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        joined.wait()
    with pytest.raises(RuntimeError, match="no"):
        future.wait()
    assert repr(joined) == "<JoinedWork: 2 of 2 done>"
    assert repr(works[1]) == "<PendingWork barrier(): failed>"
    assert FINISHED.wait()
    assert FINISHED.get_future().wait() == []


def test_torchs_names() -> None:
    assert distcore.all_reduce is torch_dist.all_reduce
    assert distcore.ReduceOp is torch_dist.ReduceOp
    assert distcore.rendezvous is torch_dist.rendezvous
    assert distcore.tensor.__name__ == "torch.distributed.tensor"
    assert distcore.algorithms.Join.__name__ == "Join"
    assert {"all_reduce", "DeviceMesh", "GroupFailed"} <= set(dir(distcore))
    with pytest.raises(AttributeError, match="nothing"):
        _ = distcore.nothing
    assert torch_dist.is_backend_available("tcp")


@pytest.fixture
def alone() -> Any:
    distcore.init_process_group("tcp", store=torch_dist.HashStore(), rank=0, world_size=1)
    yield distcore.group.WORLD
    distcore.destroy_process_group()


def test_calling_forms_of_torch(alone: Any) -> None:
    tensor = torch.ones(2)
    for call in (
        lambda: alone.allreduce(tensor),
        lambda: alone.allreduce([tensor], torch_dist.ReduceOp.MAX),
        lambda: alone.allreduce(tensor, op=torch_dist.ReduceOp.MAX),
        lambda: alone.broadcast(tensor, root=0),
        lambda: alone.broadcast(tensor, 0),
        lambda: alone.reduce(tensor, 0),
        lambda: alone.allgather([tensor], tensor),
        lambda: alone.allgather([[tensor]], [tensor]),
        lambda: alone._allgather_base(tensor, tensor),
        lambda: alone.gather([tensor], tensor, 0),
        lambda: alone.scatter(tensor, [tensor], 0),
        lambda: alone.reduce_scatter(tensor, [tensor]),
        lambda: alone._reduce_scatter_base(tensor, tensor),
        lambda: alone.alltoall([tensor], [tensor]),
        lambda: alone.alltoall_base(tensor, tensor, [], []),
        lambda: alone.barrier(),
    ):
        assert call().wait()
    assert torch.equal(tensor, torch.ones(2))
    assert alone.name() == "tcp"
    name = alone.group_name
    assert repr(alone) == f"<CoreGroup {name!r} (tcp, rank 0 of 1, 16 collectives)>"
