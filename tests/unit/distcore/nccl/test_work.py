"""What happens around a call on its stream, and what its handle makes of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch

from distcore.base.deadline import Deadline
from distcore.errors import DeadlineExceeded, GroupFailed
from distcore.nccl.library import Broadcast
from distcore.nccl.plan import Batch
from distcore.nccl.work import GatheredWork, StreamLane, StreamWork
from tests.support.fake_nccl.recording import RecordingDevice

TEXT = "broadcast(src=0, float32[1])"


class Case:
    def __init__(self, **work: Any) -> None:
        self.device = RecordingDevice()
        self.lane = StreamLane(self.device, 0)
        self.device.lanes.add("s1")
        self.tensor = torch.zeros(1)
        deadline = Deadline.after(60.0)
        self.work = StreamWork(TEXT, [self.tensor], self.device, 0, deadline, **work)

    def launch(self) -> StreamWork:
        def issue(stream: int, transfers: Any) -> None:
            self.device.log.append(f"{len(transfers)} transfers on {stream}")

        plan = [Batch([Broadcast(self.tensor, 0)], [lambda: self.device.log.append("copy back")])]
        self.lane.launch(self.work, lambda: plan, issue, [self.tensor])
        return self.work


def test_a_call_runs_after_the_callers_stream_and_between_two_timed_events() -> None:
    case = Case()
    case.launch()
    assert case.device.log == [
        "e1 on caller's",
        "s1 waits for e1",
        "on s1",
        "e2 on s1",
        "1 transfers on 77",
        "copy back",
        "e3 on s1",
        "off s1",
    ]
    assert [event.timed for event in case.device.events] == [False, True, True]
    assert case.device.kept == [case.tensor.data_ptr()]


def test_waiting_makes_the_callers_stream_wait_and_not_the_host() -> None:
    case = Case()
    work = case.launch()
    assert not work.is_completed()
    del case.device.log[:]
    assert work.wait()  # though the call has not ended
    assert case.device.log == ["caller's waits for e3"]
    assert repr(work) == f"<StreamWork {TEXT}: on its stream>"
    assert not work.is_success()
    case.device.reach(work.started)
    case.device.reach(work.ended, 0.25)
    assert work.is_completed()
    assert work.is_success()
    assert work._get_duration() == pytest.approx(250)
    assert repr(work) == f"<StreamWork {TEXT}: done>"


def test_a_duration_is_not_made_up() -> None:
    work = Case().launch()
    with pytest.raises(RuntimeError, match="is not complete: it has no duration yet"):
        work._get_duration()


def test_a_time_limit_is_kept_by_the_host() -> None:
    case = Case()
    work = case.launch()
    with pytest.raises(DeadlineExceeded, match=r"^broadcast.* not complete after the 0.05 s given"):
        work.wait(timedelta(seconds=0.05))
    case.device.reach(work.ended)
    assert work.wait(timedelta(seconds=0.05))


def test_a_barrier_blocks_the_host_until_the_stream_has_come() -> None:
    case = Case(blocks=True)
    work = case.launch()
    with pytest.raises(DeadlineExceeded):
        work.wait(timedelta(milliseconds=10))
    asked = []

    def query() -> bool:
        asked.append(1)
        return len(asked) > 3

    work.ended.query = query
    assert work.wait()
    assert len(asked) == 4


def test_a_failure_reaches_who_waits_and_who_asks() -> None:
    case = Case()
    work = case.launch()
    ended = []
    work.on_end(lambda: ended.append(1))
    error = GroupFailed("rank 3 is gone", 3)
    work.finish(error)
    work.finish(None)  # too late
    for _ in range(2):
        with pytest.raises(GroupFailed, match="rank 3 is gone") as caught:
            work.wait()
        assert caught.value is not error
        assert caught.value.culprit == 3
    assert work.exception() is error
    assert work.is_completed()
    assert not work.is_success()
    assert ended == [1]
    with pytest.raises(Exception, match="rank 3 is gone"):
        work.get_future().wait()


def test_a_future_is_complete_on_the_calls_stream() -> None:
    case = Case()
    work = case.launch()
    del case.device.log[:]
    assert work.get_future().value()[0] is case.tensor
    assert case.device.log == ["on s1", "off s1"]


def test_a_plan_that_fails_leaves_the_memory_to_the_stream() -> None:
    case = Case()

    def fails() -> Any:
        raise MemoryError("no room for a copy")

    with pytest.raises(MemoryError):
        case.lane.launch(case.work, fails, lambda *_: None, [case.tensor])
    assert case.device.log[-2:] == ["e2 on s1", "e3 on s1"]
    assert case.device.kept == [case.tensor.data_ptr()]


def test_in_a_graph_nothing_is_timed_or_asked() -> None:
    case = Case()
    case.device.captures = True
    work = case.launch()
    assert work.captured
    assert [event.timed for event in case.device.events] == [False, False, False]
    work.ended.query = lambda: pytest.fail("an event of a graph was asked")
    assert work.is_completed()
    assert work.wait()  # joins the capturing stream
    assert case.device.log[-1] == "caller's waits for e3"


def test_a_part_of_a_batch_is_waited_for_as_the_whole() -> None:
    case = Case()
    part = GatheredWork("send(dst=1, float32[1], tag=0)", case.device, 0)
    future = part.get_future()
    assert not part.is_completed()
    with pytest.raises(RuntimeError, match="part of a group of calls that is not launched yet"):
        part.wait()
    work = case.launch()
    part.part_of(work)
    assert part.wait()
    assert future.done()
    assert not part.is_completed()
    case.device.reach(work.ended)
    assert part.is_completed()
