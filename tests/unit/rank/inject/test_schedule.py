"""When faults are due: calls, sequence numbers, steps and times are counted from 0."""

from __future__ import annotations

from typing import Any

import pytest

from distdebug.faults.plan import Fault, Moment, When
from distdebug.rank.inject.schedule import Armed, CallCounts


def armed(when: When, action: str = "skip", arguments: Any = None, **moment: Any) -> Armed:
    return Armed(Fault(0, "", action, (0,), Moment(when, **moment), arguments or {}))


def due_calls(one: Armed, ops: str, group: tuple[str, ...] = ("0", "world")) -> list[int]:
    """The numbers of the calls, of those that happen in this order, at which it is due."""
    counts, found, seq = CallCounts(), [], 0
    for number, op in enumerate(ops.split()):
        message = op in ("send", "recv")
        if one.at_call(counts.add(op, None if message else seq, group, number * 1.0)):
            found.append(number)
            one.has_happened()
        seq += not message
    return found


CALLS = "reduce send gather reduce send reduce reduce"


@pytest.mark.parametrize(
    ("moment", "calls"),
    [
        (Moment(When.OP, op="reduce", first=2, last=2), [5]),
        (Moment(When.OP, op="reduce", first=0, last=None), [0, 3, 5, 6]),
        (Moment(When.OP, op="reduce", first=1, last=3, stride=2), [3, 6]),
        (Moment(When.OP, op="send", first=1, last=1), [4]),
        (Moment(When.OP, op="recv", first=0, last=None), []),
        (Moment(When.CALL, first=4, last=4), [4]),
        (Moment(When.CALL, first=1, last=5, stride=3), [1, 4]),
        (Moment(When.SEQ, first=1, last=1), [2]),  # the send has no sequence number
        (Moment(When.SEQ, group="world", first=2, last=2), [3]),
        (Moment(When.SEQ, group="0", first=2, last=2), [3]),
        (Moment(When.SEQ, group="other", first=2, last=2), []),
        (Moment(When.STEP, first=0, last=None), []),
        (Moment(When.TIME, at_s=0.0), []),  # the clock's, until it has come
    ],
)
def test_calls(moment: Moment, calls: list[int]) -> None:
    assert due_calls(Armed(Fault(0, "", "skip", (0,), moment)), CALLS) == calls


def test_a_sequence_number_of_any_group_happens_once() -> None:
    one = armed(When.SEQ, first=0, last=0)
    counts = CallCounts()
    assert one.at_call(counts.add("reduce", 0, ("0",), 0.0))
    one.has_happened()
    assert not one.at_call(counts.add("reduce", 0, ("1",), 0.0))


def test_a_delay_lasts_for_a_span_of_time() -> None:
    one = armed(When.TIME, "delay", {"delay_s": 0.1}, at_s=2.0, for_s=3.0)
    assert due_calls(one, CALLS) == [2, 3, 4]
    assert not one.at_time(2.5)


def test_a_time_comes_once() -> None:
    one = armed(When.TIME, "kill", {"signal": "KILL"}, at_s=2.0, for_s=1.0)
    assert not one.at_time(-1.0)  # there is no default group yet
    assert not one.at_time(1.9)
    assert one.at_time(2.1)
    one.has_happened()
    assert not one.at_time(2.2)


def test_what_waits_is_due_at_the_next_call() -> None:
    one = armed(When.TIME, "skip", at_s=0.0)
    one.waiting = True
    assert due_calls(one, CALLS) == [0]
    assert not one.waiting


def test_a_step_comes_once() -> None:
    one = armed(When.STEP, "kill", {"signal": "KILL"}, first=3, last=7, stride=2)
    assert [number for number in (0, 3, 3, 4, 5, 7, 9) if one.at_step(number)] == [3, 5, 7]


@pytest.mark.parametrize(
    ("action", "arguments", "of_calls", "at_once"),
    [
        ("kill", {"signal": "KILL"}, False, True),
        ("exit", {"code": 0}, False, True),
        ("fill-disk", {}, False, True),
        ("drop-store", {}, False, True),
        ("raise", {"error": "ValueError"}, False, False),
        ("fork", {}, False, False),
        ("hang", {"how": "sleep"}, False, False),
        ("hang", {"how": "gil"}, False, True),
        ("oom", {"how": "allocation"}, False, False),
        ("oom", {"how": "killer"}, False, True),
        ("delay", {"delay_s": 1.0}, False, False),
        ("skip", {}, True, False),
        ("change", {"what": "dtype"}, True, False),
        ("nan", {"in": "data"}, True, False),
        ("nan", {"in": "parameter"}, False, False),
    ],
)
def test_what_an_action_needs(
    action: str, arguments: dict[str, Any], of_calls: bool, at_once: bool
) -> None:
    one = armed(When.CALL, action, arguments)
    assert (one.of_calls, one.at_once) == (of_calls, at_once)
