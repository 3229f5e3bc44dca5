"""Programs that end well because small messages are buffered, and their twins that need no luck."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from distdebug.diagnosis.facts.blocking import Model
from distdebug.diagnosis.findings import Finding
from distdebug.diagnosis.judging import judge, warnings_at_the_end
from distdebug.diagnosis.limits import Limits
from distdebug.plan.judgement import simulate
from distdebug.record.signature import ANY_SOURCE
from tests.support.programs import ProgramBuilder, Programs
from tests.unit.diagnosis.builder import barrier, recv, send


def found(made: Programs) -> Sequence[Finding]:
    """What is said at the end of a run in which all that is sent is buffered."""
    made.end()
    outcome = simulate(made.programs(), Model(buffered_bytes=1 << 20))
    assert outcome.through
    assert judge([outcome.now], [outcome.before], Limits()).findings == []
    return [one for one in warnings_at_the_end([outcome.now]) if one.kind != "straggler"]


def sends_first(made: ProgramBuilder, to: int, source: int) -> None:
    made.makes(send(to, 8), line=4)
    made.makes(recv(source, 8), line=5)


def test_both_send_first() -> None:
    made = Programs(2, "tcp")
    for rank in range(2):
        sends_first(made[rank], 1 - rank, 1 - rank)
    (one,) = found(made)
    assert (one.kind, one.severity, one.proven) == ("deadlock", "warning", False)
    assert one.culprits == (0, 1)
    assert "needs luck" in one.message
    assert "rank 0 in send(dst=1, float32[8]) waits for rank 1" in one.message
    assert {rank: its.location and its.location.line for rank, its in one.ranks.items()} == {
        0: 4,
        1: 4,
    }
    assert len(one.details) == 2


def test_a_ring_in_the_middle_of_a_run_and_who_waits_for_it() -> None:
    """What went well before is passed, and the rank behind the cycle is none of its culprits."""
    made = Programs(4, "tcp")
    for _ in range(3):
        for rank in range(4):
            first, second = (send, recv) if rank % 2 == 0 else (recv, send)
            made[rank].makes(first(rank ^ 1, 8))
            made[rank].makes(second(rank ^ 1, 8))
    for rank in range(3):
        sends_first(made[rank], (rank + 1) % 3, (rank - 1) % 3)
    made[0].makes(send(3, 8))
    made[3].makes(recv(0, 8))
    (one,) = found(made)
    assert (one.kind, sorted(one.culprits)) == ("deadlock", [0, 1, 2])


def test_a_receive_that_waits_is_a_link_of_the_cycle() -> None:
    made = Programs(3, "tcp")
    made[0].makes(send(1, 8))
    made[0].makes(send(2, 8))
    made[1].makes(recv(2, 8))
    made[1].makes(recv(0, 8))
    made[2].makes(recv(0, 8))
    made[2].makes(send(1, 8))
    (one,) = found(made)
    assert (one.kind, sorted(one.culprits)) == ("deadlock", [0, 1, 2])
    assert "rank 1 in recv(src=2, float32[8]) waits for rank 2" in one.message


def test_a_message_that_nobody_receives() -> None:
    made = Programs(2, "tcp")
    made[0].makes(send(1, 8))
    made[0].makes(send(1, 8), line=7)
    made[1].makes(recv(0, 8))
    made.each(barrier())
    (one,) = found(made)
    assert (one.kind, one.severity, one.culprits, one.victims) == (
        "unmatched_p2p",
        "warning",
        (1,),
        (0,),
    )
    assert "rank 1 never receives what rank 0 sends" in one.message
    assert one.ranks[0].location is not None
    assert one.ranks[0].location.line == 7


def test_who_waits_for_the_sender_of_such_a_message_is_not_told_of() -> None:
    made = Programs(2, "tcp")
    sends_first(made[0], 1, 1)
    made[1].makes(send(0, 8))
    (one,) = found(made)
    assert (one.kind, one.culprits) == ("unmatched_p2p", (1,))


def in_turn(made: Programs) -> None:
    for _ in range(3):
        sends_first(made[0], 1, 1)
        made[1].makes(recv(0, 8))
        made[1].makes(send(0, 8))


def not_waited_for_first(made: Programs) -> None:
    for rank in range(2):
        handle = made[rank].makes(send(1 - rank, 8), is_async=True)
        made[rank].makes(recv(1 - rank, 8))
        made[rank].waits(handle)


def received_before(made: Programs) -> None:
    for rank in range(2):
        handle = made[rank].makes(recv(1 - rank, 8), is_async=True)
        made[rank].makes(send(1 - rank, 8))
        made[rank].waits(handle)


def on_two_threads(made: Programs) -> None:
    for rank in range(2):
        made[rank].makes(send(1 - rank, 8), thread=1)
        made[rank].makes(recv(1 - rank, 8), thread=2)


def from_any_source(made: Programs) -> None:
    made[0].makes(send(1, 8))
    made[0].makes(recv(1, 8))
    made[1].makes(send(0, 8))
    made[1].makes(recv(ANY_SOURCE, 8))


def on_gloo(made: Programs) -> None:
    """A group whose sends have waited has shown that they may."""
    for builder in made.ranks:
        builder.has("0", range(2), backend="gloo")
    for rank in range(2):
        sends_first(made[rank], 1 - rank, 1 - rank)


@pytest.mark.parametrize(
    "program",
    [in_turn, not_waited_for_first, received_before, on_two_threads, from_any_source, on_gloo],
)
def test_who_needs_no_luck_is_not_told_so(program: Callable[[Programs], None]) -> None:
    made = Programs(2, "tcp")
    program(made)
    assert found(made) == []


def test_a_run_in_which_a_rank_has_failed_says_nothing() -> None:
    made = Programs(2, "tcp")
    made[0].makes(send(1, 8))
    made[0].ends(0)
    made[1].raises("no data")
    outcome = simulate(made.programs(), Model(buffered_bytes=1 << 20))
    assert warnings_at_the_end([outcome.now]) == []
