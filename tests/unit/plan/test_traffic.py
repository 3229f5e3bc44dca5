"""Calls and bytes by role of groups, op and step."""

from __future__ import annotations

from distdebug.plan.traffic import GroupRole, Link, Loop, lines, loop_of, traffic
from tests.support.plan_worlds import World, all_reduce, broadcast, recv, send
from tests.unit.diagnosis.builder import all_to_all


def test_a_loop_is_found_between_what_comes_before_and_after() -> None:
    assert loop_of([9, 1, 2, 2, 3, 1, 2, 2, 3, 1, 2, 2, 3, 7]) == Loop(1, 4, 3)


def test_a_loop_within_a_step_is_not_the_step() -> None:
    step = [1, 1, 1, 1, 2]
    assert loop_of(step * 3) == Loop(0, 5, 3)


def test_what_is_done_every_other_step_makes_the_step_longer() -> None:
    assert loop_of([1, 2, 1, 2, 3] * 4) == Loop(0, 5, 4)


def test_no_loop() -> None:
    assert loop_of([]) is None
    assert loop_of([1, 2, 3, 4]) is None
    assert loop_of([1, 1, 2, 3, 4, 5]) is None  # the smaller part of it


def two_axes(size: int, steps: int) -> World:
    """Four rows in each column: one call on the rows, two on the columns, in each step."""
    world = World(size)
    world.each(lambda rank: broadcast(100), line=2)
    rows = [world.group(tuple(range(at, at + 4)), "mesh_tp") for at in range(0, size, 4)]
    columns = [world.group(tuple(range(at, size, 4)), "mesh_dp") for at in range(4)]
    for _ in range(steps):
        for row in rows:
            world.each(lambda rank: all_reduce(1000), line=5, on=row)
        for column in columns:
            world.each(lambda rank: all_reduce(10), line=6, on=column)
            world.each(lambda rank: all_reduce(20), line=7, on=column)
    return world


def test_groups_are_told_as_roles_and_calls_by_step() -> None:
    found = traffic(two_axes(8, 3).ranks(), Link(10, 1))
    assert found.groups == {
        GroupRole("default_pg", 8): 1,
        GroupRole("mesh_dp", 2): 4,
        GroupRole("mesh_tp", 4): 2,
    }
    assert (found.steps, found.step_calls, found.lost) == (3, (3, 3), 0)
    rows = {row.role.name: row for row in found.rows}
    assert rows["default_pg"].step is None
    tp, dp = rows["mesh_tp"], rows["mesh_dp"]
    assert tp.step is not None
    assert dp.step is not None
    assert (tp.step.calls, tp.step.size_bytes) == ((1, 1), (4000, 4000))
    assert (dp.step.calls, dp.step.size_bytes) == ((2, 2), (120, 120))
    assert (tp.whole.calls, tp.whole.total_calls, tp.whole.total_bytes) == ((3, 3), 24, 96000)
    # A ring of four: 6 messages, and three quarters of the bytes twice.
    assert tp.step.time_us["ring"] == 6 * 10 + 6.0
    assert tp.step.fastest == "doubling"
    assert found.busiest_us == (2 * 10 + 8.0) + 2 * 10 + 0.12


def test_text_has_a_row_for_each_role() -> None:
    text = "\n".join(lines(traffic(two_axes(8, 3).ranks())))
    assert "mesh_tp (4 ranks) x 2" in text
    assert "mesh_dp (2 ranks) x 4" in text
    assert "a step is what repeats: 3 calls, 3 times" in text
    assert "outside the steps: broadcast of default_pg (8 ranks)" in text


def test_groups_without_a_name_are_those_of_their_line() -> None:
    world = World(4)
    for edge in [(0, 1), (1, 2), (2, 3), (3, 0)]:
        key = world.group(tuple(sorted(edge)), line=9)
        world.each(lambda rank: all_reduce(1), on=key)
    [row] = traffic(world.ranks()).rows
    assert row.role == GroupRole("made at train.py:9 in main", 2)
    assert (row.whole.calls, row.whole.total_calls) == ((2, 2), 8)


def test_ranks_differ_in_messages() -> None:
    world = World(3)
    for _ in range(2):
        for rank in range(3):
            if rank:
                world.calls(rank, recv(rank - 1, 256))
            if rank < 2:
                world.calls(rank, send(rank + 1, 256))
    rows = {row.op: row for row in traffic(world.ranks()).rows}
    assert (rows["send"].ranks, rows["recv"].ranks) == (2, 2)
    assert rows["send"].whole.link_bytes == {"message": 2048.0}


def test_nothing_on_record() -> None:
    assert list(lines(traffic([]))) == ["no call is on record"]


def test_an_algorithm_that_cannot_do_all_of_the_calls_is_no_choice() -> None:
    """Bruck's is for equal splits: beside uneven ones it would take less, having done less."""
    even, uneven = all_to_all([6] * 4, [6] * 4), all_to_all([21, 1, 1, 1], [6] * 4)
    found = []
    for signatures in ([even], [even, uneven]):
        world = World(4)
        for signature in signatures:
            world.each(lambda _, made=signature: made)
        (row,) = traffic(world.ranks(), Link(10, 1)).rows
        found.append((row.whole.fastest, dict(row.whole.link_bytes)))
    assert found == [
        ("bruck", {"pairwise": 72.0, "bruck": 96.0}),
        ("pairwise", {"pairwise": 72.0 + 92.0}),
    ]
