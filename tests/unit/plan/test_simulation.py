"""Programs of ranks, executed and judged: what is stuck for ever is found, what is not goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from distdebug.diagnosis.facts.blocking import Model, tree_children, tree_parent
from distdebug.plan.judgement import judge_programs, simulate
from distdebug.record.layout import Activity, CallState
from tests.support.lines_of_calls import places
from tests.support.programs import Programs
from tests.unit.diagnosis.builder import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    recv,
    reduce_to,
    send,
)

AT_LUCK = "needs luck"


def errors(made: Programs, model: Model | None = None) -> list[tuple[str, tuple[int, ...]]]:
    found = judge_programs(made.programs(), model).findings
    return [(one.kind, one.culprits) for one in found if one.severity == "error"]


def warnings(made: Programs, model: Model | None = None) -> list[str]:
    found = judge_programs(made.programs(), model).findings
    return [one.kind for one in found if one.severity == "warning"]


def is_well(made: Programs, model: Model | None = None) -> bool:
    judged = judge_programs(made.programs(), model)
    return not judged.findings and judged.outcome.through


def test_a_correct_program_ends() -> None:
    made = Programs(4)
    made.each(all_reduce(8))
    made.new_group("1", [0, 2])
    made.each(all_gather(4), "1")
    made.each(broadcast(4, root=2))
    made.each(barrier())
    made.end()
    assert is_well(made)
    assert is_well(made, Model(strict=True))


def test_a_plan_has_the_lines_of_all_calls() -> None:
    made = Programs(2)
    for rank in range(2):
        made[rank].makes(send(1, 4) if rank == 0 else recv(0, 4), line=30)
        for step in range(3000):
            if (rank, step) != (1, 3):
                made[rank].makes(all_reduce(8), line=10)
            made[rank].makes(all_reduce(8), line=20)
        if rank == 1:
            made[rank].makes(all_reduce(8), line=10)
        made[rank].ends()
    ranks = simulate(made.programs()).now.ranks
    found = []
    for rank in range(2):
        (group,), (channel,) = ranks[rank].groups.values(), ranks[rank].channels
        for owner in (group, channel):
            assert owner.lines is not None
            assert len(owner.lines.surprises) < 15
            found.append([one and one.sites[0].line for one in places(owner.lines, owner.issued)])
    assert found[0] == [10, 20] * 3000
    assert found[2] == [10, 20] * 3 + [20] + [10, 20] * 2996 + [10]
    assert found[1] == found[3] == [30]


def test_whoever_stays_behind_a_mismatch_makes_no_further_call() -> None:
    made = Programs(4)
    made.each(all_reduce(8))
    for rank in range(4):
        made[rank].makes(broadcast(8) if rank == 2 else all_reduce(8), line=91)
        made[rank].makes(barrier())
    made.end()
    assert errors(made) == [("op_mismatch", (2,))]
    outcome = simulate(made.programs())
    assert {rank.calls for rank in outcome.now.ranks.values()} == {2}
    last = outcome.now.ranks[0].history
    assert last is not None
    call = last.call(1)
    assert call is not None
    assert (call.state, call.completed_ns) == (CallState.STARTED, 0)


def test_shape_dtype_reduce_op_and_root_are_compared() -> None:
    odd = {
        "shape_mismatch": all_reduce(9),
        "dtype_mismatch": all_reduce(8, dtype="float64"),
        "reduce_op_mismatch": all_reduce(8, op="max"),
    }
    for kind, signature in odd.items():
        made = Programs(3)
        for rank in range(3):
            made[rank].makes(signature if rank == 1 else all_reduce(8))
        made.end()
        assert errors(made) == [(kind, (1,))]
    made = Programs(3)
    for rank in range(3):
        made[rank].makes(broadcast(8, root=rank == 1))
    made.end()
    assert errors(made) == [("root_mismatch", (1,))]


def test_splits_must_fit_pair_by_pair() -> None:
    def rows(last: int) -> Programs:
        made = Programs(3)
        made[0].makes(all_to_all([1, 2, 3], [1, 4, 7]))
        made[1].makes(all_to_all([4, 5, 6], [2, 5, 8]))
        made[2].makes(all_to_all([7, 8, last], [3, 6, 9]))
        made.each(barrier())
        made.end()
        return made

    assert is_well(rows(9))
    assert errors(rows(10)) == [("split_mismatch", (2,))]


def test_a_call_that_raises_holds_up_nobody() -> None:
    """A backend refuses splits that do not add up, and the program tries again."""
    receives = {0: [1, 1], 1: [2, 2]}

    def tries(unfit: Sequence[int]) -> Programs:
        made = Programs(2)
        for rank in range(2):
            call = all_to_all([1, 3 if rank in unfit else 2], receives[rank])
            call = replace(call, tensors=(("float32", (3,)),))
            made[rank].makes(call, fails=rank in unfit)
        made.each(barrier())
        made.end()
        return made

    assert is_well(tries([]))
    assert is_well(tries([0, 1]))
    assert errors(tries([1])) == [("invalid_argument", (1,))]


def test_who_leaves_early_is_named() -> None:
    made = Programs(3)
    for rank in range(3):
        for _ in range(2 if rank == 1 else 3):
            made[rank].makes(all_reduce(4))
    made.end()
    assert errors(made) == [("early_exit", (1,))]


def ended_by_steps(victim_too: bool) -> Programs:
    made = Programs(3)
    for rank in range(3):
        made[rank].enough = rank > 0
        for _ in range(1 if rank == 2 and victim_too else 2 if rank else 3):
            made[rank].makes(all_reduce(4))
    made.end()
    return made


def test_who_has_no_optimiser_goes_on_behind_the_steps_of_the_others() -> None:
    assert errors(ended_by_steps(False)) == []
    assert errors(ended_by_steps(True)) == [("early_exit", (2,))]


def test_a_rank_that_raises_is_the_cause_of_all_that_others_wait_for() -> None:
    made = Programs(3)
    made.each(all_reduce(4))
    made[1].raises("ValueError: no such file")
    for rank in (0, 2):
        made[rank].makes(barrier())
    made.end([0, 2])
    assert errors(made) == [("rank_exception", (1,))]


def test_a_cleanup_that_calls_is_told_as_the_exception_that_led_to_it() -> None:
    made = Programs(3)
    made.each(all_reduce(4))
    for rank in (0, 2):
        made[rank].makes(all_reduce(8))
    number = made[1].makes(barrier(), line=23)
    made[1].notes_down("unwinding", "KeyError: 'optimiser'", 11, type="KeyError", call=number)
    made[1].raises("KeyError: 'optimiser'", 11)
    made.end([0, 2])
    assert errors(made) == [("rank_exception", (1,))]


def test_what_all_ranks_raise_is_told_once() -> None:
    made = Programs(64)
    made.each(all_reduce(4))
    for rank in range(64):
        made[rank].raises("ValueError: 7 does not divide 64", line=30)
    (found,) = judge_programs(made.programs()).findings
    assert found.kind == "rank_exception"
    assert found.message == (
        "all 64 ranks raised the same at train.py:30 in step: ValueError: 7 does not divide 64"
    )
    assert (found.culprits, found.victims) == (tuple(range(64)), ())


def test_a_checkpoint_that_one_rank_has_failed_in_is_that_rank_s() -> None:
    """torch has all ranks raise what one of them did."""
    made = Programs(3)
    made.each(all_reduce(4))
    for rank in range(3):
        made[rank].notes_down("exception", "CheckpointException", 30, failed=[1])
        made[rank].ends(1)
    assert errors(made) == [("rank_exception", (1,))]


def test_a_status_with_which_all_ranks_end_is_told_once() -> None:
    made = Programs(64)
    for rank in range(64):
        made[rank].ends(1)
    (found,) = judge_programs(made.programs()).findings
    assert (found.kind, found.message) == ("rank_died", "all 64 ranks exited with status 1")
    assert (found.culprits, found.victims) == (tuple(range(64)), ())


def test_a_status_with_which_one_rank_ends_is_that_rank_s() -> None:
    made = Programs(4)
    made[0].ends(1)
    for rank in range(1, 4):
        made[rank].makes(barrier())
        made[rank].ends()
    assert errors(made) == [("rank_died", (0,))]


def test_groups_made_in_another_order() -> None:
    made = Programs(4)
    for rank in range(4):
        order: Sequence[Sequence[int]] = [(0, 1), (2, 3)]
        for name, ranks in enumerate(reversed(order) if rank == 3 else order):
            made[rank].creates(str(name + 1), ranks)
    made.end()
    assert errors(made) == [("group_mismatch", (3,))]


def test_a_group_that_some_make_alone() -> None:
    made = Programs(4)
    made.each(barrier())
    for rank in (0, 1):
        made[rank].creates("1", [0, 1, 2])
    made.each(barrier())
    made.end()
    assert [kind for kind, _ in errors(made)] == ["group_mismatch"]


@pytest.mark.parametrize("makers", [2, 4])
def test_a_group_that_only_its_members_make_is_warned_of(makers: int) -> None:
    """They do not wait for the others; the next group that all make would be another one."""
    made = Programs(4)
    for rank in range(makers):
        made[rank].creates("1", [0, 1])
    for rank in (0, 1):
        made[rank].makes(all_reduce(4), "1")
    made.each(barrier())
    made.end()
    assert errors(made) == []
    assert warnings(made) == (["group_mismatch"] if makers == 2 else [])


def test_a_rank_without_the_default_group() -> None:
    made = Programs(3)
    made[2].groups.clear()
    for rank in (0, 1):
        made[rank].makes(barrier())
    made.end()
    assert errors(made) == [("join_timeout", (2,))]


# -- deadlocks ---------------------------------------------------------------------------------


def ring_of_groups(size: int) -> Programs:
    made = Programs(size)
    for left in range(size):
        made.new_group(str(left + 1), [left, (left + 1) % size])
    for rank in range(size):
        made[rank].makes(all_reduce(8), str(rank + 1))
        made[rank].makes(all_reduce(8), str((rank - 1) % size + 1))
    made.end()
    return made


def test_four_groups_in_a_ring() -> None:
    (found,) = judge_programs(ring_of_groups(4).programs()).findings
    assert (found.kind, found.culprits) == ("deadlock", (0, 1, 2, 3))
    assert [(step.rank, step.waits_for) for step in found.cycle] == [(0, 1), (1, 2), (2, 3), (3, 0)]


def test_groups_that_overlap_and_fit() -> None:
    made = Programs(4)
    for left in range(4):
        made.new_group(str(left + 1), [left, (left + 1) % 4])
    for rank in range(4):  # everybody in the order of the groups
        for name in sorted((rank + 1, (rank - 1) % 4 + 1)):
            made[rank].makes(all_reduce(8), str(name))
    made.end()
    assert is_well(made)


def test_asynchronous_calls_wait_where_they_are_waited_for() -> None:
    made = Programs(2)
    made.new_group("1", [0, 1])
    for rank in range(2):
        first, second = ("0", "1") if rank == 0 else ("1", "0")
        one = made[rank].makes(all_reduce(4), first, is_async=True)
        other = made[rank].makes(all_reduce(4), second, is_async=True)
        made[rank].waits(one)
        made[rank].waits(other)
    made.end()
    assert is_well(made)
    made = Programs(2)
    made.new_group("1", [0, 1])
    for rank in range(2):
        first, second = ("0", "1") if rank == 0 else ("1", "0")
        made[rank].waits(made[rank].makes(all_reduce(4), first, is_async=True), line=44)
        made[rank].makes(all_reduce(4), second)
    made.end()
    assert errors(made) == [("deadlock", (0, 1))]


def test_both_send_before_they_receive() -> None:
    made = Programs(2)
    for rank in range(2):
        made[rank].makes(send(1 - rank, 8))
        made[rank].makes(recv(1 - rank, 8))
    made.end()
    assert errors(made) == [("deadlock", (0, 1))]
    assert errors(made, Model(buffered_bytes=16)) == [("deadlock", (0, 1))]
    # 32 bytes fit: it ends, but only as long as they do.
    assert errors(made, Model(buffered_bytes=32)) == []
    assert warnings(made, Model(buffered_bytes=32)) == ["deadlock"]


ONE_BYTE = ("uint8", "int8", "bool", "float8_e4m3fn")


def two_sends_first(count: int, dtype: str, backend: str = "gloo") -> Programs:
    made = Programs(2, backend)
    for rank in range(2):
        for call in (send, send, recv, recv):
            made[rank].makes(call(1 - rank, count, dtype=dtype))
    made.end()
    return made


@pytest.mark.parametrize("dtype", [*ONE_BYTE, "int16", "float32"])
def test_what_is_buffered_counts_elements_of_their_own_size(dtype: str) -> None:
    size_bytes = {"int16": 2, "float32": 4}.get(dtype, 1)
    room = Model(buffered_bytes=60_000)
    assert errors(two_sends_first(30_000 // size_bytes, dtype), room) == []
    assert errors(two_sends_first(30_000 // size_bytes + 1, dtype), room) == [("deadlock", (0, 1))]


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_backend_may_say_what_it_buffers(dtype: str) -> None:
    says_so = Model(buffers={"tcp": 8192})
    fits = 4096 // (4 if dtype == "float32" else 1)
    for count in (0, 1, fits):
        assert errors(two_sends_first(count, dtype, "tcp"), says_so) == []
        lucky = warnings(two_sends_first(count, dtype, "tcp"), says_so)
        assert lucky == (["deadlock"] if count else [])
    assert errors(two_sends_first(fits + 1, dtype, "tcp"), says_so) == [("deadlock", (0, 1))]
    assert errors(two_sends_first(5_000, dtype, "mpi"), says_so) == []
    by_user = replace(says_so, buffered_bytes=1 << 16)
    assert errors(two_sends_first(5_000, dtype, "tcp"), by_user) == []


@pytest.mark.parametrize(("sizes", "first", "is_stuck"), [
    ((8191, 1, 1), 2, False),
    ((8192, 1, 1), 2, True),
    ((8193, 1), 1, True),
    ((4096, 4096, 1, 1), 3, True),
    ((4096, 4096, 1, 1), 1, False),  # which gives its room back
    ((9, 8192, 9), 0, False),
    ((9, 8192, 9), 2, True),  # the third does not pass the second, which waits for room
    ((1,) * 8193, 8192, False),
    ((0,) * 8194, 8193, True),  # an empty one is not for nothing
])  # fmt: skip
def test_the_room_of_a_backend_is_for_the_messages_of_all_tags(
    sizes: tuple[int, ...], first: int, is_stuck: bool
) -> None:
    """As in `test_mailbox`, where the mailboxes do it. Rank 1 waits for the message `first` before
    it receives the others: that one needs no room."""
    made = Programs(2, "tcp")
    for tag, size in enumerate(sizes):
        made[0].makes(send(1, size, tag=tag, dtype="uint8"))
    made[1].makes(recv(0, sizes[first], tag=first, dtype="uint8"))
    for tag, size in enumerate(sizes):
        if tag != first:
            made[1].makes(recv(0, size, tag=tag, dtype="uint8"))
    made.end()
    found = errors(made, Model(buffers={"tcp": 8192}))
    assert bool(found) is is_stuck, found


def test_small_messages_are_buffered_where_the_backend_does() -> None:
    def exchange(count: int) -> Programs:
        made = Programs(2, backend="mpi")
        for rank in range(2):
            made[rank].makes(send(1 - rank, count))
            made[rank].makes(recv(1 - rank, count))
        made.end()
        return made

    assert errors(exchange(8)) == []
    (found,) = judge_programs(exchange(8).programs()).findings
    assert (found.kind, found.severity, found.proven) == ("deadlock", "warning", False)
    assert found.message.startswith(AT_LUCK)
    assert errors(exchange(1 << 20)) == [("deadlock", (0, 1))]


def test_a_batch_posts_all_before_it_waits() -> None:
    made = Programs(3)
    for rank in range(3):
        left, right = (rank - 1) % 3, (rank + 1) % 3
        numbers = [
            made[rank].makes(send(right, 8), is_async=True),
            made[rank].makes(recv(left, 8), is_async=True),
        ]
        for number in numbers:
            made[rank].waits(number)
    made.end()
    assert is_well(made)


def test_tags_that_do_not_meet() -> None:
    made = Programs(2)
    made[0].makes(send(1, 8, tag=1))
    made[1].makes(recv(0, 8, tag=2))
    made.end()
    assert errors(made) == [("p2p_mismatch", (0, 1))]


def test_a_send_that_nobody_receives() -> None:
    made = Programs(2)
    made[0].makes(send(1, 8))
    made.end()
    assert errors(made) == [("unmatched_p2p", (1,))]


def test_receives_from_any_source() -> None:
    made = Programs(4)
    for rank in (1, 2, 3):
        made[rank].makes(send(0, 8))
        made[0].makes(recv(-1, 8))
    made.each(barrier())
    made.end()
    assert is_well(made)
    made = Programs(3)
    for rank in (1, 2):
        made[rank].makes(recv(0, 8))
        made[rank].makes(send(0, 8))
        made[0].makes(recv(-1, 8))
    made.end()
    assert [kind for kind, _ in errors(made)] == ["deadlock"]


# -- roots -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("root", [0, 1])
def test_the_tree_of_a_broadcast_reaches_everybody_once(size: int, root: int) -> None:
    root %= size
    reached = [root]
    for place in reached:
        children = tree_children(place, root, size)
        assert all(tree_parent(child, root, size) == place for child in children)
        reached += children
    assert sorted(reached) == list(range(size))


def test_a_root_on_gloo_waits_for_its_own_children_only() -> None:
    def made(late: int) -> Programs:
        """The root sends something more to a rank that comes to the broadcast after that."""
        found = Programs(4)
        for rank in range(4):
            if rank == late:
                found[rank].makes(recv(0, 4))
            found[rank].makes(broadcast(8))
        found[0].makes(send(late, 4))
        found.end()
        return found

    assert errors(made(1)) == [("deadlock", (0, 1))]
    assert errors(made(3)) == []  # which gets the data from rank 1
    assert warnings(made(3)) == ["deadlock"]


def test_others_do_not_wait_for_who_is_no_root_of_a_reduce() -> None:
    made = Programs(3)
    for rank in range(3):
        made[rank].makes(reduce_to(4, root=0))
        if rank:
            made[rank].makes(send(3 - rank, 4) if rank == 1 else recv(1, 4))
    made.end()
    assert is_well(made)


# -- devices -----------------------------------------------------------------------------------


def test_on_nccl_the_program_goes_on_and_waits_at_its_end() -> None:
    made = Programs(2, backend="nccl")
    made[0].makes(all_reduce(8), line=40)
    made[0].ends()
    made[1].ends()
    assert errors(made) == [("early_exit", (1,))]


# -- threads, and ranks that are not known ------------------------------------------------------


def test_threads_have_an_order_in_each_group_only() -> None:
    made = Programs(2)
    made.new_group("1", [0, 1])
    for rank in range(2):  # issued one after the other, as nobody waited when it was planned
        rows = [("0", 0), ("1", 1)]
        for group, thread in rows if rank == 0 else rows[::-1]:
            made[rank].makes(all_reduce(4), group, thread=thread)
    made.each(barrier())
    made.end()
    assert is_well(made)


def test_nothing_is_concluded_from_a_rank_that_is_not_known_to_its_end() -> None:
    from distdebug.plan.program import CutOff

    made = Programs(3)
    made.each(all_reduce(4))
    made[1].events.append(CutOff("it ran for 120 s"))
    for rank in (0, 2):
        made[rank].makes(barrier())
    made.end([0, 2])
    judged = judge_programs(made.programs())
    assert judged.findings == []
    cut = {rank: one.cut.why for rank, one in judged.outcome.standings.items() if one.cut}
    assert cut == {1: "it ran for 120 s"}
    assert not judged.outcome.through


@pytest.mark.parametrize("joins", [True, False])
def test_a_main_thread_that_joins_stands_in_what_the_others_stand_in(joins: bool) -> None:
    """Where it does not, it may as well make the call that the others wait for."""
    from distdebug.plan.program import CutOff

    made = Programs(3)
    made.each(all_reduce(4))
    for rank in (0, 1):
        made[rank].makes(barrier(), thread=1)
        made[rank].events.append(CutOff("it waits", stuck=True, joins=joins))
    made.end([2])
    assert errors(made) == ([("early_exit", (2,))] if joins else [])
    for rank in (0, 1):
        made[rank].events.pop()
        made[rank].ends()
    made[2].events.pop()
    made[2].makes(barrier())
    made[2].ends()
    assert is_well(made)


def test_whom_the_plan_does_not_have_nobody_waits_for() -> None:
    made = Programs(8)
    made.each(all_reduce(4))
    made[0].makes(send(5, 4))
    made[1].makes(recv(6, 4))
    made.each(barrier())
    made.end()
    programs = made.programs()
    some = {rank: programs[rank] for rank in (0, 1, 2)}
    judged = judge_programs(some)
    assert judged.findings == []
    assert judged.outcome.through
    for rank in (0, 1):
        made[rank].events.pop()
        made[rank].makes(send(1 - rank, 8))
        made[rank].makes(recv(1 - rank, 8))
        made[rank].ends()
    programs = made.programs()
    found = judge_programs({rank: programs[rank] for rank in (0, 1, 2)}).findings
    assert [(one.kind, one.culprits) for one in found] == [("deadlock", (0, 1))]


def test_a_rank_that_stands_still_says_in_what() -> None:
    made = ring_of_groups(4)
    outcome = simulate(made.programs())
    for rank in outcome.now.ranks.values():
        (wait,) = rank.waits
        assert (wait.activity, wait.call, rank.free_threads) == (Activity.IN_CALL, 0, 0)
        assert rank.process.alive
    assert outcome.now.taken_ns > outcome.before.taken_ns


def test_nobody_waits_in_a_world_that_some_ranks_made_for_themselves() -> None:
    made = Programs(4)
    made.each(barrier())
    for rank in range(4):
        made[rank].groups["0", 1] = replace(made[rank].groups["0", 0], key=("0", 1), ranks=(0, 1))
        made[rank].destroys()
        for _ in range(2 if rank < 2 else 3):
            made[rank].makes(broadcast(8, root=1), "0", incarnation=1)
    made.end()
    assert is_well(made)
