"""The calls that nobody has seen finish: dropped handles, calls of a GPU, lines that never wait."""

from __future__ import annotations

import _thread
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distdebug.rank.group import outstanding
from distdebug.rank.group.outstanding import Followed, UnwaitedWork
from distdebug.rank.group.tracked_work import TrackedWork, track
from distdebug.rank.process import heartbeat
from distdebug.rank.process.heartbeat import Heartbeat
from distdebug.rank.record import waiting
from distdebug.rank.replicas.check import is_due
from distdebug.record.layout import CallState
from distdebug.record.notes import UnwaitedWorkNote
from distdebug.record.ops import OP_CODES
from distdebug.record.snapshot import Call, Wait
from tests.unit.record.test_flight import ALIVE, Author, read


class Handle:
    pass


@pytest.fixture(autouse=True)
def nothing_before() -> Iterator[None]:
    outstanding.forget()
    yield
    outstanding.forget()


def call(number: int, complete: bool) -> Handle:
    handle: Any = Handle()
    work = SimpleNamespace(is_completed=lambda: complete)
    outstanding.watch(handle, number, work)
    return handle


def test_dropped_unfinished() -> None:
    handle = call(1, complete=False)
    finished = call(2, complete=True)
    over = call(3, complete=False)
    outstanding.remove(3)
    del handle, finished, over
    assert list(outstanding.unwaited) == [1]


def test_left_behind_by_an_exception() -> None:
    handle = call(1, complete=False)
    try:
        raise ValueError
    except ValueError:
        del handle
    assert not outstanding.unwaited


def test_dropped_by_a_thread_without_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of C++ has no code of the program to blame."""
    errors: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    done = threading.Event()
    last = Handle()
    told = weakref.ref(last, lambda _: done.set())
    handles = [last, call(1, complete=False)]
    del last
    _thread.start_new_thread(handles.clear, ())  # from the end
    assert done.wait(30)
    assert told() is None
    assert not errors
    assert not outstanding.unwaited


def test_coalesced() -> None:
    outstanding.gather()
    handle = call(1, complete=False)
    del handle
    assert outstanding.gathered(lambda: 7, None, ()) == 7
    assert not outstanding.unwaited
    handle = call(2, complete=False)
    del handle
    assert list(outstanding.unwaited) == [2]


def test_never_looked_at() -> None:
    handles: list[Any] = [call(1, complete=False), call(2, complete=True), call(3, complete=False)]
    outstanding.awaited[3] = handles[2]
    assert outstanding.pending() == [1]


@pytest.mark.parametrize("every", [1, 2, 7])
@pytest.mark.parametrize("stride", [1, 2, 3, 5, 10])
def test_moments_are_picked_evenly(every: int, stride: int) -> None:
    """Whatever the number of collectives between two steps."""
    picked = [step for step in range(700) if is_due(5 + step * stride, every)]
    assert 0.9 * 700 / every <= len(picked) <= 1.1 * 700 / every
    gaps = [after - before for before, after in pairwise(picked)]
    assert max(gaps) <= 6 * every


class Work:
    """Of a backend on a GPU: waiting for it returns at once."""

    def __init__(self, span: tuple[int, int] | None = None) -> None:
        self.over = False
        self.error: BaseException | None = None
        self.span = span
        self.waits = 0

    def is_completed(self) -> bool:
        return self.over

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.waits += 1
        return True

    def synchronize(self) -> None:
        self.waits += 1

    def exception(self) -> BaseException | None:
        return self.error


class TimedWork(Work):
    """distcore's: it knows when it ran."""

    def times_ns(self) -> tuple[int, int] | None:
        return self.span


class TorchWork(Work):
    """torch's: it knows how long it took."""

    def _get_duration(self) -> float:
        return 250.0


class Case:
    def __init__(self, path: Path) -> None:
        self.author = Author(path)
        self.recorder: Any = SimpleNamespace(
            writer=self.author.writer,
            site=lambda _frame, of_another=False: self.author.site,
            sites={},
            waits=waiting.BackendWaits(waiting.NoVerdict()),
            failed=lambda _number, _error: None,
        )

    def track(self, work: Work, streams: bool = True) -> TrackedWork:
        number, thread = self.author.call()
        known: Any = SimpleNamespace(
            streams=streams,
            plain=not streams,
            took=None,
            wait=waiting.whole,
            counted=self.author.group,
        )
        tracked = track(work, self.recorder, number, known)
        self.author.writer.hand_over(number, thread)
        return tracked

    def call(self, number: int = 0) -> Call:
        call = read(self.author).call(number)
        assert call is not None
        return call

    @property
    def completed(self) -> int:
        return int(self.call().completed_ns > 0 and self.call().state is CallState.COMPLETED)


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    outstanding.forget()
    yield Case(tmp_path / "0.flight")
    outstanding.forget()


