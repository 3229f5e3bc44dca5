"""Sends and receives that do not fit, or never meet; and their twins."""

from __future__ import annotations

import signal

import pytest

from ..builder import Run, recv, send


def test_sizes_differ() -> None:
    run = Run(3)
    run[0].calls(send(1, 4), line=10)
    run[1].calls(recv(0, 8), waits=True, line=20)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.seq) == ("p2p_mismatch", (0, 1), 0)
    assert found.ranks[1].location.line == 20
    assert "4 elements against 8" in found.message


def test_a_silent_dtype_mismatch_long_ago() -> None:
    run = Run(2)
    for index in range(20):
        run[0].calls(send(1, 4, dtype="float64" if index == 7 else "float32"))
        run[1].calls(recv(0, 4))
    (found,) = run.errors()
    assert (found.kind, found.seq) == ("p2p_mismatch", 7)
    assert "other dtype" in found.message


def test_a_receive_whose_sender_has_finished() -> None:
    run = Run(2)
    for _ in range(3):
        run[0].calls(send(1))
        run[1].calls(recv(0))
    run[1].calls(recv(0), waits=True, line=19)
    run[0].exits(0)
    assert run.errors(settled=False) == []  # its backend is about to refuse the call, maybe
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("unmatched_p2p", (0,), (1,))
    assert found.ranks[1].location.line == 19


