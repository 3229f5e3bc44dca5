"""The tables of who may lead and who is lost, walked with made-up events and clocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdebug.nodes.limits import LATE_S, LOST_AFTER_S, SILENT_S
from distdebug.nodes.presence import (
    LINES,
    ROLES,
    STANDINGS,
    WAYS,
    Event,
    LineState,
    Listening,
    Peer,
    Role,
    Standing,
    Way,
    after,
)

EVERY_S = 0.25
SENSE = st.lists(st.sampled_from(Event), max_size=30)


@pytest.mark.parametrize(
    ("table", "first"),
    [(ROLES, Role.ALONE), (STANDINGS, Standing.AWAITED), (LINES, LineState.DIALLED)],
    ids=["roles", "standings", "lines"],
)
def test_each_state_has_a_row_and_can_be_reached(table: Mapping[Any, Any], first: Any) -> None:
    assert set(table) == set(type(first))
    reached, waiting = {first}, [first]
    while waiting:
        fresh = set(table[waiting.pop()].values()) - reached
        reached |= fresh
        waiting += fresh
    assert reached == set(table)


@given(SENSE)
def test_a_head_stays_one_and_who_has_lost_its_head_gets_none(events: list[Event]) -> None:
    role, seen = Role.ALONE, [Role.ALONE]
    for event in events:
        role = after(ROLES, role, event)
        seen.append(role)
    assert not {Role.HEAD, Role.MEMBER} <= set(seen)
    if Role.HEAD in seen:
        assert seen[-1] is Role.HEAD
    if Role.ORPHAN in seen:
        assert seen[-1] is Role.ORPHAN
        assert Role.MEMBER in seen


@given(SENSE)
def test_who_is_lost_has_left_or_was_refused_does_not_come_again(events: list[Event]) -> None:
    standing = Standing.AWAITED
    for event in events:
        before, standing = standing, after(STANDINGS, standing, event)
        if before in (Standing.LOST, Standing.LEFT, Standing.REFUSED):
            assert standing is before
        if standing is Standing.LOST is not before:
            assert (before, event) in (
                (Standing.MISSED, Event.BE_GIVEN_UP),
                (Standing.AWAITED, Event.BE_MISSED),
            )


@given(SENSE)
def test_keys_are_proved_before_anything_is_said(events: list[Event]) -> None:
    """And a connection is not given up while it proves them."""
    line = LineState.DIALLED
    for event in events:
        before, line = line, after(LINES, line, event)
        if line is LineState.PROVED is not before:
            assert event is Event.PROVE
        if before is LineState.PROVING:
            assert line is not LineState.EXPIRED
    assert all(second is not LineState.PROVING for second, _ in WAYS)


SECONDS = st.floats(0.0, 4.0)
STEP = st.one_of(
    st.tuples(st.just("passes"), SECONDS),
    st.tuples(st.just("speaks"), st.just(0.0)),
    st.tuples(st.just("asked"), st.just(0.0)),
    st.tuples(st.just("says that it heard nothing for"), SECONDS),
    st.tuples(st.just("connects"), st.just(0.0)),
    st.tuples(st.just("proves"), st.just(0.0)),
    st.tuples(st.just("closes"), st.just(0.0)),
)


@given(st.lists(STEP, max_size=60))
def test_a_member_goes_from_one_connection_to_another_one(steps: list[tuple[str, float]]) -> None:
    """Whatever happens: no third connection, none that has not proved its keys, not while the head
    is heard, and a moment of rest between two."""
    head, second, now_s = Peer(), None, 0.0
    spoke_s = moved_s = -1e9
    for what, seconds in steps:
        now_s += seconds if what == "passes" else 0.0
        if what == "speaks":
            head.spoke(now_s)
            spoke_s, head.unheard_s = now_s, 0.0
        elif what.startswith("says") and head.last_s >= 0:
            head.spoke(now_s)
            spoke_s, head.unheard_s = now_s, seconds
        events = {"connects": Event.CONNECT, "proves": Event.PROVE, "closes": Event.CLOSE}
        if second is not None and what in events:
            second = after(LINES, second, events[what])
        standing = head.look(now_s)
        silent_s = now_s - spoke_s if head.last_s >= 0 else 0.0
        assert (standing is Standing.MISSED) == (silent_s > LOST_AFTER_S)
        way = head.way(second, now_s)
        if way is Way.DIAL:
            assert second is None
            assert max(silent_s, head.unheard_s) > LATE_S
            assert now_s - moved_s >= LATE_S
            second = LineState.DIALLED
        elif way is Way.MOVE:
            assert second is LineState.PROVED
            assert max(silent_s, head.unheard_s) > SILENT_S
            head.moved(now_s)
            moved_s, second = now_s, None
        elif way is Way.DROP:
            assert second in (LineState.PROVED, LineState.EXPIRED)
            assert max(silent_s, head.unheard_s) <= LATE_S
            second = None


@given(st.lists(st.tuples(SECONDS, st.booleans(), st.booleans()), max_size=40))
def test_a_node_is_missed_when_it_was_silent_and_was_asked(
    steps: list[tuple[float, bool, bool]],
) -> None:
    """By the formula itself, from the beginning of all that was said and asked."""
    node, now_s, spoke_s, asked_s = Peer(), 0.0, 0.0, -1.0
    node.spoke(0.0)
    for seconds, speaks, asks in steps:
        now_s += seconds
        if speaks:
            node.spoke(now_s)
            spoke_s, asked_s = now_s, -1.0
        if asks:
            node.asked(now_s)
            asked_s = now_s if asked_s < 0 else asked_s
        silent = now_s - spoke_s > LOST_AFTER_S
        early = asked_s >= 0 and now_s - asked_s >= LOST_AFTER_S - 3 * EVERY_S
        assert (node.look(now_s, EVERY_S) is Standing.MISSED) == (silent and early)


class Ends:
    """The queue that is read, and one node at the other end; `now_s` is the clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.listening, self.node = Listening(), Peer()
        self.listening.looked(self.now_s, True)
        self.speaks()

    def speaks(self) -> None:
        self.node.spoke(self.listening.total_s)

    def passes(self, seconds: float, every_s: float = 0.1, to_the_end: bool = True) -> None:
        """So much time, in which the queue is looked at and the node is asked; it says nothing."""
        for _ in range(round(seconds / every_s)):
            self.now_s += every_s
            self.listening.looked(self.now_s, to_the_end)
            self.node.asked(self.listening.total_s)

    @property
    def missed(self) -> bool:
        return self.node.look(self.listening.total_s, EVERY_S) is Standing.MISSED