@pytest.mark.parametrize("how", ["wait", "synchronize"])
def test_a_call_is_over_when_its_stream_has_come(case: Case, how: str) -> None:
    work = Work()
    tracked = case.track(work)
    getattr(tracked, how)()
    outstanding.poll_streams()
    assert (case.call().state, case.completed) == (CallState.STARTED, 0)
    assert outstanding.oldest() == 0
    work.over = True
    outstanding.poll_streams()
    assert (case.call().state, case.completed) == (CallState.COMPLETED, 1)
    outstanding.poll_streams()
    assert case.completed == 1
    assert outstanding.oldest() is None


def test_on_the_cpu_a_wait_is_the_end(case: Case) -> None:
    work = Work()  # not asked: the wait would not have returned
    case.track(work, streams=False).wait()
    assert (case.call().state, case.completed) == (CallState.COMPLETED, 1)


def test_a_handle_that_was_waited_for_may_be_dropped(case: Case) -> None:
    work = Work()
    case.track(work).wait()
    assert not outstanding.unwaited
    case.track(Work())  # never waited for: its twin
    assert list(outstanding.unwaited) == [1]


def test_the_backends_own_times_go_on_record(case: Case) -> None:
    work = TimedWork()
    case.track(work).wait()
    offset = read(case.author).wall_offset_ns
    issued_ns = case.call().issued_ns - offset
    work.over = True
    outstanding.poll_streams()  # the backend has not seen it yet
    assert case.completed == 0
    work.span = (issued_ns + 1_000, issued_ns + 5_000)
    outstanding.poll_streams()
    call = case.call()
    assert (call.started_ns - call.issued_ns, call.completed_ns - call.issued_ns) == (1_000, 5_000)


def test_times_that_the_backend_never_tells_hold_nothing_up(case: Case) -> None:
    work = TimedWork()
    case.track(work).wait()
    work.over = True
    outstanding.poll_streams()
    outstanding.poll_streams()
    assert case.completed == 1


def test_torchs_duration_goes_on_record(case: Case) -> None:
    work = TorchWork()
    case.track(work).wait()
    work.over = True
    outstanding.poll_streams()
    call = case.call()
    assert call.completed_ns - call.started_ns == 250_000_000


def test_a_handle_that_is_only_asked_tells_the_times_as_well(case: Case) -> None:
    work = TimedWork()
    tracked = case.track(work)
    issued_ns = case.call().issued_ns - read(case.author).wall_offset_ns
    work.over, work.span = True, (issued_ns + 7, issued_ns + 8)
    assert tracked.is_completed()
    assert case.call().completed_ns - case.call().issued_ns == 8


def test_a_call_that_fails_on_its_stream(case: Case) -> None:
    work = Work()
    case.track(work).wait()
    work.over, work.error = True, RuntimeError("NCCL communicator was aborted")
    outstanding.poll_streams()
    assert (case.call().state, case.completed) == (CallState.FAILED, 0)


@pytest.mark.parametrize("value", [0, 2])
def test_what_came_of_a_call_of_nccl(value: int) -> None:
    """torch's future of it was done when the call was queued; another one has its result."""

    class OfNccl(torch.distributed.Work):
        def get_future(self) -> Any:
            return SimpleNamespace(done=lambda: True, value=lambda: None)

        def get_future_result(self) -> Any:
            return SimpleNamespace(done=lambda: True, value=lambda: value)

    assert (outstanding.failure_of(OfNccl(), streams=True) is not None) == bool(value)


