"""Which memory a call writes, and which operators look at it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from distdebug.rank.checks import in_flight, memory_layout
from distdebug.rank.checks.memory_layout import MemoryLayout
from distdebug.rank.record.describe import tensors_in
from distdebug.rank.record.recorder import Recorder
from distdebug.rank.torch_private import operator_calls
from distdebug.record.signature import Signature


class Handle:
    """Of a call that the program has not waited for."""

    holds = True
    number = 0

    def poll(self) -> bool:
        return False


def call(root: int | None = None, rank: int = 0) -> tuple[Any, Any]:
    """A group's record, and what is known of a call."""
    known = SimpleNamespace(text=Signature(op="broadcast", tensors=(), root=root).to_json())
    slot = SimpleNamespace(issued=1)
    return SimpleNamespace(ranks=(0, 1), group_rank=rank, slot=slot), known


def ranges(*tensors: Tensor) -> list[tuple[int, int]]:
    return [(one.data_ptr(), one.data_ptr() + one.nbytes) for one in tensors]


T, OUT, OTHER = torch.ones(8), torch.ones(16), torch.ones(8)


@pytest.mark.parametrize(
    ("method", "args", "root", "expected"),
    [
        ("allreduce", ([T],), None, ranges(T)),
        ("allreduce_coalesced", ([T, OTHER],), None, ranges(T, OTHER)),
        ("recv", ([T], 1, 0), None, ranges(T)),
        ("send", ([T], 1, 0), None, []),
        ("broadcast", ([T],), 0, []),
        ("broadcast", ([T],), 1, ranges(T)),
        ("reduce", ([T],), 0, ranges(T)),
        ("reduce", ([T],), 1, []),
        ("_allgather_base", (OUT, T), None, ranges(OUT)),
        ("_allgather_base", (OUT, OUT[:8]), None, []),
        ("allgather", ([[T, OTHER]], [T]), None, ranges(OTHER)),
        ("reduce_scatter", ([T], [[OUT]]), None, ranges(T)),
        ("gather", ([], [T]), 1, []),
        ("barrier", (), None, []),
        ("allreduce", ([OUT[::2]],), None, []),
        ("allreduce", ([torch.empty(0)],), None, []),
        ("allreduce", ([torch.ones(2, device="meta")],), None, []),
    ],
)
def test_what_a_call_writes(
    method: str, args: tuple[Any, ...], root: int | None, expected: list[tuple[int, int]]
) -> None:
    assert in_flight.written(method, args, *call(root)) == expected


def looked_at(function: Any) -> list[tuple[int, str]]:
    """The tensors that operators look at, each by its address, and what is done to it."""
    found: list[tuple[int, str]] = []

    def look(operator: Any, args: Any, kwargs: Any) -> None:
        for given, how, _ in operator_calls.accesses(operator, args, kwargs):
            found.extend((tensor.data_ptr(), how) for tensor in tensors_in(given))

    with operator_calls.calls_with(look):
        function()
    return found


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: T.sum(), ["read"]),
        (lambda: T.view(2, 4).sum(), ["read"]),
        (lambda: T[0].item(), ["read"]),
        (lambda: T.add_(0), ["written"]),
        (lambda: torch.add(OTHER, 0, out=T), ["written"]),
        (lambda: torch.stack([OTHER, T]), ["read"]),
        (lambda: T.clone(), ["read"]),
        (lambda: (T.view(2, 4), T[2:], T.t(), T.detach(), T.split(4), T.expand(2, 8)), []),
        (lambda: (torch.zeros_like(T), T.new_empty(3), T.shape, T.stride(), len(T)), []),
        (lambda: OTHER.sum(), []),
    ],
)
def test_which_operators_look_at_elements(function: Any, expected: list[str]) -> None:
    assert [how for address, how in looked_at(function) if address == T.data_ptr()] == expected


PARTS = {
    lambda: OTHER.index_select(0, torch.tensor([1])),
    lambda: OTHER.gather(0, torch.tensor([1])),
    lambda: OTHER[torch.tensor([1])],
    lambda: torch.take(OTHER, torch.tensor([1])),
    lambda: OTHER.index_fill_(0, torch.tensor([1]), 1),
    lambda: OTHER.scatter_(0, torch.tensor([1]), torch.ones(1)),
    lambda: OTHER.masked_fill_(torch.zeros(8, dtype=torch.bool), 1),
}


@pytest.mark.parametrize("function", PARTS)
def test_operators_that_look_at_some_elements(function: Any) -> None:
    wholes = {}

    def look(operator: Any, args: Any, kwargs: Any) -> None:
        for given, _, whole in operator_calls.accesses(operator, args, kwargs):
            wholes.update({tensor.data_ptr(): whole for tensor in tensors_in(given)})

    with operator_calls.calls_with(look):
        function()
    assert wholes.pop(OTHER.data_ptr()) is False
    assert set(wholes.values()) == {True}  # of the indices


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(in_flight, "_thread", in_flight.ThreadReads())
    yield in_flight._thread
    assert operator_calls.depth() == 0


def test_looks_while_a_call_is_under_way(thread: Any) -> None:
    one, other = Handle(), Handle()
    recorder: Any = SimpleNamespace(off=set())
    in_flight.watch(one, "allreduce", ([T],), recorder, *call())
    in_flight.watch(other, "allreduce", ([OTHER],), recorder, *call())
    assert operator_calls.depth() == 1
    one.holds = False
    in_flight.over()
    assert operator_calls.depth() == 1
    other.holds = False
    in_flight.over()
    assert operator_calls.depth() == 0


