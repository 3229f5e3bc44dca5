"""Worlds that never come together; and their twins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from distdebug.diagnosis.diagnose import diagnose
from distdebug.diagnosis.findings import Finding
from distdebug.diagnosis.shared_findings import heard_at
from distdebug.record.layout import Activity, GroupState
from distdebug.record.snapshot import LostNode

from ..builder import Run, all_reduce, barrier


def joining(size: int, *ranks: int) -> Run:
    run = Run(size, joined=False)
    for rank in ranks:
        run.starts(rank).waits_in(Activity.INIT, op="init_process_group")
    return run


def after_the_end() -> Run:
    """Rank 0 has run to its end; a process that calls itself rank 1 waits for the world."""
    run = joining(2, 1)
    run.ranks[0] = Run(2).ranks[0]
    run.ranks[0].exits(0)
    return run


def test_a_rank_that_never_starts() -> None:
    run = joining(4, 0, 1, 2)
    run.passes(14)
    result = run.diagnose()
    assert result.findings == ()
    assert [one.text for one in result.notices] == ["rank 3 has not joined the world yet (15 s)"]
    run.passes(50)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.missing) == ("join_timeout", (3,), (3,))
    assert not found.proven
    assert "rank 3 has not imported torch" in found.message


def test_a_rank_that_runs_but_does_not_join() -> None:
    run = joining(3, 0, 1)
    run.starts(2)
    run.passes(61)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.missing) == ("join_timeout", (2,), ())
    assert found.ranks[2].location.line == 40


def test_the_limit_counts_from_the_last_that_joined() -> None:
    """Also where the absent rank runs: before that, it is no more than late."""
    run = joining(3, 0)
    run.passes(40)
    run.starts(1).waits_in(Activity.INIT)
    run.starts(2)
    run.passes(50)
    assert run.errors() == []
    run.passes(11)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("join_timeout", (2,), (0, 1))


def test_a_rank_that_finished_before_joining() -> None:
    run = joining(3, 0, 1)
    run.starts(2).exits(0)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.proven) == ("join_timeout", (2,), True)


def test_two_processes_with_one_rank() -> None:
    run = joining(3, 0, 1)
    rival = joining(3, 1).ranks[1]
    rival.pid = 77
    run.rivals.append(rival)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.proven) == ("join_timeout", (1,), True)
    assert "pid 77 and pid 1001" in found.message


def test_a_twin_that_comes_when_the_others_have_finished() -> None:
    run = after_the_end()
    rival = Run(2).ranks[1]
    rival.exits(0)
    rival.pid = 77
    run.rivals.append(rival)
    assert run.errors() == []
    run.passes(60)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.cause) == ("join_timeout", (1,), "duplicate")
    assert "pid 77 took part" in found.message


def test_twins_that_took_part_and_are_gone() -> None:
    """Nobody waits for anybody: one of them raised what the confusion made, or nothing did."""
    run = Run(2)
    run.each(all_reduce(8))
    rival = Run(2).ranks[1]
    rival.pid = 77
    run.rivals.append(rival)
    run.passes(3)
    for rank in (run.ranks[0], run.ranks[1], rival):
        rival.run.now_ns = run.now_ns
        rank.exits(0)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.cause) == ("join_timeout", (1,), "duplicate")
    assert "pid 77 and pid 1001" in found.message
    assert "in vain" not in found.message


def test_a_rank_that_comes_when_the_others_have_finished() -> None:
    run = after_the_end()
    assert run.errors() == []
    run.passes(60)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.cause) == ("join_timeout", (1,), "late")
    assert "rank 0 has ended" in found.message


def test_a_port_that_is_taken() -> None:
    run = joining(2, 0, 1)
    run[0].raises(
        "DistNetworkError: The server socket has failed to listen: EADDRINUSE, Address already "
        "in use",
        address_in_use=True,
        rendezvous="127.0.0.1:29500",
        communication=True,
    )
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.cause) == ("join_timeout", (0,), "port")
    assert found.data["address"] == "127.0.0.1:29500"
    held = heard_at(found, "127.0.0.1:29500", "process 5 (nginx)")
    assert held.details[0] == "127.0.0.1:29500 is held by process 5 (nginx)"
    assert heard_at(found, "127.0.0.1:29500", "").details[0] == (
        "nobody listens at 127.0.0.1:29500 any more"
    )


def test_a_stale_file_store() -> None:
    run = joining(2, 0, 1)
    run[0, 1].notes_down("stale_store", "the FileStore holds old keys", path="/tmp/rdzv")
    assert run.errors() == []
    run.passes(60)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.cause) == ("join_timeout", (0, 1), "stale_store")
    assert "/tmp/rdzv" in found.message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "was written before this run (/tmp/rdzv), left by"),
        ({"users": 5}, "was written before this run and has 5 entries for 2 ranks (/tmp/rdzv)"),
        ({"users": 5, "by_count": True}, "has 5 entries for 2 ranks (/tmp/rdzv), left by"),
    ],
)
def test_what_is_known_of_a_stale_file(data: dict[str, Any], words: str) -> None:
    run = joining(2, 0, 1)
    run[0].notes_down("stale_store", path="/tmp/rdzv", **data)
    run[1].notes_down("stale_store", path="/tmp/rdzv", **{**data, "users": 6 if data else 0})
    run.passes(60)
    (found,) = run.errors()
    assert f"through a FileStore whose file {words}" in found.message


def test_the_programs_own_timeout() -> None:
    run = joining(3, 0, 1)
    run[0].raises("DistStoreError: Timed out after 5 seconds waiting for clients. 2/3 joined")
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("join_timeout", (2,))


def test_twins_of_whom_one_had_just_begun_when_the_other_was_through() -> None:
    """The others have made the group once, so it was one group that both were in."""
    run = Run(3)
    run.each(all_reduce(8))
    rival = Run(3).ranks[2]
    rival.pid = 77
    run.rivals.append(rival)
    rival.exits(0)
    run.passes(-0.05)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.cause) == ("join_timeout", (2,), "duplicate")


class TestTwins:
    """Correct, but it looks like the faults above."""

    def test_a_late_joiner(self) -> None:
        run = joining(3, 0, 1)
        run.passes(50)
        assert not run.diagnose().findings

    def test_a_large_world_whose_ranks_come_one_after_the_other(self) -> None:
        run = joining(5, 0)
        for rank in (1, 2, 3):
            run.passes(40)
            run.starts(rank).waits_in(Activity.INIT)
            result = run.diagnose()
            assert (result.findings, result.notices) == ((), ())
        run.passes(61)
        (found,) = run.errors()
        assert (found.culprits, found.victims) == ((4,), (0, 1, 2, 3))
        assert "has not joined for 63 s" in found.message

    def test_the_old_process_of_a_restarted_rank(self) -> None:
        run = joining(2, 0, 1)
        old = joining(2, 1).ranks[1]
        old.pid = 77
        old.job = "another"
        run.rivals.append(old)
        assert not run.diagnose().findings

    def test_a_generation_that_begins_while_the_one_before_ends(self) -> None:
        run = Run(2)
        run.each(all_reduce(8))
        for old in Run(2).ranks.values():
            old.exits(0)
            old.pid += 500
            run.rivals.append(old)
        run.passes(3)
        assert not run.diagnose().findings

    def test_a_second_world_that_one_rank_joins_first(self) -> None:
        run = Run(2)
        run.each(all_reduce(8))
        run[0, 1].destroys()
        run[0].has_group("0", [0, 1], incarnation=1, desc="default_pg", state=GroupState.CREATING)
        run[0].waits_in(Activity.INIT)
        assert not run.diagnose().findings

    def test_an_initialisation_that_is_at_its_end(self) -> None:
        """A crowded machine may leave a rank there for long, when another goes on already."""
        run = Run(2)
        run[0].waits_in(Activity.INIT)
        run[1].creates("1", [0, 1], waits=True)
        run.passes(3)
        assert not run.diagnose().findings

    def test_a_warning_about_the_store_of_a_run_that_works(self) -> None:
        run = Run(2)
        run[0].notes_down("stale_store", path="/tmp/rdzv")
        run.each(all_reduce(8))
        assert not run.diagnose().findings


def test_one_rank_waits_at_another_address() -> None:
    run = joining(3, 0, 1, 2)
    for rank in run.ranks.values():
        rank.job = f"10.0.0.1:{29500 + (rank.rank == 2)}"
    assert run.errors() == []
    run.passes(61)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("join_timeout", (2,), (0, 1))
    assert not found.proven
    assert "rank 2 waits at 10.0.0.1:29501 for a world of 3" in found.message


def of_another_size(waits: int, joined: tuple[int, ...]) -> Run:
    """Rank `waits` was told that there are four; for those that have joined three were enough."""
    run = joining(3, *({0, 1, 2} - {*joined}))
    for rank in joined:
        run.ranks[rank] = Run(3).ranks[rank]
    for rank in run.ranks.values():
        rank.job = "10.0.0.1:29500"
        rank.world_size = 4 if rank.rank == waits else 3
    return run


@pytest.mark.parametrize("joined", [(), (2,), (0, 2)])
def test_one_rank_waits_for_a_world_of_another_size(joined: tuple[int, ...]) -> None:
    run = of_another_size(1, joined)
    run.passes(61)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("join_timeout", (1,), (0, 2))
    assert "rank 1 waits at 10.0.0.1:29500 for a world of 4" in found.message
    assert ("ranks 0,2 have joined at" in found.message) == (len(joined) == 2)


def test_a_world_of_another_size_where_a_group_is_there_before_all_is_over() -> None:
    """At DETAIL the initialisation goes on with a network of the agreement's own."""
    run = of_another_size(1, (0, 2))
    for rank in (0, 2):
        run[rank].waits_in(Activity.INIT)
    run.passes(61)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("join_timeout", (1,))


