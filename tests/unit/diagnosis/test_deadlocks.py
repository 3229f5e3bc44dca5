"""Cycles of waits over groups and point-to-point calls, without any timeout; and their twins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from distdebug.diagnosis.facts.channels import Channels
from distdebug.diagnosis.facts.world import World
from distdebug.diagnosis.findings import Finding
from distdebug.diagnosis.limits import Limits
from distdebug.record.layout import BOUNDED_S, Activity
from distdebug.record.snapshot import CallSite
from distdebug.reports import text
from distdebug.reports.document import Document
from tests.unit.reports.documents import of_run, report

from .builder import Run, all_reduce, barrier, broadcast, recv, reduce_to, send


def crossed() -> Run:
    run = Run(3)
    run.new_group("1", [0, 1])
    run.new_group("2", [0, 1])
    run[0].calls(all_reduce(8), group="1", waits=True, line=20)
    run[1].calls(all_reduce(8), group="2", waits=True, line=30)
    return run


def test_two_groups_in_another_order() -> None:
    run = crossed()
    run[2].calls(all_reduce(8), waits=True)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.victims) == ("deadlock", (0, 1), (2,))
    assert found.proven
    assert found.exit_code == 92
    assert found.ranks[1].location.line == 30
    assert found.details[0] == (
        'rank 0 in all_reduce(sum, float32[8]) #0 of group "1" at train.py:20 in step '
        "waits for rank 1"
    )
    assert found.details[-1] == "rank 2 waits for them"


def test_asynchronous_calls_that_their_ranks_agree_on_first() -> None:
    """At DETAIL, of two groups in another order: each thread goes on in a moment, and then the
    calls are made. One that stays is in a deadlock as any other."""
    run = Run(2)
    run.new_group("1", [0, 1])
    run.new_group("2", [0, 1])
    asked: dict[str, Any] = {"waits": True, "is_async": True, "agrees": True, "bounded": True}
    run[0].calls(all_reduce(8), group="1", **asked)
    run[1].calls(all_reduce(8), group="2", **asked)
    run.passes(BOUNDED_S - 1)
    assert run.errors(settled=False) == []
    run.passes(2)
    assert [one.kind for one in run.errors()] == ["deadlock"]


def test_the_message_of_another_rank_that_lies_there() -> None:
    """Rank 1 names the wrong source: its finding says who has sent to it."""
    run = Run(3)
    run[0].calls(send(1), line=7)
    run[1].calls(recv(2), waits=True, line=9)
    run[0, 2].calls(barrier(), waits=True, line=12)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("deadlock", (1, 2), (0,))
    assert found.details[-1] == (
        "rank 0 sends to rank 1 at train.py:7 in step, which has not received it"
    )


def test_the_receive_of_another_rank_that_waits_for_it() -> None:
    run = Run(3)
    run[0].calls(send(2), waits=True, line=7)
    run[1].calls(recv(0), waits=True, line=9)
    run[2].calls(barrier(), waits=True, line=12)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("deadlock", (0, 2), (1,))
    assert found.details[-1] == (
        "rank 1 receives from rank 0 at train.py:9 in step, which has not sent it"
    )


def test_nothing_is_left_over_where_all_messages_have_met() -> None:
    run = Run(3)
    run[0].calls(send(1))
    run[1].calls(recv(0))
    run[1].calls(recv(2), waits=True)
    run[2].calls(recv(1), waits=True)
    (found,) = run.errors()
    assert not any("which has not" in detail for detail in found.details)


def test_a_ring_of_receives_is_printed_in_order() -> None:
    run = Run(5)
    order = [0, 3, 1, 4]
    for place, rank in enumerate(order):
        run[rank].calls(recv(order[(place + 1) % 4]), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("deadlock", (0, 3, 1, 4))


def test_two_sends_wait_for_each_other_after_a_moment() -> None:
    run = Run(2)
    for rank in (0, 1):
        run[rank].calls(send(1 - rank, 4096), waits=True)
    assert run.errors(settled=False) == []
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("deadlock", (0, 1))


def test_a_group_and_a_receive() -> None:
    run = Run(3)
    run[0].calls(recv(1), waits=True)
    run[1, 2].calls(barrier(), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("deadlock", (0, 1), (2,))


def test_receive_from_any_source_without_any_sender_left() -> None:
    run = Run(2)
    run[0].calls(recv(-1), waits=True)
    run[1].calls(recv(0), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("deadlock", (0, 1))


def from_any(short: int | None) -> Run:
    """Rank 0 takes three messages from each of the others, of whom one sends only two."""
    run = Run(5)
    for rank in range(1, 5):
        for _ in range(2 if rank == short else 3):
            run[rank].calls(send(0))
    for _ in range(11):
        run[0].calls(recv(-1))
    return run


def test_receive_from_any_source_of_whom_one_has_sent_less() -> None:
    run = from_any(3)
    run[0].calls(recv(-1), waits=True)
    run[1, 2, 3, 4].calls(barrier(), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("deadlock", (0, 3), (1, 2, 4))
    assert "waits for rank 3, which has sent less than the others" in found.message


@pytest.mark.parametrize(("short", "cycle"), [(2, (0, 2)), (1, (0, 1)), (None, (0, 1))])
def test_receive_from_any_source_of_whom_one_of_two_has_sent_less(
    short: int | None, cycle: tuple[int, ...]
) -> None:
    """Neither of two is the majority: the cycle goes through the likelier, and that is not said."""
    run = Run(3)
    for rank in (1, 2):
        for _ in range(1 if rank == short else 2):
            run[rank].calls(send(0))
    for _ in range(4 if short is None else 3):
        run[0].calls(recv(-1))
    run[0].calls(recv(-1), waits=True)
    run[1, 2].calls(barrier(), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("deadlock", cycle)
    assert "sent less" not in found.message


def test_who_has_sent_less_and_computes_is_late() -> None:
    run = from_any(3)
    run[0].calls(recv(-1), waits=True)
    run.passes(61)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("missing_rank", (3,))


def test_where_all_have_sent_alike_nobody_stands_out() -> None:
    run = from_any(None)
    run[0].calls(recv(-1))
    run[0].calls(recv(-1), waits=True)
    run.passes(61)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("missing_rank", (1, 2, 3, 4))


def stolen(*, told: bool = True, early: bool = False) -> Run:
    """The message that rank 0 waits for was taken by a receive of its that was for any; that of
    rank 2 is left. `early`: that receive was posted before, and is not waited for."""
    run = Run(3)
    run[1].calls(send(0))
    run[0].calls(recv(-1), is_async=early)
    if told:
        run[0].takes(1)
    run[0].calls(recv(1), waits=True)
    run[2].calls(send(0), waits=True)
    return run


@pytest.mark.parametrize("early", [False, True])
def test_who_waits_for_a_message_that_a_receive_from_any_source_has_taken(early: bool) -> None:
    run = stolen(told=not early, early=early)
    run[1].calls(barrier(), waits=True)
    run.passes(5)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("deadlock", (0, 1))
    assert early or (found.victims == (2,) and "rank 2 sends to rank 0" in found.details[-1])


def test_who_has_ended_sends_no_other_message() -> None:
    run = stolen()
    run[1].exits()
    (found,) = run.errors()
    assert (found.kind, found.victims[0]) == ("unmatched_p2p", 0)


def test_who_may_still_send_another_message_is_in_no_cycle() -> None:
    assert stolen().errors() == []


def test_where_a_message_may_be_buffered_nobody_knows_whether_it_was_taken() -> None:
    run = stolen(told=False)
    for rank in run.ranks.values():
        rank.groups = {key: replace(one, backend="tcp") for key, one in rank.groups.items()}
    run[1].calls(barrier(), waits=True)
    run.passes(5)
    assert run.errors() == []


def test_who_has_not_run_since_may_have_the_message() -> None:
    """It is over for its sender, and the receiver is to find that out yet."""
    run = stolen(told=False, early=True)
    run[1].calls(barrier(), waits=True)
    run[0].heartbeat_ns = run.now_ns
    run.passes(5)
    assert run.errors() == []


def test_of_a_receive_from_any_source_nobody_knows_whether_its_message_was_sent() -> None:
    run = Run(2)
    call = run[0].calls(recv(-1), is_async=True)
    assert Channels(World(run.snapshot(), None, Limits())).posted(0, call) is None


def test_a_message_that_is_not_through_may_be_for_the_receive_that_waits() -> None:
    run = Run(3)
    run[0].calls(recv(-1), is_async=True)
    run[2].calls(send(0))
    run[1].calls(send(0), waits=True)
    run[0].calls(recv(1), waits=True)
    run.passes(5)
    assert run.errors() == []


def failed_from_any(sent: int) -> Run:
    """All others have left, each with so many messages sent: so a receive too many has failed."""
    run = from_any(None)
    run[0].calls(recv(-1))
    for _ in range(sent - 3):
        run[1].calls(send(0))
    run[0].calls(recv(-1), waits=True)
    run[1, 2, 3, 4].exits()
    run[0].raises("RuntimeError: rank 1 was lost", communication=True)
    return run


def test_a_receive_from_any_source_that_failed_for_nobody_is_left() -> None:
    (found,) = failed_from_any(3).errors()
    assert (found.kind, found.culprits, found.victims) == ("unmatched_p2p", (0,), (1, 2, 3, 4))


def test_where_a_message_was_on_its_way_the_exception_is_all_that_is_known() -> None:
    (found,) = failed_from_any(4).errors()
    assert (found.kind, found.culprits) == ("rank_exception", (0,))


def test_every_thread_of_a_rank_must_be_stuck() -> None:
    run = crossed()
    run[0].calls(all_reduce(8), group="0", waits=True, thread=2)
    run[1].calls(all_reduce(8), group="0", waits=True, thread=2)
    assert run.errors() == []
    run[2].calls(recv(0), waits=True)
    (found,) = run.errors()
    assert found.kind == "deadlock"


def test_threads_that_are_not_accounted_for_make_it_a_suspicion() -> None:
    run = crossed()
    run[0].free_threads = -1
    assert run.errors() == []
    run.passes(61)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.proven) == ("deadlock", (0, 1), False)
    assert "suspected" in found.message


def test_independent_cycles_are_several_findings() -> None:
    run = Run(4)
    for one, other in ((0, 1), (2, 3)):
        run[one].calls(recv(other), waits=True, line=20 + one)
        run[other].calls(recv(one), waits=True, line=20 + one)
    assert [found.culprits for found in run.errors()] == [(0, 1), (2, 3)]


def test_tags_that_do_not_meet() -> None:
    run = Run(2)
    run[0].calls(send(1, tag=1), waits=True)
    run[1].calls(recv(0, tag=2), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("p2p_mismatch", (0, 1))
    assert "tag" in found.message


class TestTwins:
    """Correct, but it looks like the faults above."""

    def test_one_of_them_moved_between_the_looks(self) -> None:
        run = crossed()
        with run.between() as result:
            run[1].goes_on()
            run[1].calls(all_reduce(8), group="2", waits=True)
        assert not result[0].findings

    def test_a_free_thread_may_still_come(self) -> None:
        run = crossed()
        run[1].free_threads = 1
        assert not run.diagnose().findings

    def test_a_single_look_proves_nothing(self) -> None:
        from distdebug.diagnosis.diagnose import diagnose

        assert not diagnose(crossed().snapshot(), None, Limits()).findings

    def test_a_large_send_may_take_its_time(self) -> None:
        run = Run(2)
        for rank in (0, 1):
            run[rank].calls(send(1 - rank, 200_000_000), waits=True)
        assert not run.diagnose().findings

    def test_a_root_whose_broadcast_is_on_its_way(self) -> None:
        run = Run(3)
        run[0].calls(broadcast(8, root=0), waits=True)
        run[1].calls(broadcast(8, root=0), waits=True)
        run[2].calls(broadcast(8, root=0))
        run[2].calls(recv(1), waits=True)
        assert not run.diagnose().findings

    def test_a_reduce_that_only_its_root_waits_for(self) -> None:
        run = Run(3)
        run[1].calls(reduce_to(8, root=0))
        run[1].calls(recv(2), waits=True)
        run[0].calls(reduce_to(8, root=0), waits=True)
        assert not run.diagnose().findings

    def test_the_message_was_sent_before(self) -> None:
        run = Run(2)
        run[0].calls(send(1), is_async=True)
        run[0].calls(recv(1), waits=True)
        run[1].calls(recv(0), waits=True)
        assert not run.diagnose().findings

    def test_a_rank_whose_layer_is_off(self) -> None:
        run = crossed()
        run[0].notes_down("layer_off", "no space left on device")
        run.passes(100)
        assert not [f for f in run.errors() if f.kind == "deadlock"]

    def test_a_store_key_may_come_from_anywhere(self) -> None:
        run = Run(2)
        run[0].waits_in(Activity.STORE, key="ready")
        run[1].calls(recv(0), waits=True)
        assert not run.diagnose().findings


def handle(run: Run, rank: int, group: str, called: int, waited: int) -> None:
    """An asynchronous call, and the wait for its handle at another line."""
    call = run[rank].calls(all_reduce(8), group=group, is_async=True, line=called)
    run[rank].waits_in(replace(call, site=CallSite("/home/user/train.py", waited, "finish")))


def test_who_waits_for_a_handle_stands_where_it_waits() -> None:
    run = Run(2)
    for name in ("1", "2"):
        run.new_group(name, [0, 1])
    handle(run, 0, "1", called=20, waited=70)
    handle(run, 1, "2", called=30, waited=30)
    (found,) = run.errors(settled=False)
    assert found.kind == "deadlock"
    assert found.ranks[0].location.line == 70
    assert found.ranks[0].called_at.line == 20
    assert "at train.py:70 in finish waits for rank 1" in found.details[0]
    shown = text.render(of_run(run))
    assert "train.py:70 in finish, called at train.py:20 in step" in shown
    where = document_of(found)["ranks"]["0"]
    assert (where["location"]["line"], where["called_at"]["line"]) == (70, 20)


def test_a_call_that_is_waited_for_at_once_has_one_line() -> None:
    run = crossed()
    (found,) = run.errors()
    assert [found.ranks[rank].called_at for rank in (0, 1)] == [None, None]
    assert "called at" not in text.render(of_run(run))
    assert "called_at" not in document_of(found)["ranks"]["0"]


def document_of(found: Finding) -> Document:
    """The finding as report.json has it."""
    return dict(report([found])["findings"][0])
