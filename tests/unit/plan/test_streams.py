"""Calls on a device: who is stuck in one stream is stuck for ever, others need luck."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from distdebug.plan.judgement import judge_programs
from distdebug.plan.program import CutOff
from tests.support.programs import ProgramBuilder, Programs
from tests.unit.diagnosis.builder import all_reduce, recv, send


def said(made: Programs) -> list[tuple[str, str]]:
    found = judge_programs(made.programs()).findings
    return [(one.kind, one.severity) for one in found]


def in_two_orders(then: Callable[[ProgramBuilder], object], stream: int = 0) -> Programs:
    made = Programs(2, backend="nccl")
    made.new_group("1", [0, 1])
    for rank in range(2):
        for group in ("0", "1") if rank == 0 else ("1", "0"):
            made[rank].makes(all_reduce(4), group, stream=stream)
        then(made[rank])
    made.end()
    return made


def nothing(rank: ProgramBuilder) -> None:
    del rank


def more_of_the_stream(rank: ProgramBuilder) -> None:
    rank.waits(rank.makes(all_reduce(4), is_async=True))
    rank.destroys("1")


def test_two_communicators_in_another_order_in_one_stream_are_a_deadlock() -> None:
    assert said(in_two_orders(nothing)) == [("deadlock", "error")]
    assert said(in_two_orders(more_of_the_stream)) == [("deadlock", "error")]


def on_the_host(rank: ProgramBuilder) -> None:
    rank.has("host", (0, 1), backend="gloo")
    rank.makes(all_reduce(4), "host")


def test_who_goes_on_with_something_else_may_get_the_others_out() -> None:
    """The program is there at once; what it does then may be what a callback or a thread of the
    others waits for."""
    assert said(in_two_orders(on_the_host)) == [("deadlock", "warning")]


def test_of_streams_that_are_not_known_nothing_is_proven() -> None:
    assert said(in_two_orders(nothing, stream=-1)) == [("deadlock", "warning")]


def test_the_calls_of_two_streams_do_not_follow_each_other() -> None:
    made = Programs(2, backend="nccl")
    made.new_group("1", [0, 1])
    for rank in range(2):
        rows = [("0", 0), ("1", 3)]
        for group, stream in rows if rank == 0 else rows[::-1]:
            made[rank].makes(all_reduce(4), group, stream=stream)
    made.end()
    assert said(made) == [("deadlock", "warning")]


def test_a_stream_that_does_not_wait_goes_on() -> None:
    """Both calls are under way before either is waited for."""
    made = Programs(2, backend="nccl")
    made.new_group("1", [0, 1])
    for rank in range(2):
        groups = ("0", "1") if rank == 0 else ("1", "0")
        numbers = [made[rank].makes(all_reduce(4), group, is_async=True) for group in groups]
        for number in numbers:
            made[rank].waits(number)
    made.end()
    assert ("deadlock", "error") not in said(made)


@pytest.mark.parametrize("first", [0, 1])
def test_a_pair_that_both_receive_first_is_stuck(first: int) -> None:
    made = Programs(2, backend="nccl")
    for rank in range(2):
        rows = [recv(1 - rank), send(1 - rank)]
        for signature in rows if first == 0 or rank == 0 else rows[::-1]:
            made[rank].makes(signature)
    made.end()
    assert said(made) == ([("deadlock", "error")] if first == 0 else [])


def test_a_pair_that_both_send_first_needs_luck() -> None:
    made = Programs(2, backend="nccl")
    for rank in range(2):
        made[rank].makes(send(1 - rank, 1 << 20))
        made[rank].makes(recv(1 - rank, 1 << 20))
    made.end()
    assert said(made) == [("deadlock", "warning")]


def cut_off(stream: int, stuck: bool) -> Programs:
    """The plan of rank 0 got no further than to a call whose value it never got."""
    made = Programs(2, backend="nccl")
    made[0].makes(all_reduce(1), stream=stream)
    made[0].events.append(CutOff("it waits for values that never come", stuck=stuck))
    made[1].ends()
    return made


def test_who_waits_for_the_value_of_a_call_stands_in_it() -> None:
    assert said(cut_off(stream=0, stuck=True)) == [("early_exit", "error")]
    assert said(cut_off(stream=-1, stuck=True)) == [("early_exit", "error")]


def test_who_was_cut_off_for_its_time_does_not() -> None:
    assert said(cut_off(stream=0, stuck=False)) == []
    assert said(cut_off(stream=2, stuck=True)) == []
