"""What ranks called around a collective, side by side."""

from __future__ import annotations

import pytest

from distdebug.plan.around import lines
from tests.support.plan_worlds import World, all_reduce, broadcast


def world() -> World:
    """Four ranks: rank 2 makes another call as #2 of the pair `tp`. (In these worlds a rank numbers
    its calls in all groups as one sequence.)"""
    made = World(4)
    tp = made.group((2, 3), "tp")
    made.each(lambda rank: all_reduce(8), line=1)
    made.each(lambda rank: all_reduce(4), line=2, on=tp)
    made.each(lambda rank: broadcast(4) if rank == 2 else all_reduce(4), line=3, on=tp)
    made.each(lambda rank: all_reduce(8), line=4)
    return made


def test_ranks_that_did_the_same_are_one_and_the_call_is_marked() -> None:
    text = list(lines(world().ranks(), 2, 1))
    assert [row for row in text if row.startswith("rank")] == ["ranks 0,1", "rank 2", "rank 3"]
    marked = [row for row in text if row.startswith(">")]
    assert len(marked) == 2
    assert '> #2 of "tp"  broadcast(src=0, float32[4])' in "\n".join(marked)
    assert "did not make collective #2" in text[1]  # ranks 0 and 1


def test_ranks_outside_of_the_group_are_left_out() -> None:
    text = "\n".join(lines(world().ranks(), 2, 1, "tp"))
    assert "ranks 0,1" not in text
    assert text.count(">") == 2


def test_a_rank_that_has_not_come_is_shown_with_its_last_calls() -> None:
    text = list(lines(world().ranks(), 9, 1, "tp"))
    assert text[1] == "  did not make collective #9; its last calls:"
    assert '#3 of "default_pg"' in text[2]


def test_a_group_that_nobody_has() -> None:
    with pytest.raises(LookupError, match="'dp', only default_pg, tp"):
        list(lines(world().ranks(), 1, 1, "dp"))
