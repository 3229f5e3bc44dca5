"""Connections that break or carry nothing between ranks that live; and the twins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distdebug.diagnosis.diagnose import diagnose
from distdebug.diagnosis.rules.late_rank import refine_cause
from distdebug.record.snapshot import Knows
from distdebug.record.wording import RankState

from .builder import WORLD, Run, all_reduce, recv, send

LOST = "PeerLost: rank 0 was lost in all_reduce(sum, float32[8]) #1, step 0: it closed it"
LATE = "DeadlineExceeded: the timeout of all_reduce(sum, float32[8]) #1 ran out in step 0"
WAITED_S = 61.0
"""Longer than the default hang timeout."""


def stuck_in_the_second(size: int, stuck: tuple[int, ...]) -> Run:
    """All ranks enter the second call; those who are through with it wait in the third."""
    run = Run(size)
    run.each(all_reduce(8))
    for rank in range(size):
        if rank in stuck:
            run[rank].calls(all_reduce(8), waits=True)
        else:
            run[rank].calls(all_reduce(8))
            run[rank].calls(all_reduce(8), waits=True, line=90)
        run[rank].free_threads = 0
    return run


def lost(run: Run, rank: int, text: str, *link: int, kind: str = "PeerLost") -> None:
    run[rank].waits.clear()
    run[rank].raises(text, communication=True, type=kind, **({"link": list(link)} if link else {}))


class TestBroken:
    """rank_exception, with both ends."""

    def test_both_ends_are_named(self) -> None:
        run = stuck_in_the_second(4, (0, 1, 2, 3))
        lost(run, 1, LOST, 0, 1)
        for rank in (0, 2, 3):
            lost(run, rank, f"{LOST} (told by rank 1)", 0, 1)
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.victims) == ("rank_exception", (0, 1), (2, 3))
        assert found.message.startswith(
            "the connection between ranks 0,1 broke, though both processes were alive: rank 1 "
            "raised PeerLost: rank 0 was lost"
        )

    def test_wrong_data(self) -> None:
        run = stuck_in_the_second(2, (0, 1))
        lost(run, 1, "CorruptFrame: a frame whose checksum is wrong", 0, 1, kind="CorruptFrame")
        (found,) = run.errors()
        assert found.culprits == (0, 1)
        assert found.message.startswith(
            "the connection from rank 0 to rank 1 does not bring what was sent: rank 1 raised"
        )

    def test_a_death_explains_more(self) -> None:
        run = stuck_in_the_second(2, (0, 1))
        run[0].exits(signal=9)
        lost(run, 1, LOST, 0, 1)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_died", (0,))

    def test_the_death_is_seen_after_its_consequence(self) -> None:
        run = stuck_in_the_second(2, (0, 1))
        lost(run, 1, LOST, 0, 1)
        run[0].exits(signal=9)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_died", (0,))

    def test_an_exception_of_the_users_explains_more(self) -> None:
        run = stuck_in_the_second(2, (0, 1))
        lost(run, 1, LOST, 0, 1)
        run[0].raises("ValueError: bad sample")
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_exception", (0,))

    def test_who_left_explains_more(self) -> None:
        run = Run(2)
        run.each(all_reduce(8))
        run[0].exits(0)
        run[1].calls(all_reduce(8), fails=True)
        lost(run, 1, LOST, 0, 1)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("early_exit", (0,))

    def test_an_end_that_nobody_sees_is_not_called_alive(self) -> None:
        """A rank of another host."""
        run = stuck_in_the_second(2, (0, 1))
        del run.ranks[0]
        lost(run, 1, LOST, 0, 1)
        (found,) = run.errors()
        assert found.culprits == (1,)
        assert found.message.startswith("rank 1 raised PeerLost")

    @pytest.mark.parametrize("link", [[0], [0, "1"], "01", None, [0, 1, 2], {"0": 1}])
    def test_nonsense_in_a_record(self, link: object) -> None:
        run = stuck_in_the_second(2, (0, 1))
        run[1].waits.clear()
        run[1].raises(LOST, communication=True, type="PeerLost", link=link)
        (found,) = run.errors()
        assert found.culprits == (1,)


class TestStuck:
    """missing_rank, where nobody is missing."""

    def test_a_call_that_all_have_entered(self) -> None:
        run = stuck_in_the_second(2, (1,))
        run.passes(WAITED_S)
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.cause) == ("missing_rank", (0, 1), "unknown")
        assert not found.proven
        assert found.seq == 1
        assert "though all 2 ranks have entered it" in found.message
        assert "nothing comes through between some of them" in found.message
        assert refine_cause(found, {0: RankState.WAITS_FOR_LOCK}) == found

    @pytest.mark.parametrize("crossed", [True, False])
    def test_gpus_on_which_calls_of_two_groups_are_queued(self, crossed: bool) -> None:
        """torchrec#4149: each stream makes its calls in their order."""
        run = Run(3)
        run.new_group("pair", [0, 1])
        rows = [("pair", 1), (WORLD, 2)]
        for rank, calls in enumerate((rows[::-1] if crossed else rows, rows, rows[1:])):
            made = [
                run[rank].calls(all_reduce(8), group=group, line=line, is_async=True)
                for group, line in calls
            ]
            run[rank].waits_in(made[0])
        run.on_nccl()
        run.passes(WAITED_S)
        (found,) = run.errors()
        if not crossed:
            assert (found.kind, found.culprits) == ("missing_rank", (0, 1))
            assert "a GPU is busy" in found.message
            return
        assert (found.kind, found.culprits, found.victims) == ("deadlock", (0, 1), (2,))
        assert not found.proven
        assert 'rank 0 issued all_reduce(sum, float32[8]) #0 of group "default_pg"' in found.message
        assert [found.ranks[rank].location.line for rank in (0, 1)] == [2, 1]

    def test_whose_sequence_is_not_known_may_be_in_different_calls(self) -> None:
        """Of one name, as in what a look at stacks shows."""
        run = stuck_in_the_second(2, (1,))
        before = replace(run.snapshot(), knows=Knows(sequence=False))
        run.passes(WAITED_S)
        now = replace(run.snapshot(), knows=before.knows)
        assert [one.kind for one in diagnose(now, before, run.limits).findings] == ["stalled"]

    def test_not_before_the_limit(self) -> None:
        run = stuck_in_the_second(2, (1,))
        run.passes(WAITED_S - 10)
        assert run.errors() == []

    def test_many_bytes_take_their_time(self) -> None:
        run = Run(2)
        run.each(all_reduce(100_000_000), waits=True)
        run.passes(600)
        assert run.errors() == []
        run.passes(600)
        (found,) = run.errors()
        assert found.culprits == (0, 1)

    def test_the_programs_own_timeout_names_the_connection(self) -> None:
        run = stuck_in_the_second(4, (1, 3))
        run.passes(20)
        lost(run, 0, f"{LATE}; every rank in turn waits for another", kind="DeadlineExceeded")
        lost(run, 1, f"{LATE}; rank 0 does not answer", 0, 1, kind="DeadlineExceeded")
        for rank in (2, 3):
            lost(run, rank, f"{LATE} (told by rank 0)", kind="DeadlineExceeded")
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.victims) == ("missing_rank", (0, 1), (2, 3))
        assert "until the program's own timeout, though all 4 ranks have entered" in found.message
        assert "nothing comes through between ranks 0 and 1" in found.message

    def test_who_came_at_the_last_moment_is_no_connection(self) -> None:
        run = Run(2)
        run.each(all_reduce(8))
        run[0].calls(all_reduce(8), fails=True)
        run.passes(20)
        run[1].calls(all_reduce(8), fails=True)
        for rank in (0, 1):
            lost(run, rank, LATE, 1 - rank, rank, kind="DeadlineExceeded")
        (found,) = run.errors()
        assert found.kind == "rank_exception"

    @pytest.mark.parametrize("state", ["stopped", "gil_held"])
    def test_who_is_not_well_explains_more(self, state: str) -> None:
        run = stuck_in_the_second(2, (0, 1))
        if state == "stopped":
            run[0].is_stopped()
        else:
            run[0].heartbeat_ns = run.now_ns
        run.passes(WAITED_S)
        found = run.errors()
        if state == "stopped":
            assert [(one.culprits, one.cause) for one in found] == [((0,), "stopped")]
        else:
            assert found == []

    def test_who_is_missing_is_missing(self) -> None:
        run = Run(3)
        run.each(all_reduce(8))
        run[0, 1].calls(all_reduce(8), waits=True)
        run.passes(WAITED_S)
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.cause) == ("missing_rank", (2,), "user_code")

    def test_a_message_that_was_sent(self) -> None:
        run = Run(2)
        run[0].calls(send(1))
        run[1].calls(recv(0), waits=True)
        run[1].free_threads = 0
        run.passes(WAITED_S)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("missing_rank", (0, 1))
        assert "though rank 0 has made its part of the message" in found.message

    @pytest.mark.parametrize(("later_s", "culprits"), [(0.3, (0, 1, 2, 3)), (20, (0, 1))])
    def test_a_network_that_comes_apart_cuts_several_at_once(
        self, later_s: float, culprits: tuple[int, ...]
    ) -> None:
        """A message that began to stand much later may only be slow."""
        run = Run(4)
        run[0].calls(send(1))
        run[1].calls(recv(0), waits=True)
        run.passes(later_s)
        run[2].calls(send(3))
        run[3].calls(recv(2), waits=True)
        for rank in (1, 3):
            run[rank].free_threads = 0
        run.passes(WAITED_S - later_s)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("missing_rank", culprits)

    def test_a_message_that_was_not_sent(self) -> None:
        run = Run(2)
        run[1].calls(recv(0), waits=True)
        run.passes(WAITED_S)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("missing_rank", (0,))
