"""How communicators come to be and end, with a fake clock and communicators that never answer."""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest
import torch.distributed as dist

from distcore.base.deadline import Deadline
from distcore.errors import Aborted, DeadlineExceeded, GroupFailed, PeerLost, RendezvousError
from distcore.nccl.communicators import Comm, Connector, close_all
from distcore.nccl.library import Library
from tests.support.fake_nccl import core
from tests.support.fake_nccl.recording import FakeClock, SilentCommunicator

RANKS = (4, 5, 7)


class Case:
    def __init__(self, results: list[int] | None = None) -> None:
        self.clock = FakeClock()
        self.communicator = SilentCommunicator(results)
        self.started: list[Any] = []
        self.store: Any = dist.HashStore()
        fake = types.SimpleNamespace(**{name: getattr(core, name) for name in core.names()})
        fake.Communicator = types.SimpleNamespace(init=self.init)
        self.library = Library(fake)
        self.connector = Connector(self.library, self.store, self.clock)
        self.check: Any = lambda: None

    def init(self, nranks: int, rank: int, unique_id: Any, config: Any) -> Any:
        self.started.append((nranks, rank, bytes(unique_id), config.blocking, config.comm_name))
        return self.communicator

    def deadline(self, limit_s: float) -> Deadline:
        made = Deadline(self.clock.now_s + limit_s)
        made.began, made.limit_s = self.clock.now_s, limit_s
        return made

    def connect(self, rank: int, limit_s: float = 30.0) -> Comm:
        deadline = self.deadline(limit_s)
        return self.connector.connect("k", "group 'g'", RANKS, rank, deadline, lambda: self.check())


def test_the_id_travels_over_the_store() -> None:
    case = Case([7, 7, 0])
    case.connect(0)
    unique_id = case.store.get("k/id")
    case.connect(2)
    assert case.started == [(3, 0, unique_id, False, None), (3, 2, unique_id, False, None)]


def test_who_did_not_come_is_named() -> None:
    case = Case([7])
    case.store.set("k/1", "")
    with pytest.raises(RendezvousError) as caught:
        case.connect(0)
    assert str(caught.value) == "group 'g': no communicator within 30 s: rank 7 did not come"
    assert case.communicator.ended == "aborted"


def test_the_first_rank_that_does_not_come_is_named() -> None:
    case = Case()
    with pytest.raises(RendezvousError, match=r"rank 4 did not come$"):
        case.connect(1)
    assert case.started == []


def test_all_came_and_nccl_does_not_connect_them() -> None:
    case = Case([7])
    for rank in (1, 2):
        case.store.set(f"k/{rank}", "")
    with pytest.raises(RendezvousError, match=r"all ranks came.*NCCL_DEBUG=INFO"):
        case.connect(0)


def test_connecting_ends_when_the_group_is_aborted() -> None:
    case = Case([7])

    def check() -> None:
        if case.clock.now_s > 1002:
            raise Aborted("abort() was called")

    case.check = check
    with pytest.raises(Aborted):
        case.connect(0)
    assert case.clock.now_s < 1003
    assert case.communicator.ended == "aborted"


def test_nccls_own_errors_have_our_types() -> None:
    for code, kind in ((6, PeerLost), (8, DeadlineExceeded), (3, GroupFailed)):
        case = Case([7, code])
        with pytest.raises(kind, match=f"NCCL says of group 'g': fake result {code}"):
            case.connect(0)
        assert case.communicator.ended == "aborted"


def test_a_call_that_nccl_does_not_take_in_time() -> None:
    case = Case([0])
    member = case.connect(0)
    case.communicator.results = [7]
    with pytest.raises(DeadlineExceeded, match=r"^broadcast\(\) was not taken by NCCL within 5 s"):
        member.settle(case.deadline(5), lambda: None, "broadcast()")


def test_the_end_waits_for_the_others_and_then_no_longer() -> None:
    case = Case([0])
    member = case.connect(0)
    close_all([member], case.library)
    assert (case.communicator.calls, case.communicator.ended) == (["finalize"], "destroyed")
    member.abort()  # nothing more
    assert case.communicator.ended == "destroyed"

    case = Case([0])
    member = case.connect(0)
    case.communicator.results = [7]
    began_s = case.clock.now_s
    member._clock.now_s = began_s  # type: ignore[attr-defined]
    close_all([member], case.library)
    assert case.communicator.ended == "aborted"


def test_an_ended_communicator_has_no_errors_any_more() -> None:
    case = Case([0])
    member = case.connect(0)
    case.communicator.results = [3]
    assert isinstance(member.error(), GroupFailed)
    member.abort()
    assert member.error() is None


def test_what_nccl_refuses_at_once_is_our_error() -> None:
    case = Case()

    def refuses(*_args: Any) -> Any:
        raise core.NcclInvalid("NCCL_ERROR (5): ncclInvalidUsage")

    case.init = refuses  # type: ignore[method-assign]
    case.library.core.Communicator.init = refuses
    with pytest.raises(GroupFailed, match=r"^NCCL refuses group 'g': NcclInvalid: NCCL_ERROR"):
        case.connect(0)


def test_nothing_is_asked_of_a_communicator_while_another_thread_splits_it() -> None:
    case = Case([0])
    member = case.connect(0)
    held: list[bool] = []

    def split(*_args: Any) -> Any:
        thread = threading.Thread(target=lambda: held.append(not member.calling.acquire(False)))
        thread.start()
        thread.join()
        return SilentCommunicator()

    case.communicator.split = split  # type: ignore[attr-defined]
    made = case.connector.split(member, 0, 0, "half", case.deadline(5), lambda: None)
    assert made is not None
    assert held == [True]
