"""Mismatches of collectives: kind, culprits, the story of the histories; and their twins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distdebug.record.layout import Activity
from distdebug.record.signature import Signature

from ..builder import (
    Run,
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    recv,
    reduce_to,
    send,
)


def test_the_minority_is_the_culprit() -> None:
    run = Run(4)
    for _ in range(17):
        run.each(all_reduce(1024))
    run[0, 1, 3].calls(all_reduce(1024), waits=True, line=88)
    run[2].calls(broadcast(1024, root=0), waits=True, line=91)
    (found,) = run.diagnose().findings
    assert (found.kind, found.culprits, found.victims, found.seq) == (
        "op_mismatch",
        (2,),
        (0, 1, 3),
        17,
    )
    assert found.proven
    assert found.exit_code == 91
    assert found.message == (
        'ranks disagree at collective #17 of group "default_pg" (4 ranks): '
        "rank 2 calls broadcast(src=0, float32[1024]); "
        "ranks 0,1,3 call all_reduce(sum, float32[1024])"
    )
    assert found.details[0] == "they agree on #0 to #16"
    assert "+broadcast(src=0, float32[1024])" in found.details
    assert found.ranks[2].location is not None
    assert found.ranks[2].location.line == 91


@pytest.mark.parametrize(
    ("usual", "odd", "kind"),
    [
        (all_reduce(8), all_reduce(9), "shape_mismatch"),
        (all_reduce(8), all_reduce(8, dtype="int32"), "dtype_mismatch"),
        (all_reduce(8), all_reduce(8, op="max"), "reduce_op_mismatch"),
        (broadcast(8, root=0), broadcast(8, root=1), "root_mismatch"),
        (reduce_to(8, root=0), reduce_to(8, root=2), "root_mismatch"),
        (all_reduce(8), barrier(), "op_mismatch"),
    ],
)
def test_each_argument_has_its_kind(usual: Signature, odd: Signature, kind: str) -> None:
    run = Run(3)
    run.each(barrier())
    run[0, 2].calls(usual)
    run[1].calls(odd)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == (kind, (1,))


def test_two_ranks_have_no_majority() -> None:
    run = Run(2)
    run[0].calls(all_reduce(8), waits=True)
    run[1].calls(reduce_to(8), waits=True)
    (found,) = run.errors(settled=False)
    assert found.culprits == (0, 1)


def test_it_waits_a_moment_for_votes_that_could_turn_it() -> None:
    run = Run(4)
    run[0].calls(broadcast(8), waits=True)
    run[1].calls(all_reduce(8), waits=True)
    assert run.errors(settled=False) == []
    run[2, 3].calls(all_reduce(8), waits=True)
    (found,) = run.errors(settled=False)
    assert found.culprits == (0,)


def test_ranks_in_an_earlier_call_of_the_group_may_still_come_and_vote() -> None:
    """That call is over for others: these have only not had the processor since."""
    run = Run(4)
    run[0, 1].calls(all_reduce(8))
    run[2, 3].calls(all_reduce(8), waits=True)
    run[0].calls(broadcast(8), waits=True)
    run[1].calls(all_reduce(8), waits=True)
    assert run.errors(settled=False) == []
    for rank in (2, 3):
        run[rank].goes_on()
        run[rank].calls(all_reduce(8), waits=True)
    (found,) = run.errors(settled=False)
    assert found.culprits == (0,)


@pytest.mark.parametrize("activity", [Activity.INIT, Activity.NEW_GROUP])
def test_a_rank_for_which_the_group_is_being_made_may_still_come_and_vote(
    activity: Activity,
) -> None:
    """It is there for others, so what this one waits for has most likely come. One that waits for a
    key of a store in its own code will not come."""
    members = (0, 1, 2)
    for waits, held in ((activity, True), (Activity.STORE, False)):
        run = Run(3, joined=False)
        for rank in members:
            run.starts(rank)
        run[0, 1].has_group("0", members, desc="default_pg")
        run[2].waits_in(waits)
        run[0].calls(broadcast(1, root=0), waits=True)
        run[1].calls(broadcast(1, root=1), waits=True)
        found = run.errors(settled=False)
        assert [one.culprits for one in found] == ([] if held else [(0, 1)])
        run[2].goes_on()
        run[2].has_group("0", members, desc="default_pg")
        run[2].calls(broadcast(1, root=0), waits=True)
        (found_later,) = run.errors(settled=False)
        assert found_later.culprits == (1,)


@pytest.mark.parametrize("come", [True, False])
@pytest.mark.parametrize("message", [True, False])
def test_a_rank_may_still_come_and_vote_where_all_that_it_waits_for_has_come(
    message: bool, come: bool
) -> None:
    """It has only not had the processor since; the other two are not both wrong. Where it waits in
    vain, what there is to say is not held back."""
    run = Run(3)
    run.new_group("1", (0, 2))
    if come and message:
        run[0].calls(send(2, 4))
    elif come:
        run[0].calls(all_reduce(4), group="1")
    if message:
        run[2].calls(recv(0, 4), waits=True)
    else:
        run[2].calls(all_reduce(4), group="1", waits=True)
    run[0].calls(all_reduce(8), waits=True)
    run[1].calls(broadcast(8), waits=True)
    assert bool(run.errors()) != come
    if come:
        run[2].goes_on()
        run[2].calls(all_reduce(8), waits=True)
        (decided,) = run.errors(settled=False)
        assert decided.culprits == (1,)


def test_who_is_late_by_more_than_a_moment_still_decides_where_nobody_has_a_majority() -> None:
    run = Run(4)
    run[0].calls(broadcast(8), waits=True)
    run[1].calls(all_reduce(8), waits=True)
    run.passes(1.5)
    assert run.errors(settled=False) == []
    run[3].calls(all_reduce(8), waits=True)
    (found,) = run.errors(settled=False)
    assert found.culprits == (0,)


def test_ranks_that_enter_only_together_leave_more_time_to_who_decides() -> None:
    """At DETAIL they tell by themselves who is wrong, once the last one has come."""
    for agrees in (False, True):
        run = Run(3)
        run[0].calls(all_gather(4), waits=True, agrees=agrees)
        run[2].calls(all_gather(6), waits=True, agrees=agrees)
        run.passes(3.0)
        found = run.errors(settled=False)
        assert [one.culprits for one in found] == ([] if agrees else [(0, 2)])
        run[1].calls(all_gather(4), waits=True, agrees=agrees)
        (decided,) = run.errors(settled=False)
        assert decided.culprits == (2,)
    # One that does not come is not waited for.
    run = Run(3)
    run[0].calls(all_gather(4), waits=True, agrees=True)
    run[2].calls(all_gather(6), waits=True, agrees=True)
    run.passes(8.0)
    (found_alone,) = run.errors()
    assert found_alone.culprits == (0, 2)


def test_without_further_votes_all_who_called_are_culprits() -> None:
    run = Run(4)
    run[0].calls(broadcast(8), waits=True)
    run[1].calls(all_reduce(8), waits=True)
    run.passes(1.5)
    (found,) = run.errors()
    assert found.culprits == (0, 1)


def test_ranks_ahead_of_the_slowest_are_compared_too() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    run[0].calls(all_reduce(8), waits=True)
    run[1].calls(all_gather(8), waits=True)
    run.passes(1.5)
    (found,) = run.errors()
    assert (found.seq, found.culprits) == (1, (0, 1))


def test_a_skipped_call_is_named() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    run[0, 1].calls(broadcast(3), line=30)
    run[0, 1].calls(all_reduce(8))
    run[2].calls(all_reduce(8))
    run[2].calls(all_gather(2))
    run[0, 1].calls(all_gather(2))
    (found,) = run.errors()
    assert "rank 2 skipped broadcast(src=0, float32[3])" in found.message


def test_an_extra_call_is_named() -> None:
    run = Run(3)
    run[0].calls(broadcast(1), line=23)
    run.each(all_reduce(8))
    (found,) = run.errors()
    assert found.culprits == (0,)
    assert "rank 0 made an extra broadcast(src=0, float32[1])" in found.message


def test_a_call_too_many_is_told_by_its_line_though_it_agrees() -> None:
    """An extra forward pass makes the calls that the others make for the next one."""
    run = Run(3)
    for _ in range(2):
        run.each(all_gather(8), line=13)
        run.each(reduce_to(8), line=14)
    run[0, 1].calls(all_gather(8), line=13)
    run[2].calls(all_gather(8), line=12)
    run[0, 1].calls(reduce_to(8), line=14)
    run[2].calls(all_gather(8), line=13)
    (found,) = run.errors()
    assert found.details[0] == (
        "the ranks' lines part at #4: rank 2 at train.py:12 in step, "
        "ranks 0,1 at train.py:13 in step"
    )
    assert found.details[1] == "their calls agree on #0 to #4, their lines only on #0 to #3"


def test_of_two_ranks_too_the_line_at_which_they_part_is_told() -> None:
    run = Run(2)
    for _ in range(3):
        run.each(all_reduce(1), line=14)
    run[0].calls(all_reduce(1), line=11)
    run[0].calls(all_reduce(1), line=14, waits=True)
    run[1].calls(all_reduce(1), line=14)
    run[1].calls(barrier(), line=15, waits=True)
    (found,) = run.errors()
    assert found.culprits == (0, 1)
    assert found.details[0] == (
        "the ranks' lines part at #3: rank 1 at train.py:14 in step, rank 0 at train.py:11 in step"
    )


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_of_several_parties_the_one_that_differs_most_gives_the_kind(
    order: tuple[int, int],
) -> None:
    """Whichever of them has the lower rank: an op that is another one outweighs a root."""
    run = Run(5)
    run[0, 3, 4].calls(broadcast(4, root=0), waits=True)
    run[order[0]].calls(broadcast(4, root=1), waits=True)
    run[order[1]].calls(all_reduce(4), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("op_mismatch", (1, 2))


def test_of_several_parties_a_root_outweighs_a_shape() -> None:
    run = Run(5)
    run[0, 3, 4].calls(broadcast(4, root=0), waits=True)
    run[1].calls(broadcast(4, root=1), waits=True)
    run[2].calls(broadcast(8, root=0), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("root_mismatch", (1, 2))


def test_lines_that_always_differ_between_ranks_are_not_told() -> None:
    run = Run(3)
    for _ in range(70):
        run[0].calls(broadcast(8), line=20)
        run[1, 2].calls(broadcast(8), line=22)
    run[1, 2].calls(all_gather(8), line=30)
    run[0].calls(all_reduce(8), line=31)
    (found,) = run.errors()
    assert not any("lines" in detail for detail in found.details)


def test_history_that_is_gone_is_said_to_be_gone() -> None:
    run = Run(3)
    for seq in range(300):
        for rank in range(3):
            run[rank].calls(all_gather(8) if (rank, seq) == (1, 100) else all_reduce(8))
    for rank in range(3):
        run[rank].history.forgotten = 250
    (found,) = run.errors()
    assert found.culprits == (1,)
    assert "at or before #" in found.message


def test_the_first_difference_is_found_far_back() -> None:
    run = Run(3)
    for seq in range(300):
        for rank in range(3):
            run[rank].calls(all_gather(8) if (rank, seq) == (1, 41) else all_reduce(8))
    (found,) = run.errors()
    assert (found.seq, found.culprits) == (41, (1,))


def test_other_shape_of_equal_size_is_a_warning() -> None:
    run = Run(3)
    run[0, 1].calls(all_reduce(4, 4))
    run[2].calls(all_reduce(2, 8))
    run.each(all_reduce(4))
    (found,) = run.diagnose().findings
    assert (found.kind, found.severity, found.culprits) == ("shape_mismatch", "warning", (2,))


def test_splits_that_do_not_fit_name_the_pair() -> None:
    run = Run(3)
    run.each(barrier())
    run[0].calls(all_to_all([1, 2, 3], [1, 4, 7]))
    run[1].calls(all_to_all([4, 5, 6], [2, 5, 8]))
    run[2].calls(all_to_all([7, 9, 9], [3, 6, 9]))
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.seq) == ("split_mismatch", (1, 2), 1)
    assert "rank 2 sends 9 elements to rank 1, which expects 8" in found.message


def test_a_sub_group_has_its_own_sequence() -> None:
    run = Run(4)
    run.new_group("1", [0, 1, 2])
    run.each(all_reduce(8))
    run[0, 1].calls(all_reduce(2), group="1", waits=True)
    run[2].calls(all_gather(2), group="1", waits=True)
    run[3].calls(all_reduce(8), waits=True)
    (found,) = run.errors()
    assert (found.culprits, found.group.name, found.seq) == ((2,), "1", 0)


class TestTwins:
    """Correct, but it looks like the faults above."""

    def test_uneven_but_consistent_splits(self) -> None:
        run = Run(3)
        run[0].calls(all_to_all([1, 2, 3], [1, 4, 7]))
        run[1].calls(all_to_all([4, 5, 6], [2, 5, 8]))
        run[2].calls(all_to_all([7, 8, 9], [3, 6, 9]))
        run[0].calls(all_to_all([2, 2, 2], [2, 2, 2]), waits=True)
        assert not run.diagnose().findings

    def test_ranks_at_different_steps(self) -> None:
        run = Run(4)
        for rank in range(4):
            for _ in range(5 + 7 * rank):
                run[rank].calls(broadcast(8, root=3))
        assert not run.diagnose().findings

    def test_different_counts_on_disjoint_groups(self) -> None:
        run = Run(4)
        run.new_group("1", [0, 1])
        run.new_group("2", [2, 3])
        for _ in range(5):
            run[0, 1].calls(all_reduce(8), group="1")
        run[2, 3].calls(all_gather(8), group="2")
        assert not run.diagnose().findings

    def test_a_group_name_used_again_after_the_first_was_destroyed(self) -> None:
        run = Run(2)
        run.each(all_reduce(8))
        for rank in (0, 1):
            run[rank].destroys()
        run[0].has_group("0", [0, 1], incarnation=1, desc="default_pg")
        run[0].calls(barrier(), incarnation=1, waits=True)
        assert not run.diagnose().findings

    def test_asynchronous_calls_waited_for_in_another_order(self) -> None:
        run = Run(2)
        first = [run[rank].calls(all_reduce(8), is_async=True) for rank in (0, 1)]
        second = [run[rank].calls(all_gather(8), is_async=True) for rank in (0, 1)]
        run[0].waits_in(first[0])
        run[1].waits_in(second[1])
        assert not run.diagnose().findings


@pytest.mark.parametrize(("state", "said"), [("R", False), ("S", True)])
def test_a_call_that_may_yet_be_refused_is_waited_for(state: str, said: bool) -> None:
    """The rank has not had the processor since it made the call; a moment later it would have."""
    run = Run(3)
    run[0, 1].calls(all_reduce(8), waits=True)
    run[2].calls(broadcast(8, root=0), waits=True, bounded=True)
    run[2].process = replace(run[2].process, state=state)
    assert bool(run.errors(settled=False)) == said
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("op_mismatch", (2,))


PAIRS = {"shard0": (0, 1), "shard1": (2, 3), "shard2": (4, 5)}


def rows_of_pairs(desc: str = "mesh_shard") -> Run:
    """Each pair broadcasts from its first rank, and gathers."""
    run = Run(6)
    for name, (first, second) in PAIRS.items():
        for rank in (first, second):
            run[rank].has_group(name, [first, second], desc=desc)
            run[rank].calls(broadcast(4, root=first), group=name)
    return run


def test_other_rows_of_a_mesh_decide_where_a_pair_cannot() -> None:
    run = rows_of_pairs()
    for rank, size in enumerate((8, 8, 8, 6)):
        run[rank].calls(all_gather(size), group=f"shard{rank // 2}", waits=True)
    assert run.errors(settled=False) == []  # the third row may be a moment behind
    run.passes(2.0)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("shape_mismatch", (3,), (2,))
    assert found.details[:2] == (
        "they agree on #0",
        "the other groups that are 'mesh_shard' have all made it as rank 2 has",
    )


@pytest.mark.parametrize("why", ["named", "stage", "differ", "before", "neither"])
def test_rows_that_need_not_call_the_same_decide_nothing(why: str) -> None:
    run = rows_of_pairs("undefined" if why == "named" else "mesh_shard")
    if why == "stage":
        run[0].calls(send(2))
        run[2].calls(recv(0))
    if why == "before":
        for rank in (0, 1, 4, 5):
            run[rank].calls(barrier(), group=f"shard{rank // 2}")
        for rank in (2, 3):
            run[rank].calls(all_reduce(9), group="shard1")
    for rank, size in enumerate((8, 8, 8, 6, 8, 8)):
        third = {"differ": 6, "neither": 7}.get(why, 8) if rank > 3 else size
        run[rank].calls(all_gather(third), group=f"shard{rank // 2}", waits=rank in (2, 3))
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("shape_mismatch", (2, 3))
