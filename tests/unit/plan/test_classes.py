"""Ranks that do the same are one class, whomever each of them means by it."""

from __future__ import annotations

from distdebug.plan.classes import classes
from tests.support.programs import Programs
from tests.unit.diagnosis.builder import all_reduce, broadcast, recv, send


def found(made: Programs) -> list[tuple[int, ...]]:
    return [row.ranks for row in classes(made.programs())]


def test_all_ranks_of_data_parallel_training() -> None:
    made = Programs(16)
    for _ in range(3):
        made.each(all_reduce(8))
    made.end()
    (only,) = classes(made.programs())
    assert (only.ranks, only.first, only.calls) == (tuple(range(16)), 0, 3)


def test_the_ends_of_a_pipeline_are_classes_of_their_own() -> None:
    made = Programs(6)
    for rank in range(6):
        if rank > 0:
            made[rank].makes(recv(rank - 1, 8))
        if rank < 5:
            made[rank].makes(send(rank + 1, 8))
    made.end()
    assert found(made) == [(0,), (1, 2, 3, 4), (5,)]


def test_neighbours_of_a_ring_are_one_class() -> None:
    made = Programs(6)
    for rank in range(6):
        made[rank].makes(send((rank + 1) % 6, 8), is_async=True)
        made[rank].makes(recv((rank - 1) % 6, 8))
    made.end()
    assert found(made) == [(0, 1, 2, 3, 4, 5)]


def test_a_root_is_another_class_than_who_follows_it() -> None:
    made = Programs(4)
    made.each(broadcast(8, root=2))
    made.end()
    assert found(made) == [(0, 1, 3), (2,)]


def test_groups_count_by_their_place_and_size() -> None:
    made = Programs(8)
    for first in (0, 4):
        made.new_group(str(first // 4 + 1), range(first, first + 4))
    for rank in range(8):
        made[rank].makes(all_reduce(8), "1" if rank < 4 else "2")
    made.end()
    assert found(made) == [tuple(range(8))]
    made[3].makes(all_reduce(8))
    assert found(made) == [(0, 1, 2, 4, 5, 6, 7), (3,)]


def test_another_line_shape_or_end_is_another_class() -> None:
    made = Programs(4)
    made[0].makes(all_reduce(8))
    made[1].makes(all_reduce(8), line=89)
    made[2].makes(all_reduce(9))
    made[3].makes(all_reduce(8))
    made.end([0, 1, 2])
    made[3].ends(3)
    assert found(made) == [(0,), (1,), (2,), (3,)]
