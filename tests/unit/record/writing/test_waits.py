"""Waits for calls that a thread is not in: by one word, and in full where that does not do."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from distdebug.record import layout
from distdebug.record.layout import Activity, Definition
from distdebug.record.ops import OP_CODES
from distdebug.record.reading.reader import FlightReader
from distdebug.record.snapshot import CallSite, Process, Wait
from distdebug.record.writing.slots import CallDescription, CallOrigin, ThreadSlot
from distdebug.record.writing.writer import FlightWriter

ALIVE = Process(alive=True)
WORLD = {
    "name": "0",
    "incarnation": 0,
    "desc": "default_pg",
    "ranks": [0, 1],
    "backend": "gloo",
    "timeout_s": 5.0,
}


class Rank:
    """Calls and waits, and what a reader makes of them."""

    def __init__(self, path: Path) -> None:
        self.writer = FlightWriter(path)
        group = self.writer.add_group(WORLD)
        assert group is not None
        self._group = group
        self._call = CallDescription(
            op_code=OP_CODES["barrier"],
            signature_id=0,
            agree=5,
            exact=5,
            contribution=0,
            channel=None,
            volatile=None,
        )
        self.lines = {
            line: self.writer.define(Definition.SITE, json.dumps(["/a/train.py", line, "step"]))
            for line in (7, 8)
        }

    def begin(self) -> tuple[int, ThreadSlot]:
        return self.writer.begin(self._group, self._call, CallOrigin(self.lines[7]), 0)

    def hands_over(self) -> int:
        number, thread = self.begin()
        self.writer.hand_over(number, thread)
        return number

    def waits(self) -> list[Wait]:
        return list(FlightReader(self.writer.path).view(ALIVE).waits)

    def serial(self) -> int:
        serial = FlightReader(self.writer.path).view(ALIVE).layer_serial
        assert serial == self.writer.serial
        return serial


@pytest.fixture(name="rank")
def _rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path / "0.flight")


def test_a_wait_for_an_earlier_call_has_its_own_line_and_time(rank: Rank) -> None:
    first = rank.hands_over()
    rank.hands_over()
    assert not rank.waits()
    serials = [rank.serial()]
    thread = rank.writer.enter_wait(first + 1, rank.lines[8])
    serials.append(rank.serial())
    (wait,) = rank.waits()
    assert (wait.activity, wait.call) == (Activity.IN_CALL, first)
    assert wait.site == CallSite("/a/train.py", 8, "step")
    reader = FlightReader(rank.writer.path)
    reader.view(ALIVE)
    made = reader.call(first)
    assert made is not None
    assert wait.since_ns >= made.started_ns > 0
    assert rank.writer.is_waiting(threading.get_ident())
    assert rank.writer.waited_for() == [(threading.get_ident(), first)]
    rank.writer.finish(first, thread)
    serials.append(rank.serial())
    assert not rank.waits()
    assert not rank.writer.is_waiting(threading.get_ident())
    assert serials == sorted(set(serials))
    assert reader.view(ALIVE).calls == 2


def test_waits_one_after_the_other_are_told_apart(rank: Rank) -> None:
    numbers = [rank.hands_over() for _ in range(3)]
    seen = []
    for number in numbers:
        thread = rank.writer.enter_wait(number + 1, rank.lines[8])
        (wait,) = rank.waits()
        seen.append((wait.call, wait.serial))
        rank.writer.break_off(number, thread)
    assert [call for call, _ in seen] == numbers
    assert len({serial for _, serial in seen}) == 3
    assert not rank.waits()


def test_a_thread_that_has_made_no_call_waits_for_anothers(rank: Rank) -> None:
    number = rank.hands_over()
    found: list[list[Wait]] = []

    def wait() -> None:
        thread = rank.writer.enter_wait(number + 1, rank.lines[8])
        found.append(rank.waits())
        rank.writer.leave_call(thread, number + 1)
        found.append(rank.waits())

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join()
    ((during,), after) = found
    assert during.call == number
    assert not after
    assert FlightReader(rank.writer.path).view(ALIVE).calls == 1


def test_something_within_a_wait(rank: Rank) -> None:
    number = rank.hands_over()
    thread = rank.writer.enter_wait(number + 1, rank.lines[8])
    (before,) = rank.waits()
    rank.writer.enter(int(Activity.STORE), 0, 0, 0)
    assert [wait.activity for wait in rank.waits()] == [Activity.STORE]
    rank.writer.leave(thread)
    (again,) = rank.waits()
    assert (again.call, again.site) == (number, before.site)
    rank.writer.finish(number, thread)
    assert not rank.waits()
    inside, thread = rank.begin()
    (wait,) = rank.waits()
    assert (wait.call, wait.site) == (inside, CallSite("/a/train.py", 7, "step"))
    rank.writer.complete(inside, thread)
    assert not rank.waits()


def test_a_wait_outlasts_the_ring(rank: Rank) -> None:
    """Other threads make so many calls that the one that is waited for is overwritten."""
    number = rank.hands_over()
    thread = rank.writer.enter_wait(number + 1, rank.lines[8])
    (before,) = rank.waits()

    def others() -> None:
        for _ in range(layout.RING + 5):
            rank.hands_over()

    busy = threading.Thread(target=others)
    busy.start()
    busy.join()
    (wait,) = rank.waits()
    assert (wait.call, wait.site, wait.since_ns) == (number, before.site, before.since_ns)
    rank.writer.finish(number, thread)
    assert not rank.waits()


def test_phases_that_run_out_count_no_call_that_was_not_made(rank: Rank) -> None:
    number = rank.hands_over()
    thread = rank.writer.thread()
    thread.word += layout.MOST_PHASE - 4  # as if it had waited so often since
    for _ in range(5):
        entered = rank.writer.enter_wait(number + 1, rank.lines[8])
        assert entered is thread
        (wait,) = rank.waits()
        assert (wait.call, wait.site) == (number, CallSite("/a/train.py", 8, "step"))
        rank.writer.leave_call(thread, number + 1)
        assert not rank.waits()
        assert FlightReader(rank.writer.path).view(ALIVE).calls == 1
    assert thread.word >> layout.PHASE_BITS == 1
    rank.hands_over()
    assert FlightReader(rank.writer.path).view(ALIVE).calls == 2


def test_a_wait_that_went_on_while_it_was_read_is_none(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = rank.hands_over()
    thread = rank.writer.enter_wait(number + 1, rank.lines[8])
    reader = FlightReader(rank.writer.path)
    words = reader._thread_calls()
    rank.writer.leave_call(thread, number + 1)
    monkeypatch.setattr(reader, "_thread_calls", lambda: words)
    assert not reader.view(ALIVE).waits
