"""Where two runs differ first, rank by rank or role by role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from distdebug.plan.compare import document
from distdebug.plan.compare.comparison import UNLIKE_ANY, Comparison, compare
from distdebug.plan.traffic import RankCalls
from distdebug.record.signature import Signature
from tests.support.plan_worlds import World, all_gather, all_reduce, broadcast, recv, send


def training(size: int, steps: int, wrong: int = -1, at: int = -1) -> World:
    """Each step a sum and a maximum; rank `wrong` broadcasts at step `at`, where it ends, and all
    others wait for it."""
    world = World(size)
    world.each(lambda rank: broadcast(100), line=2)
    for step in range(steps):
        if step == at:
            world.each(lambda rank: broadcast(8) if rank == wrong else all_reduce(8), line=5)
            return world
        world.each(lambda rank: all_reduce(8), line=5)
        world.each(lambda rank: all_reduce(1, op="max"), line=6)
    world.each(lambda rank: Signature("barrier"), line=9)
    return world


def told(found: Comparison) -> tuple[str, tuple[int, ...], int]:
    """The first difference: its kind, the ranks of B, and the call of A."""
    assert found.first is not None
    pairing, _ = found.first
    hard = next((one for one in pairing.differences if one.is_hard), pairing.differences[0])
    return hard.kind, pairing.other_ranks, hard.number


def text(found: Comparison) -> str:
    sides = (document.Side("good"), document.Side("bad", is_plan=True))
    return "\n".join(document.lines(found, sides))


def test_equal() -> None:
    found = compare(training(4, 3).ranks(), training(4, 3).ranks())
    assert found.equal
    assert found.is_exact
    assert "EQUAL" in text(found)
    assert document.as_json(found, (document.Side("a"), document.Side("b")))["first"] is None


def test_one_rank_takes_another_branch() -> None:
    found = compare(training(4, 5).ranks(), training(4, 5, wrong=2, at=3).ranks())
    assert told(found) == ("op", (2,), 7)
    assert found.first is not None
    [difference] = found.first[0].differences
    assert difference.step == 3
    victims = found.pairings[1]
    assert (victims.other_ranks, victims.differences[0].kind) == ((0, 1, 3), "ends")
    shown = text(found)
    assert "rank 2: another call" in shown
    assert "B #7       broadcast(src=0, float32[8])   train.py:5 in main" in shown


def test_more_steps_are_the_same_step() -> None:
    found = compare(training(4, 100).ranks(), training(4, 2).ranks())
    assert told(found)[0] == "steps"
    assert found.first is not None
    assert found.first[1].is_hard is False
    assert "A 100 times, B 2 times the same step" in text(found)
    assert compare(training(4, 100).ranks(), training(4, 2).ranks(), ["steps"]).equal


def test_a_call_that_was_skipped_among_equal_ones() -> None:
    def summing(wrong: int) -> list[RankCalls]:
        world = World(2)
        for step in range(24):
            for line in (5, 6, 7):
                for rank in range(2):
                    if (rank, step, line) != (wrong, 10, 6):
                        world.calls(rank, all_reduce(8), line=line)
        return world.ranks()

    found = compare(summing(-1), summing(1))
    assert [one.other_ranks for one in found.pairings if one.differences] == [(1,)]
    said = 'B skipped train.py:6 in main, from #31 of group "default_pg" on'
    assert said in text(found)
    assert "parted" not in {
        one.kind
        for pairing in compare(summing(-1), summing(1), ["line"]).pairings
        for one in pairing.differences
    }
    assert compare(summing(1), summing(1)).equal


def test_a_run_that_stops_in_the_middle_of_a_step() -> None:
    """As one that hangs: the others wait in their next call."""
    cut = training(4, 100)
    for events in cut.events.values():
        del events[1 + 2 * 57 + 1 :]
    found = compare(training(4, 100).ranks(), cut.ranks())
    assert told(found) == ("ends", (0, 1, 2, 3), 1 + 2 * 57 + 1)


def change(world: World, body: Callable[[int, Signature, int], tuple[Signature, int]]) -> World:
    """The same world, with calls that `body` makes of (rank, signature, line)."""
    other = World(world.size)
    other.groups = world.groups
    for rank, program in world.programs().items():
        for event in program.events:
            call = getattr(event, "call", None)
            if call is None:
                other.events[rank].append(event)
            else:
                signature, line = body(rank, call.signature, call.site.line)
                other.calls(rank, signature, line=line, on=call.group)
    return other


def test_lines_that_moved_hide_nothing() -> None:
    good = training(4, 3)
    moved = change(good, lambda rank, signature, line: (signature, line + 10))
    found = compare(good.ranks(), moved.ranks())
    assert told(found) == ("line", (0, 1, 2, 3), 0)
    assert compare(good.ranks(), moved.ranks(), ["line"]).equal
    wrong = change(
        moved,
        lambda rank, signature, line: (
            replace(signature, reduce_op="min") if (rank, line) == (1, 16) else signature,
            line,
        ),
    )
    assert told(compare(good.ranks(), wrong.ranks())) == ("reduce_op", (1,), 2)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("shape", all_reduce(9)),
        ("dtype", replace(all_reduce(8), tensors=(("float16", (8,)),))),
        ("reduce_op", all_reduce(8, op="avg")),
        ("op", broadcast(8)),
    ],
)
def test_each_field_of_a_call(kind: str, changed: Signature) -> None:
    good = training(4, 1)
    bad = change(
        good,
        lambda rank, signature, line: (changed if (rank, line) == (3, 5) else signature, line),
    )
    assert told(compare(good.ranks(), bad.ranks())) == (kind, (3,), 1)


def test_a_root_is_a_rank_in_worlds_of_one_size_and_a_place_in_others() -> None:
    def world(size: int, root: int) -> World:
        made = World(size)
        made.each(lambda rank: broadcast(4, root=root), line=3)
        return made

    assert told(compare(world(4, 3).ranks(), world(4, 2).ranks()))[0] == "root"
    assert compare(world(4, 3).ranks(), world(16, 15).ranks()).equal
    assert told(compare(world(4, 3).ranks(), world(16, 3).ranks()))[0] == "root"


def pipeline(size: int, reverse_at: int = -1) -> World:
    world = World(size)
    for rank in range(size):
        if rank:
            world.calls(rank, recv(rank - 1, 8), line=4)
        if rank < size - 1:
            world.calls(rank, send(rank + 1 if rank != reverse_at else rank - 1, 8), line=6)
    return world


def test_neighbours_are_the_same_in_greater_worlds() -> None:
    assert compare(pipeline(4).ranks(), pipeline(64).ranks()).equal


def test_one_of_many_ranks_sends_the_wrong_way() -> None:
    found = compare(pipeline(4).ranks(), pipeline(1024, reverse_at=700).ranks())
    assert told(found) == ("peer", (700,), 1)


def test_the_first_difference_is_where_the_program_depends_on_its_size() -> None:
    def world(size: int) -> World:
        made = World(size)
        made.each(lambda rank: all_reduce(8), line=3)
        made.each(lambda rank: all_gather(size, 1024 // size), line=4)
        if size > 16:
            made.each(lambda rank: Signature("barrier"), line=7)
        made.each(lambda rank: all_reduce(8), line=9)
        return made

    assert told(compare(world(4).ranks(), world(16).ranks())) == ("shape", tuple(range(16)), 1)
    assert compare(world(4).ranks(), world(16).ranks(), ["shape"]).equal
    found = compare(world(8).ranks(), world(64).ranks())
    hard = [one for one in found.pairings[0].differences if one.is_hard]
    assert (hard[0].kind, hard[0].other and hard[0].other.site and hard[0].other.site.line) == (
        "op",
        7,
    )
    assert "another call" in text(found)


def test_inner_ranks_that_differ_as_all_others_do_are_told_with_them() -> None:
    """Seen from rank 1 the root of a broadcast is the rank before, seen from rank 2 it is not."""

    def world(size: int) -> World:
        made = World(size)
        made.each(lambda rank: broadcast(8) if size <= 8 else all_gather(size, 8), line=4)
        return made

    found = compare(world(8).ranks(), world(64).ranks())
    [differing] = found.pairings
    assert (differing.ranks, differing.other_ranks) == (tuple(range(8)), tuple(range(64)))
    assert differing.differences[0].kind == "op"


def test_a_role_that_the_other_world_does_not_have() -> None:
    def world(size: int, coordinator: int) -> World:
        made = World(size)
        for rank in range(size):
            if rank == coordinator:
                made.calls(rank, broadcast(4, root=rank), line=9)
            made.calls(rank, all_reduce(8), line=3)
        return made

    found = compare(world(4, coordinator=1).ranks(), world(8, coordinator=-1).ranks())
    [differing] = [one for one in found.pairings if one.differences]
    assert (differing.ranks, differing.other_ranks) == ((1,), ())
    assert differing.differences[0].kind == UNLIKE_ANY
    assert "rank 1 of A: no rank of B does what these do" in text(found)
    assert told(compare(world(4, -1).ranks(), world(8, coordinator=0).ranks())) == ("op", (0,), 0)


def test_ranks_and_groups_that_are_missing() -> None:
    good, bad = training(4, 2), training(4, 2)
    good.group((0, 1), "tp")
    found = compare(good.ranks(), bad.ranks()[:3])
    assert found.missing == ((), (3,))
    assert list(found.groups) == ['groups "tp" of 2 ranks: A has 1, B 0']
    assert not found.equal


def forgetful(ranks: Sequence[RankCalls], kept: int) -> list[RankCalls]:
    """With the last calls alone."""
    return [
        replace(one, calls=one.calls[-kept:], lost=len(one.calls) - kept)
        for one in ranks
    ]  # fmt: skip


def test_records_that_have_forgotten_their_first_calls() -> None:
    good, bad = training(4, 50), training(4, 50, wrong=1, at=45)
    assert compare(forgetful(good.ranks(), 40), forgetful(good.ranks(), 30)).equal
    found = compare(forgetful(good.ranks(), 40), forgetful(bad.ranks(), 30))
    assert told(found) == ("op", (1,), 1 + 2 * 45)
    found = compare(forgetful(good.ranks(), 40), training(4, 2).ranks())
    assert told(found)[0] == "steps"


def test_chains_tell_what_is_no_longer_on_record() -> None:
    def chained(chain: int) -> list[RankCalls]:
        return [
            replace(one, calls=[replace(call, chain=chain) for call in one.calls])
            for one in forgetful(training(4, 50).ranks(), 40)
        ]

    assert compare(chained(5), chained(5)).equal
    assert told(compare(chained(5), chained(6)))[0] == "before"


def test_a_group_that_is_the_whole_world_in_the_smaller_one() -> None:
    small, large = World(4), World(8)
    rows = [large.group(tuple(range(at, at + 4)), "mesh_tp") for at in (0, 4)]
    small.each(lambda rank: all_reduce(8), line=3)
    for row in rows:
        large.each(lambda rank: all_reduce(8), line=3, on=row)
    found = compare(small.ranks(), large.ranks())
    assert told(found) == ("world", tuple(range(8)), 0)