def test_a_world_of_another_size_that_the_backend_refuses() -> None:
    """Whoever sees it first, raises first."""
    run = of_another_size(1, ())
    run[0].raises("RendezvousError: rank 1 makes the group with other ranks", rendezvous="there")
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("join_timeout", (1,), (0, 2))
    twin = joining(3, 0, 1, 2)
    twin[0].raises("RendezvousError: the launcher does not know it", rendezvous="there")
    (found,) = twin.errors()
    assert (found.kind, found.culprits) == ("rank_exception", (0,))


def test_a_world_of_another_size_whose_other_ranks_have_finished() -> None:
    run = of_another_size(1, (0, 2))
    run.passes(30)
    run[0, 2].exits()
    run.passes(31)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("join_timeout", (1,), (0, 2))
    assert "ranks 0,2 have joined at 10.0.0.1:29500 for a world of 3; rank 1 waits" in found.message


def made_with_other_ranks(job: str = "10.0.0.1:29500") -> Run:
    """gloo connects at the first call: rank 2 has a group of three, ranks 0 and 1 have one of
    two."""
    run = Run(3)
    for rank in (0, 1):
        run.ranks[rank] = Run(2).ranks[rank]
        run.ranks[rank].run = run
    for rank in run.ranks.values():
        rank.job = "10.0.0.1:29500" if rank.rank < 2 else job
        rank.world_size = 3 if rank.rank == 2 else 2
    run[0, 1].calls(barrier())
    run[2].calls(barrier(), waits=True)
    run[0, 1].exits()
    return run