def test_a_node_that_says_nothing_is_missed_in_time() -> None:
    ends = Ends()
    ends.passes(2.5)
    assert not ends.missed
    ends.passes(0.3)
    assert ends.missed


def test_a_node_that_speaks_is_not_missed() -> None:
    ends = Ends()
    for _ in range(20):
        ends.passes(0.5)
        ends.speaks()
    assert not ends.missed


def test_a_head_that_was_not_there_has_missed_nobody() -> None:
    """It was stopped, or the machine gave it no time: what was said meanwhile is in the queue."""
    ends = Ends()
    ends.passes(60.0, every_s=60.0)
    assert not ends.missed
    ends.passes(0.5)
    assert not ends.missed
    ends.passes(2.5)
    assert ends.missed, "it is silent while we listen, too"


def test_a_head_that_never_reads_its_queue_to_the_end_misses_nobody() -> None:
    ends = Ends()
    ends.passes(60.0, to_the_end=False)
    assert not ends.missed
    ends.passes(2.9)
    assert ends.missed


def test_a_node_that_was_not_asked_is_not_missed() -> None:
    ends = Ends()
    for _ in range(100):
        ends.now_s += 0.1
        ends.listening.looked(ends.now_s, True)
    assert not ends.missed
    ends.passes(2.0)
    assert ends.missed, "it was asked, and answers nothing"