def test_a_partner_that_makes_one_round_less() -> None:
    """They give and take in turns: the neighbour, which only notices it first, is not to blame. It
    had issued its receive as well before it waited for the send."""
    run = Run(3)
    for _ in range(3):
        run[1].calls(send(2))
        run[2].calls(recv(1))
        run[2].calls(send(1))
        run[1].calls(recv(2), is_async=True)
    run[2].calls(send(1))
    run[2].exits(0)
    run[1].calls(send(2), fails=True, line=30)
    run[1].calls(recv(2), is_async=True)
    run[1].raises("RuntimeError: Connection closed by peer", communication=True)
    run[0].calls(recv(1), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("early_exit", (2,), (1,))
    assert found.message == (
        "rank 2 finished after 7 calls, and 7 messages with rank 1, but rank 1 needed it in "
        "send(dst=2, float32[4]) for a receive of rank 2 (message #3)"
    )
    assert found.details == (
        "the last call of rank 2: send(dst=1, float32[4]) at train.py:88 in step",
    )


def test_a_send_that_was_dropped() -> None:
    run = Run(2)
    run[0].calls(send(1, 8), is_async=True, line=11)
    run[0].exits(0)
    run[1].calls(recv(0, 8), waits=True, line=22)
    assert run.errors() == []  # it may still arrive
    run.passes(1)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("early_exit", (0,), (1,))
    assert found.ranks[0].location.line == 11
    assert "without waiting for its send(dst=1, float32[8])" in found.message


def test_a_send_that_was_through_is_no_fault_of_the_sender() -> None:
    run = Run(2)
    run[0].calls(send(1, 8))
    run[0].exits(0)
    run[1].calls(recv(0, 8), waits=True)
    assert run.errors() == []


def test_a_receive_that_failed_because_its_sender_had_finished() -> None:
    run = Run(2)
    run[0].exits(0)
    run[1].calls(recv(0), fails=True)
    run[1].raises("RuntimeError: Connection closed by peer", communication=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("unmatched_p2p", (0,))


def test_the_receiver_that_failed_is_still_on_its_way_out() -> None:
    run = Run(2)
    run[0].exits(0)
    run[1].calls(recv(0), fails=True)
    run[1].raises("RuntimeError: Connection closed by peer", exits=False, communication=True)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits) == ("unmatched_p2p", (0,))


def test_a_send_that_nobody_takes() -> None:
    run = Run(3)
    run[2].exits(0)
    run[1].calls(send(2, 1024), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("unmatched_p2p", (2,), (1,))


def test_a_dead_sender_is_the_cause_itself() -> None:
    run = Run(2)
    run[1].calls(recv(0), waits=True)
    run[0].exits(signal=11)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_died", (0,))


def test_the_other_tag_explains_more_than_the_end() -> None:
    run = Run(2)
    run[0].calls(send(1, tag=1))
    run[0].exits(0)
    run[1].calls(recv(0, tag=2), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("p2p_mismatch", (0, 1))


class TestTwins:
    """Correct, but it looks like the faults above."""

    def test_another_shape_of_the_same_size(self) -> None:
        run = Run(2)
        run[0].calls(send(1, 4, 4))
        run[1].calls(recv(0, 16))
        assert not run.diagnose().findings

    def test_receives_from_any_source(self) -> None:
        run = Run(3)
        run[0].calls(send(2, 4))
        run[1].calls(send(2, 8))
        run[2].calls(recv(-1, 8))
        run[2].calls(recv(0, 4))
        run[0, 1, 2].exits(0)
        assert not run.diagnose().findings

    def test_a_buffered_send_of_a_rank_that_has_finished(self) -> None:
        run = Run(2)
        run[0].calls(send(1))
        run[0].exits(0)
        run[1].calls(recv(0), waits=True)
        assert not run.diagnose().findings

    def test_messages_sent_ahead(self) -> None:
        run = Run(2)
        for size in (4, 8, 16):
            run[0].calls(send(1, size))
        run[1].calls(recv(0, 4))
        assert not run.diagnose().findings


def server(run: Run, last: int) -> None:
    """Rank 0 takes what the others send, and waits for more; rank 2's last message is this long."""
    for worker in (1, 2):
        run[worker].calls(send(0, 4))
        run[0].calls(recv(-1, 4))
    run[0].calls(recv(-1, 4), waits=True, line=10)
    run[1].calls(send(0, 4), line=20)
    run[2].calls(send(0, last), line=30)


def test_a_message_too_large_for_a_receive_from_any_source() -> None:
    """gloo ends the receiver, whichever message it was."""
    run = Run(3)
    server(run, 6)
    assert run.errors() == []  # a larger receive may come
    run[0].exits(signal=signal.SIGABRT)
    run[1].raises("RuntimeError: Connection closed by peer", communication=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.seq) == ("p2p_mismatch", (2, 0), 1)
    assert [found.ranks[rank].location.line for rank in (2, 0)] == [30, 10]
    assert "6 elements against 4 (message #1 from 2 to 0)" in found.message


def test_a_message_that_distcore_refuses_from_any_source() -> None:
    """It fails on both sides; so do the messages of others, which fit."""
    run = Run(4)
    server(run, 4)
    run[2].calls(recv(0, 4))
    run[2].calls(send(0, 3), fails=True, line=31)
    run[3].calls(send(0, 4), fails=True)
    run[2].raises("CallMismatch: rank 2 is in send", type="CallMismatch", communication=True)
    run[0].raises("CallMismatch: rank 0 is in recv", type="CallMismatch", communication=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.seq) == ("p2p_mismatch", (2, 0), 2)
    assert found.ranks[2].location.line == 31


def test_a_receiver_that_aborts_though_every_message_fits() -> None:
    run = Run(3)
    server(run, 2)
    run[0].exits(signal=signal.SIGABRT)
    run.passes(3)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_died", (0,))


@pytest.mark.parametrize("taken", [2, 3], ids=["one too many", "all taken"])
def test_a_send_to_a_server_that_took_what_it_wanted_of_anybody_and_left(taken: int) -> None:
    """The count tells: which send it was does not matter to who is to blame."""
    run = Run(3)
    for _ in range(taken):
        run[0].calls(recv(-1, 4))
    run[1].calls(send(0, 4))
    run[1].calls(send(0, 4))
    run[0, 1].exits(0)
    run[2].calls(send(0, 4), fails=True, line=31)
    run[2].raises("RuntimeError: Connection closed by peer", communication=True)
    (found,) = run.errors()
    if taken == 3:
        assert (found.kind, found.culprits) == ("rank_exception", (2,))
        return
    assert (found.kind, found.culprits, found.victims) == ("unmatched_p2p", (0,), (2,))
    assert "rank 2 was in send(dst=0, float32[4]) for a receive of rank 0" in found.message