def test_groups_of_other_sizes_that_were_made_all_the_same() -> None:
    (found,) = made_with_other_ranks().errors()
    assert (found.kind, found.culprits, found.victims) == ("join_timeout", (2,), (0, 1))
    assert found.proven
    assert found.message == (
        "ranks do not join the same world: ranks 0,1 have joined at 10.0.0.1:29500 for a world of "
        "2; rank 2 has joined at 10.0.0.1:29500 for a world of 3"
    )


def test_groups_of_other_sizes_of_two_jobs() -> None:
    errors = made_with_other_ranks("10.0.0.1:29501").errors()
    assert all("same world" not in one.message for one in errors)


def test_who_has_joined_elsewhere_is_no_party() -> None:
    run = of_another_size(1, (0, 2))
    run.ranks[0].job = run.ranks[2].job = "10.0.0.1:29501"
    run.passes(61)
    assert all("same world" not in one.message for one in run.errors())


def test_a_rank_beyond_the_world() -> None:
    run = joining(2, 1, 2)
    run.passes(61)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.missing) == ("join_timeout", (0,), (0,))
    assert found.message.endswith("rank 2 is outside of it: ranks count from 0 to 1")


def test_a_store_of_their_own_whose_host_waits_for_all() -> None:
    """What the launcher has told of the rendezvous is not where they will meet."""
    run = Run(3, joined=False)
    for rank in range(3):
        run.starts(rank).job = "TCPStore:4711" if rank == 1 else "127.0.0.1:29500"
    run[0].waits_in(Activity.INIT, op="TCPStore", awaited=3)
    run[1].waits_in(Activity.INIT)
    run.passes(100)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("join_timeout", (2,), (0, 1))
    assert found.ranks[0].state == "in TCPStore()"


