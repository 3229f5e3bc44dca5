"""How groups end: what becomes of calls that an abort cuts short, and of communicators that wait
for each other, or for a CUDA graph."""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distcore.errors import DeadlineExceeded, GroupFailed
from distcore.nccl.communicators import Comm, abort_all, close_all
from distcore.nccl.library import Library
from tests.support.fake_nccl import core
from tests.support.fake_nccl.recording import FakeClock, SilentCommunicator
from tests.unit.distcore.nccl.test_engine import Case, asynchronous

LIMIT_S = 20.0


class Members:
    """Communicators whose calls are taken down in one list."""

    def __init__(self, count: int) -> None:
        self.log: list[str] = []
        fake = types.SimpleNamespace(
            **{name: getattr(core, name) for name in core.names()},
        )
        fake.group_start = lambda: self.log.append("group")
        fake.group_end = lambda: self.log.append("end")
        self.library = Library(fake)
        self.each = [
            Comm(self.library, self._communicator(number), f"group {number}", FakeClock())
            for number in range(count)
        ]

    def _communicator(self, number: int) -> Any:
        made = SilentCommunicator()
        for name in ("finalize", "destroy", "abort"):
            setattr(made, name, lambda name=name: self.log.append(f"{name} {number}"))
        return made


def launched(case: Case) -> Any:
    case.device.lanes.add("s1")
    work = case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))
    case.communicators[0].on_abort = case.device.aborted
    return work


def test_a_call_that_an_abort_cuts_short_is_not_over() -> None:
    """The abort brings its stream to the event behind it, as if it had ended well."""
    case = Case()
    work = launched(case)
    case.group._session.fail(DeadlineExceeded("broadcast() is not complete after 5 s"))
    assert case.communicators[0].ended == "aborted"
    assert work.reached()
    with pytest.raises(DeadlineExceeded, match="not complete after 5 s"):
        work.wait()
    assert isinstance(work.exception(), DeadlineExceeded)
    case.group.shutdown()


def test_a_call_that_was_over_before_is_over() -> None:
    case = Case()
    work = launched(case)
    case.device.reach(work.ended)
    case.group._session.fail(DeadlineExceeded("another one is not complete after 5 s"))
    assert work.wait()
    assert work.exception() is None
    case.group.shutdown()


def test_a_call_that_was_launched_while_the_group_failed_is_not_trusted() -> None:
    case = Case()
    launched(case)
    work = case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))
    life = case.group._session
    life.watch._pending.clear()
    life.fail(GroupFailed("rank 1 is gone", 1))
    life.watched("a lane", work)
    with pytest.raises(GroupFailed, match="rank 1 is gone"):
        work.wait()
    case.group.shutdown()


def test_waiters_hear_of_a_failure_though_the_abort_hangs() -> None:
    case = Case()
    work = launched(case)
    hangs, heard = threading.Event(), threading.Event()
    case.communicators[0].on_abort = lambda: heard.wait(LIMIT_S) or hangs.set()
    error = DeadlineExceeded("broadcast() is not complete after 5 s")
    failing = threading.Thread(target=lambda: case.group._session.fail(error))
    failing.start()
    work._pause_until(lambda: work._done, None, None)
    with pytest.raises(DeadlineExceeded):
        work.wait()
    heard.set()
    failing.join(LIMIT_S)
    assert not hangs.is_set()
    case.group.shutdown()


def test_communicators_are_aborted_in_one_group() -> None:
    """One by one, an abort would wait for a stream that waits for what is aborted next."""
    members = Members(2)
    abort_all(members.each, members.library)
    assert members.log == ["group", "abort 0", "abort 1", "end"]
    abort_all(members.each, members.library)  # nothing more
    assert len(members.log) == 4
    alone = Members(1)
    alone.each[0].abort()
    assert alone.log == ["abort 0"]


def test_all_communicators_are_finalized_before_one_is_waited_for() -> None:
    """The other ranks may have made them in another order."""
    members = Members(2)
    close_all(members.each, members.library)
    assert members.log == ["finalize 0", "finalize 1", "destroy 0", "destroy 1"]


def test_a_communicator_that_does_not_end_is_aborted_and_the_others_are_not() -> None:
    members = Members(2)
    members.each[0].communicator.results = [3]
    close_all(members.each, members.library)
    assert members.log == ["finalize 0", "finalize 1", "destroy 1", "abort 0"]


def test_what_a_graph_has_calls_of_is_left_to_the_process() -> None:
    """NCCL waits for the graph to go, for ever if need be."""
    members = Members(2)
    members.each[1].captured = True
    close_all(members.each, members.library)
    assert members.log == ["finalize 0", "destroy 0"]


def test_an_abort_does_not_wait_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distcore.nccl.communicators.STUCK_S", 0.05)
    members = Members(1)
    gone = threading.Event()
    members.each[0].captured = True
    members.each[0].communicator.abort = lambda: gone.wait(LIMIT_S) and members.log.append("over")
    abort_all(members.each, members.library)
    assert members.log == []
    gone.set()


def test_a_captured_call_marks_its_communicator() -> None:
    case = Case()
    case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))
    (member,) = case.group._session.members()
    assert not member.captured
    case.device.captures = True
    case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))
    case.device.captures = False
    assert member.captured
    case.group.shutdown()
    assert case.communicators[0].ended == ""


def test_a_split_that_fails_ends_the_group() -> None:
    case = Case()
    case.group.allreduce([torch.zeros(2)], asynchronous(dist.AllreduceOptions))
    case.communicators[0].results = [0]

    def refuses(*_args: Any) -> Any:
        raise core.NcclInvalid("in progress")

    case.communicators[0].split = refuses  # type: ignore[attr-defined]
    with pytest.raises(GroupFailed, match="NCCL refuses group 'g': NcclInvalid: in progress"):
        case.group.split_group([0, 1])
    assert case.communicators[0].ended == "aborted"
    case.group.shutdown()
