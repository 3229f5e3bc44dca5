"""Groups that ranks create differently, or that only some create; and their twins."""

from __future__ import annotations

from distdebug.record.layout import Activity

from ..builder import Run, all_reduce, barrier


def test_other_ranks() -> None:
    run = Run(4)
    run[0, 1, 2].creates("1", [0, 1, 2], waits=True)
    run[3].creates("1", [0, 1, 3], waits=True)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.victims) == ("group_mismatch", (3,), (0, 1, 2))
    assert "-new_group([0,1,2])" in found.details
    assert found.ranks[3].location.line == 12


def test_pairs_without_a_majority() -> None:
    run = Run(4)
    run[0, 1].creates("1", [0, 1])
    run[2, 3].creates("1", [2, 3])
    (found,) = run.errors()
    assert found.culprits == (0, 1, 2, 3)


def test_another_order() -> None:
    run = Run(3)
    run[0, 1].creates("1", [0, 1], waits=True)
    run[2].creates("1", [1, 2], waits=True)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits) == ("group_mismatch", (2,))


def test_with_a_tie_it_is_those_who_skipped() -> None:
    run = Run(2)
    run[0].creates("1", [0])
    run[0].creates("2", [0, 1], waits=True)
    run[1].creates("1", [0, 1], waits=True)
    (found,) = run.errors()
    assert found.culprits == (1,)


def test_a_member_that_waits_elsewhere() -> None:
    run = Run(3)
    run[0, 1].creates("1", [0, 1, 2], waits=True)
    run[2].calls(all_reduce(4), waits=True, line=21)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.victims) == ("group_mismatch", (2,), (0, 1))
    assert found.ranks[2].location.line == 21


def test_a_rank_that_comes_to_a_creation_before_all_others() -> None:
    run = Run(4)
    run[1].creates("1", [0, 1], waits=True)
    run[0, 2, 3].calls(all_reduce(4), waits=True, line=21)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.victims) == ("group_mismatch", (1,), (0, 2, 3))
    assert found.ranks[1].state == "in new_group"


def test_a_rank_that_passed_a_creation_of_others_has_come_to_it() -> None:
    run = Run(4)
    run[1].creates("1", [0, 1], waits=True)
    run[2, 3].creates("1", [0, 1])
    run[0, 2, 3].calls(all_reduce(4), waits=True, line=21)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits) == ("group_mismatch", (0,))


def test_a_member_that_has_finished() -> None:
    run = Run(3)
    run[0, 1].creates("1", [0, 1, 2], waits=True)
    run[2].exits(0)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.proven) == ("group_mismatch", (2,), True)


def test_the_barrier_after_a_creation_needs_the_whole_world() -> None:
    run = Run(3)
    run[0, 1].creates("1", [0, 1])
    run[0, 1].waits_in(Activity.STORE, key="store_based_barrier_key:1:last_worker")
    run[2].calls(barrier(), waits=True)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits) == ("group_mismatch", (2,))


class TestTwins:
    """Correct, but it looks like the faults above."""

    def test_a_rank_that_is_late_to_create(self) -> None:
        run = Run(3)
        run[0, 1].creates("1", [0, 1, 2], waits=True)
        assert not run.diagnose().findings

    def test_a_rank_outside_the_group_that_creates_it_later(self) -> None:
        run = Run(3)
        run[0].creates("1", [0, 1], waits=True)
        run[2].calls(all_reduce(4), waits=True)
        assert not run.diagnose().findings

    def test_a_rank_that_ends_with_fewer_groups(self) -> None:
        run = Run(3)
        run.new_group("1", [0, 1, 2])
        run[0, 1].creates("2", [0, 1])
        run[0, 1, 2].exits(0)
        assert not run.diagnose().findings

    def test_groups_that_only_their_members_create(self) -> None:
        run = Run(4)
        run[0, 1].has_group("a8f1", [0, 1])
        run[2].waits_in(Activity.NEW_GROUP, name="b2c3", ranks=[2, 3])
        run[3].calls(all_reduce(4))
        assert not run.diagnose().findings

    def test_everybody_creates_a_group_of_itself(self) -> None:
        run = Run(2)
        run[0].creates("1", [0])
        run[1].creates("1", [1])
        assert run.errors() == []


def ends(run: Run) -> None:
    run[:].exits(0)
    run.finished = True


def test_a_creation_that_a_rank_left_out_without_harm_is_warned_of() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    run[1, 2].creates("1", [1, 2])
    run.each(all_reduce(8))
    assert run.errors() == []
    ends(run)
    (found,) = run.diagnose().findings
    assert (found.kind, found.severity) == ("group_mismatch", "warning")
    assert (found.culprits, found.victims) == ((0,), (1, 2))
    assert found.message.startswith("ranks 1,2 create group '1' of ranks 1,2 at train.py:12 in ")


def test_a_rank_that_had_left_by_then_leaves_nothing_out() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    run[1, 2].creates("1", [1, 2])
    ends(run)
    assert run.diagnose().findings == ()