def test_who_has_joined_is_not_who_did_not_come() -> None:
    """gloo could not connect one of them, and called it a timeout."""
    run = Run(2)
    run[0].calls(all_reduce(8), waits=True)
    run[1].groups.clear()
    run[1].raises("RuntimeError: timed out connecting: SO_ERROR: Connection refused")
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("rank_exception", (1,))


def frozen_as_it_joined(size: int) -> Run:
    """Of rank 1 nothing is known since it began to join: its record was cut short then."""
    run = Run(size)
    run.ranks[1] = joining(size, 1).ranks[1]
    run[1].notes_down("layer_off", "somebody has cut the flight record short")
    return run


def test_a_rank_that_was_last_seen_joining_waits_for_nobody() -> None:
    """It has joined long since, as the end of the other one shows."""
    run = frozen_as_it_joined(2)
    run[0].exits(0)
    run.passes(100)
    assert run.errors() == []
    twin = after_the_end()
    twin.passes(100)
    assert [one.culprits for one in twin.errors()] == [(1,)]


def test_a_rank_that_was_last_seen_joining_is_not_missed() -> None:
    run = frozen_as_it_joined(3)
    run.ranks[2] = joining(3, 2).ranks[2]
    run.passes(100)
    assert [one for one in run.errors() if 1 in one.culprits] == []


def of_a_part(run: Run, lost: tuple[LostNode, ...] = ()) -> list[Finding]:
    """The errors where other nodes may have more ranks, of which nobody tells."""
    before = replace(run.snapshot(), world_size=0, lost=lost)
    run.passes(1.0)
    found = diagnose(replace(run.snapshot(), world_size=0, lost=lost), before, run.limits)
    return [one for one in found.findings if one.severity == "error"]


def test_the_one_rank_that_nobody_watches_has_not_come() -> None:
    run = joining(3, 0, 2)
    run.passes(50)
    assert of_a_part(run) == []
    run.passes(10)
    (found,) = of_a_part(run)
    assert (found.kind, found.culprits, found.missing) == ("join_timeout", (1,), (1,))
    assert (found.victims, found.proven) == ((0, 2), False)
    assert "rank 1 has not joined for 62 s" in found.message
    assert "no distdebug of this job watches its node" in found.message


def test_of_several_that_nobody_watches_none_is_to_blame() -> None:
    """All but one of them may have come."""
    run = joining(4, 0, 2)
    run.passes(61)
    (found,) = of_a_part(run)
    assert (found.kind, found.culprits, found.missing) == ("join_timeout", (), (1, 3))
    assert "one of ranks 1,3 has not joined" in found.message


def test_whoever_is_not_watched_may_wait_for_one_that_is() -> None:
    """Here one of those that are watched is at work, so the others' wait says nothing."""
    run = joining(4, 0, 2)
    run.starts(3)
    run.passes(61)
    assert all(1 not in one.culprits + one.missing for one in of_a_part(run))


def test_where_all_have_come_nobody_is_missed() -> None:
    run = joining(2, 0, 1)
    run.passes(61)
    assert [one.kind for one in of_a_part(run)] == ["stalled"]


def test_a_store_that_nobody_serves_lacks_no_rank() -> None:
    run = joining(3)
    for rank in (0, 2):
        run.starts(rank).waits_in(Activity.INIT, address="host:29500", all_clients=True)
    run.passes(61)
    assert [one.kind for one in of_a_part(run)] == ["stalled"]


def test_who_was_on_a_node_that_is_lost_is_not_missed() -> None:
    run = joining(3, 0, 2)
    run.passes(61)
    lost = LostNode("node1", run.now_ns, (1,))
    assert "join_timeout" not in [one.kind for one in of_a_part(run, (lost,))]