def test_a_wait_on_a_thread_of_cpp(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd waits for DDP's calls on a thread of its own for each GPU, with no Python below."""
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    tracked = case.track(Work())
    _thread.start_new_thread(tracked.wait, ())
    until_s = time.monotonic() + 60
    while not raised and outstanding.oldest() is None and time.monotonic() < until_s:
        time.sleep(0.001)
    assert not raised
    assert outstanding.oldest() == 0


class Event:
    """Of a GPU's stream."""

    over = False

    def __init__(self, device: torch.device) -> None:
        pass

    def record(self, stream: Any) -> None:
        pass

    def query(self) -> bool:
        return self.over


@pytest.mark.parametrize("error", ["SUCCESS", "REMOTE_ERROR", None])
def test_a_call_whose_backend_hands_out_no_work(
    case: Case, monkeypatch: pytest.MonkeyPatch, error: str | None
) -> None:
    """torch's NCCL, where the program waits for the call itself."""
    backend = SimpleNamespace()
    if error is not None:
        backend.get_error = lambda: SimpleNamespace(name=error)
    inner = SimpleNamespace(_get_backend=lambda device: backend)
    given = ([torch.zeros(1)], object())
    assert outstanding.stream_end(inner, given) is None  # a CPU has no streams
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: None)
    end = outstanding.stream_end(inner, given)
    assert end is not None
    assert outstanding.goes_on(end)
    number, thread = case.author.call()
    outstanding.follow(Followed(case.recorder, case.author.group, number, end))
    case.author.writer.hand_over(number, thread)
    outstanding.poll_streams()
    assert (case.call().state, outstanding.oldest()) == (CallState.STARTED, 0)
    monkeypatch.setattr(Event, "over", True)
    outstanding.poll_streams()
    state = CallState.FAILED if error == "REMOTE_ERROR" else CallState.COMPLETED
    assert (case.call().state, outstanding.oldest()) == (state, None)


@pytest.mark.parametrize("streams", [True, False])
def test_a_call_of_which_only_a_future_is_waited_for(case: Case, streams: bool) -> None:
    """DDP's on torch's NCCL: its host waits for the GPU where it takes its own times."""
    tracked = case.track(Work(), streams=streams)
    outstanding.awaited[0] = tracked
    assert outstanding.oldest() == (0 if streams else None)


def test_a_gpu_that_cannot_be_asked(case: Case) -> None:
    work = Work()
    case.track(work).wait()

    def broken() -> bool:
        raise RuntimeError("CUDA error: unspecified launch failure")

    work.is_completed = broken  # type: ignore[method-assign]
    outstanding.poll_streams()
    assert case.call().state is CallState.FAILED


def test_what_the_gpu_is_not_through_with(case: Case) -> None:
    """Those under way and those that have failed; not those that are over, or never waited for."""
    over, fails, stays = Work(), Work(), Work()
    for work in (over, fails, stays):
        case.track(work).wait()
    kept = case.track(Work())
    over.over = True
    fails.over, fails.error = True, RuntimeError("NCCL communicator was aborted")
    outstanding.poll_streams()
    assert outstanding.unfinished() == (1, 2)
    stays.over = True
    outstanding.poll_streams()
    assert outstanding.unfinished() == (1,)
    assert not kept.is_completed()


def test_in_a_graph_a_wait_is_the_end(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outstanding, "capturing", lambda: True)
    case.track(Work()).wait()
    assert case.call().state is CallState.COMPLETED


