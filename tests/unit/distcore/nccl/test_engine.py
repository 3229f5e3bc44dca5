"""The engine of one rank on CUDA and NCCL that only take down what is asked of them."""

from __future__ import annotations

import types
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distcore.engine.staging import GPU_ONLY
from distcore.errors import Aborted, GroupFailed
from distcore.groups.process_group import CoreGroup, Origin
from distcore.nccl.backend import NcclBackend
from distcore.nccl.library import Library
from tests.support.fake_nccl import core
from tests.support.fake_nccl.backend import FakeNcclBackend
from tests.support.fake_nccl.recording import RecordingDevice, SilentCommunicator


class Case:
    """Rank 0 of three; the others have come, and do nothing."""

    def __init__(self, **backend: Any) -> None:
        self.communicators: list[SilentCommunicator] = []
        self.device = RecordingDevice()
        self.store: Any = dist.HashStore()
        fake = types.SimpleNamespace(**{name: getattr(core, name) for name in core.names()})
        fake.Communicator = types.SimpleNamespace(init=self.init)
        kind = backend.pop("kind", FakeNcclBackend)
        self.backend = kind(load=lambda: Library(fake), device=self.device, **backend)
        self.group: Any = self.make()

    def make(self, rank: int = 0) -> CoreGroup:
        origin = Origin("distcore_nccl", self.store, (0, 1, 2), rank, "g", timedelta(seconds=60))
        return self.backend.create(origin, CoreGroup)  # type: ignore[no-any-return]

    def init(self, *_args: Any) -> SilentCommunicator:
        self.communicators.append(SilentCommunicator())
        return self.communicators[-1]


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    yield made
    made.group.abort()
    made.group.shutdown()


def asynchronous(kind: Any) -> Any:
    options = kind()
    options.asyncOp = True
    return options


def test_the_communicator_is_made_by_the_first_call_and_used_by_all(case: Case) -> None:
    assert case.communicators == []
    for _ in range(3):
        case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))
    assert [one.calls for one in case.communicators] == [["allreduce"] * 3]


def test_a_device_named_for_the_group_connects_it_at_once(case: Case) -> None:
    case.group.eager_connect_single_device(torch.device("cpu", 0))
    assert len(case.communicators) == 1
    case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))
    assert len(case.communicators) == 1


def test_abort_ends_what_is_on_the_stream_and_what_comes(case: Case) -> None:
    case.device.lanes.add("s1")
    tensor = torch.zeros(2)
    work = case.group.allreduce([tensor], asynchronous(dist.AllreduceOptions))
    case.device.at_once = lambda _stream: False  # type: ignore[method-assign]
    case.group.abort()
    assert case.communicators[0].ended == "aborted"
    with pytest.raises(Aborted, match="rank 0 called abort"):
        work.wait()
    with pytest.raises(GroupFailed, match=r"group 'g' \(global ranks \[0, 1, 2\]\) cannot be used"):
        case.group.allreduce([tensor])


def test_what_fails_on_one_rank_is_told_to_the_others_once(case: Case) -> None:
    other: Any = Case.make(case, rank=1)
    other.abort()
    assert case.group._session._said_by_peers().culprit == 1
    case.group._session.watch.look(1e9)
    error = case.group._session.failure
    assert str(error).startswith("rank 1 gave up group 'g' (rank 0): Aborted: group 'g' was")
    # The first rank's words stand; those of this one are a consequence.
    assert b'"by": 1' in case.store.get("nccl/g/1/failed")
    other.shutdown()


def test_groups_of_one_name_do_not_see_each_others_ends(case: Case) -> None:
    case.group.abort()
    again: Any = case.make()
    assert again._session.token == "2"
    assert again._session._said_by_peers() is None
    again.shutdown()


def test_a_call_that_cannot_be_launched_ends_the_group(case: Case) -> None:
    case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))

    def refuses(*_args: Any, **_kwargs: Any) -> None:
        raise core.NcclInvalid("sendbuf is on device 1")

    case.communicators[0].broadcast = refuses  # type: ignore[attr-defined]
    with pytest.raises(GroupFailed, match="could not be launched: NcclInvalid: sendbuf is on dev"):
        case.group.broadcast([torch.zeros(2)], dist.BroadcastOptions())
    assert case.communicators[0].ended == "aborted"