def test_what_is_read_past_all_operators(thread: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def judge(_pending: Any, how: str, by: FrameType) -> None:
        frame = in_flight._reader(by)
        if frame is not None:
            seen.append(f"{how} by {frame.f_code.co_filename}")

    monkeypatch.setattr(in_flight, "_judge", judge)
    in_flight.prepare()
    handle, recorder = Handle(), SimpleNamespace(off=set())
    in_flight.watch(handle, "allreduce", ([T],), recorder, *call())  # type: ignore[arg-type]
    for read in (T.tolist, T[2:4].tolist, lambda: str(T), lambda: f"{T}", lambda: repr([T])):
        seen.clear()
        read()
        assert set(seen) == {f"read by {__file__}"}, read
    seen.clear()
    assert OTHER.tolist() == [1.0] * 8
    assert str(OTHER).startswith("tensor")
    try:
        raise ValueError
    except ValueError:
        str(T)  # of a traceback that shows variables
    handle.holds = False
    in_flight.over()
    str(T)
    assert seen == []


class Own(TorchDispatchMode):
    """The program's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_modes_of_the_program_are_left_as_they_were_entered(thread: Any) -> None:
    handle, recorder = Handle(), SimpleNamespace(off=set())
    with Own():
        in_flight.watch(handle, "allreduce", ([T],), recorder, *call())  # type: ignore[arg-type]
        assert operator_calls.depth() == 1  # the program's alone: it leaves the innermost
    assert operator_calls.depth() == 0
    in_flight.watch(handle, "allreduce", ([T],), recorder, *call())  # type: ignore[arg-type]
    with Own():
        handle.holds = False
        in_flight.over()
        assert operator_calls.depth() == 2  # ours is not the innermost
    in_flight.over()
    assert operator_calls.depth() == 0


def test_what_fails_in_it_is_switched_off(thread: Any, capfd: pytest.CaptureFixture[str]) -> None:
    handle, recorder = Handle(), SimpleNamespace(off=set())
    recorder.check_failed = partial(Recorder.check_failed, recorder)  # type: ignore[arg-type]
    in_flight.watch(handle, "allreduce", ([T],), recorder, *call())  # type: ignore[arg-type]
    thread.pending = [None]
    assert T.sum() == 8
    thread.pending = []
    in_flight.over()
    assert recorder.off == {in_flight.READS}
    assert "the check of reads in flight is switched off" in capfd.readouterr().err


def test_what_a_signals_handler_raises_in_a_check_is_the_programs() -> None:
    recorder = SimpleNamespace(off=set())

    def handler(*_: object) -> None:
        raise ZeroDivisionError

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(ZeroDivisionError) as raised:
            signal.raise_signal(signal.SIGUSR2)
        with pytest.raises(ZeroDivisionError):
            Recorder.check_failed(recorder, in_flight.READS, raised.value)  # type: ignore[arg-type]
        assert recorder.off == set()
        with pytest.raises(ZeroDivisionError) as raised:  # in no file of ours, and by itself
            _ = 1 / 0
        Recorder.check_failed(recorder, in_flight.READS, raised.value)  # type: ignore[arg-type]
        assert recorder.off == {in_flight.READS}
    finally:
        signal.signal(signal.SIGUSR2, before)


BASE = torch.zeros(8, 8)
ROWS = (BASE[2].data_ptr(), BASE[4].data_ptr())


def of(given: torch.Tensor, as_array: bool) -> MemoryLayout:
    found = memory_layout.of_array(given.numpy()) if as_array else memory_layout.of_tensor(given)
    assert found is not None
    return found


@pytest.mark.parametrize("as_array", [False, True])
def test_elements_between_those_that_are_written(as_array: bool) -> None:
    for there in (BASE, BASE.t(), BASE[:, 0], BASE[2:4].t(), BASE[::3]):
        assert of(there, as_array).touches(ROWS)
    for elsewhere in (BASE[::4], BASE[4:], BASE[:2].t(), BASE[4:, 1:3]):
        assert not of(elsewhere, as_array).touches(ROWS)
    assert of(BASE[2:4], as_array).lies_in(ROWS)
    assert of(BASE[3, 1:2], as_array).lies_in(ROWS)
    assert not of(BASE[2:5], as_array).lies_in(ROWS)
    assert not of(BASE[1:4], as_array).lies_in(ROWS)


def test_backwards() -> None:
    array = BASE.numpy()
    assert memory_layout.of_array(array[3:1:-1]).range == ROWS
    assert memory_layout.of_array(array[::-1]).touches(ROWS)
    assert not memory_layout.of_array(array[:3:-1]).touches(ROWS)


def test_nothing_lies_nowhere() -> None:
    nothing = memory_layout.of_array(np.ones((0, 3)))
    assert not nothing.touches((0, 1 << 62))
    assert not nothing.lies_in((0, 1 << 62))
    assert memory_layout.of_tensor(torch.ones(0)) is None
    assert memory_layout.of_tensor(torch.ones(2, device="meta")) is None
    assert memory_layout.of_storage(torch.ones(0).untyped_storage()) is None


def test_a_storage() -> None:
    whole = memory_layout.of_storage(BASE.untyped_storage())
    assert whole is not None
    assert whole.range == (BASE.data_ptr(), BASE.data_ptr() + BASE.nbytes)


def test_what_is_an_array() -> None:
    assert in_flight.is_array(np.ones(2))
    assert not in_flight.is_array(np.float32(2))
    assert not in_flight.is_array(BASE)