class Still:
    """A heartbeat of a main thread whose instruction the test decides."""

    def __init__(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        self.case = case
        self.frame = SimpleNamespace(f_lasti=10, f_code=None)
        unwaited = UnwaitedWork(case.recorder)
        self.beats = Heartbeat(case.recorder, unwaited, lambda: None)
        frames = {threading.main_thread().ident: self.frame}
        monkeypatch.setattr(heartbeat.frames, "of_thread", frames.get)

    def beat(self, times: int) -> None:
        for _ in range(times):
            self.beats._infer_on_stream()

    def waits(self) -> list[Wait]:
        return list(read(self.case.author).view(ALIVE).waits)


def test_a_thread_that_stands_still_seems_to_wait_for_its_gpu(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    case.track(work).wait()
    still = Still(case, monkeypatch)
    still.beat(heartbeat._STILL_BEATS)
    assert still.waits() == []
    still.beat(1)
    (wait,) = still.waits()
    assert (wait.call, wait.inferred, wait.guessed) == (0, True, True)
    work.over = True
    outstanding.poll_streams()
    still.beat(1)
    assert still.waits() == []


def test_a_thread_that_moves_waits_for_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.track(Work()).wait()
    still = Still(case, monkeypatch)
    for _ in range(3 * heartbeat._STILL_BEATS):
        still.frame.f_lasti += 2
        still.beat(1)
    assert still.waits() == []


class FailingWork(Work):
    """Complete once its wait has failed, as gloo's; somebody looks at it just then."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.over, self.error = True, RuntimeError("connection closed")
        outstanding.poll()
        raise self.error


def test_a_wait_that_fails_is_not_taken_for_the_end_by_who_looks_meanwhile(case: Case) -> None:
    tracked = case.track(FailingWork(), streams=False)
    with pytest.raises(RuntimeError, match="connection closed"):
        tracked.wait()
    assert (case.call().state, case.completed) == (CallState.FAILED, 0)


@pytest.mark.parametrize("fails", [True, False])
def test_a_call_that_ends_while_nobody_waits(case: Case, fails: bool) -> None:
    work = Work()
    tracked = case.track(work, streams=False)
    outstanding.poll()
    assert case.call().state is CallState.STARTED
    work.over, work.error = True, RuntimeError("connection closed") if fails else None
    outstanding.poll()
    assert case.call().state is (CallState.FAILED if fails else CallState.COMPLETED)
    assert case.completed == int(not fails)
    assert tracked.is_completed()


class Rank:
    """Stands for the recorder of a rank, whose calls are all made at line 3."""

    def __init__(self) -> None:
        self.writer = self
        self.ops: dict[int, str] = {}
        self.notes: list[tuple[str, int, bool]] = []

    def call(self, op: str) -> Handle:
        """A call that never says it is complete."""
        number = len(self.ops)
        self.ops[number] = op
        handle: Any = Handle()
        work = SimpleNamespace(is_completed=lambda: False)
        outstanding.watch(handle, number, work)
        return handle

    def call_at(self, number: int) -> tuple[int, int]:
        return OP_CODES[self.ops[number]], 3

    def group_of(self, number: int) -> tuple[int, bool]:
        return 7, self.ops[number] in ("send", "recv")

    def function_of(self, _site: int) -> tuple[str, str]:
        return "train.py", "step"

    def note(self, note: UnwaitedWorkNote, _message: str, _site: int) -> None:
        self.notes.append((note.op, note.count, note.kept))


@pytest.fixture
def rank() -> Iterator[Rank]:
    outstanding.forget()
    yield Rank()
    outstanding.forget()


@pytest.fixture
def unwaited(rank: Rank) -> UnwaitedWork:
    recorder: Any = rank
    return UnwaitedWork(recorder)


def test_kept_to_the_end(rank: Rank, unwaited: UnwaitedWork) -> None:
    """A message may have arrived: its handle does not tell."""
    kept = [rank.call("send"), rank.call("all_reduce"), rank.call("recv")]
    unwaited.last_report(ended_well=True)
    assert rank.notes == [("all_reduce", 1, True)]
    assert len(kept) == 3


def test_dropped(rank: Rank, unwaited: UnwaitedWork) -> None:
    for op in ("send", "send", "all_reduce"):
        handle = rank.call(op)
        del handle
    unwaited.report()
    assert sorted(rank.notes) == [("all_reduce", 1, False), ("send", 2, False)]


def test_a_barrier_completes_what_was_dropped_before(rank: Rank, unwaited: UnwaitedWork) -> None:
    """On groups whose barrier waits for all calls before it; what is dropped later counts."""
    outstanding.barriers[7] = {}
    for op in ("all_reduce", "send", "broadcast"):
        handle = rank.call(op)
        del handle
    unwaited.report()
    assert rank.notes == [("send", 1, False)]
    outstanding.barriers[7] = {("train.py", "another"): 4, ("train.py", "step"): 3}
    rank.ops[3] = "barrier"
    handle = rank.call("all_reduce")
    del handle
    unwaited.report()
    assert len(rank.notes) == 1
    unwaited.report(over=True)
    assert rank.notes[1:] == [("all_reduce", 1, False)]


def test_what_nobody_need_wait_for(rank: Rank, unwaited: UnwaitedWork) -> None:
    handle = rank.call("all_reduce")
    vars(handle)["_number"] = 0
    outstanding.keep(handle)
    del handle
    unwaited.last_report(ended_well=True)
    assert rank.notes == []