def test_wrong_arguments_leave_the_group_as_it_is(case: Case) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    with pytest.raises(TypeError, match=r"distcore_nccl cannot reduce \S+complex64 with MAX"):
        case.group.allreduce([torch.zeros(2, dtype=torch.complex64)], options)
    with pytest.raises(TypeError, match=r"needs compute capability 9.0.*has 8.0"):
        case.group.allreduce([torch.zeros(2, dtype=torch.float8_e5m2)], dist.AllreduceOptions())
    assert case.group._session.failure is None


def test_sparse_tensors_are_refused(case: Case) -> None:
    sparse = torch.zeros(2).to_sparse()
    with pytest.raises(TypeError, match="backend distcore_nccl takes dense tensors only"):
        case.group.allreduce([sparse], dist.AllreduceOptions())


CPU_CALLS = [
    ("tensor", lambda group, one: group.allreduce([one])),
    ("tensor", lambda group, one: group.broadcast([one], dist.BroadcastOptions())),
    (r"tensor_list\[0\]", lambda group, one: group.allgather([[one] * 3], [one])),
    ("output", lambda group, one: group._allgather_base(torch.zeros(3), one)),
    ("tensor", lambda group, one: group.send([one], 1, 0)),
    (r"output_tensor_list\[0\]", lambda group, one: group.alltoall([one] * 3, [one] * 3)),
]


@pytest.mark.parametrize(("argument", "call"), CPU_CALLS)
def test_a_cpu_tensor_is_named(argument: str, call: Any) -> None:
    case = Case(kind=NcclBackend, reach=GPU_ONLY)
    with pytest.raises(
        ValueError,
        match=rf"on rank 0: {argument}: expected a tensor on a CUDA device, given one on cpu",
    ):
        call(case.group, torch.zeros(1))
    assert case.communicators == []
    case.group.shutdown()


def test_the_first_call_cannot_be_part_of_a_graph_but_later_ones_can(case: Case) -> None:
    case.device.captures = True
    with pytest.raises(RuntimeError, match="its first call cannot be captured into a CUDA graph"):
        case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))
    case.device.captures = False
    case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))
    case.device.captures = True
    work = case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))
    assert work.captured
    assert work.wait()
    with pytest.raises(RuntimeError, match="waits on the host, which a CUDA graph cannot capture"):
        case.group.barrier()
    with pytest.raises(RuntimeError, match="the first message on its way cannot be captured"):
        case.group.send([torch.zeros(2)], 1, 0)
    with pytest.raises(RuntimeError, match="from any source cannot be captured"):
        case.group.recv_anysource([torch.zeros(2)], 0)
    case.device.captures = False
    assert case.group._session.failure is None


def test_where_the_watchdog_would_disturb_a_capture_it_is_refused(case: Case) -> None:
    case.device.watches = lambda: False  # type: ignore[method-assign]
    case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))
    case.device.captures = True
    with pytest.raises(RuntimeError, match=r"all_reduce\(.*cannot be captured .* cuda-bindings"):
        case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))
    case.device.captures = False
    case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))


def test_a_batch_is_one_group_of_nccls(case: Case) -> None:
    a, b = torch.zeros(2), torch.zeros(2)
    case.group._start_coalescing(torch.device("cpu"))
    parts = [case.group.send([a], 1, 3), case.group.recv([b], 2, 3)]
    assert case.communicators == []
    whole = case.group._end_coalescing(torch.device("cpu"))
    assert case.communicators[0].calls == ["send", "recv"]
    assert whole.text == "send(dst=1, float32[2], tag=3) and 1 more"
    for part in parts:
        assert part.wait()
    case.group._start_coalescing(torch.device("cpu"))
    with pytest.raises(ValueError, match="must know the source"):
        case.group.recv_anysource([b], 3)
    assert case.group._end_coalescing(torch.device("cpu")).is_completed()


def test_tensors_of_two_devices_in_one_call(case: Case) -> None:
    pair = [torch.zeros(1), torch.zeros(1)]
    case.group._engine._index_of = lambda tensor: int(tensor is pair[1])
    with pytest.raises(ValueError, match="expected tensors on one device, given some on cpu:0 and"):
        case.group.allreduce_coalesced(pair, dist.AllreduceCoalescedOptions())


def test_a_forked_child_cannot_use_it(case: Case) -> None:
    child: Any = Case.make(case, rank=2)
    child._session.abandon()
    with pytest.raises(GroupFailed, match="is the parent process's: CUDA does not fork"):
        child.allreduce([torch.zeros(1)])
