"""Which of a job's processes is which rank, and which ranks should be there."""

from __future__ import annotations

from typing import Any

import pytest

from distdebug.inspection.inspect import _look, _who_is_who
from distdebug.inspection.look import Stance
from distdebug.inspection.processes import Job, Process
from distdebug.record.wording import RankState
from distdebug.supervisor.stacks.sights import Sight, Thread
from distdebug.supervisor.stacks.stacks import Frame, ThreadStack

TORCH = "/usr/lib/python3.12/site-packages/torch"
JOINS = Frame("init_process_group", f"{TORCH}/distributed/distributed_c10d.py", 5)


def sight(pid: int, *below: Frame, **local: str) -> Sight:
    user = Frame("main", "/u/train.py", 9, values=tuple(local.items()))
    stack = ThreadStack(pid, pid, "MainThread", False, False, (*below, user), "futex_do_wait")
    return Sight(pid, "S", [Thread(stack, 9.0, False)])


def who(ranks: list[int | None], *sights: Sight) -> tuple[dict[int, int], tuple[int, ...]]:
    """The pids by rank, and who is there twice."""
    processes = [
        Process(one.pid, 1, one.pid, rank) for one, rank in zip(sights, ranks, strict=True)
    ]
    found, twice = _who_is_who(Job(1, "", processes), {one.pid: one for one in sights})
    return {rank: one.pid for rank, one in found.items()}, twice


def test_what_ranks_call_themselves_counts_where_it_tells_them_apart() -> None:
    three = [sight(pid, rank=rank) for pid, rank in ((11, "2"), (12, "0"), (13, "3"))]
    assert who([None] * 3, *three) == ({2: 11, 0: 12, 3: 13}, ())
    # The rank of a matrix is the same on all of them.
    assert who([None] * 2, sight(11, rank="16"), sight(12, rank="16")) == ({0: 11, 1: 12}, ())
    assert who([None] * 2, sight(11, rank="1"), sight(12)) == ({0: 11, 1: 12}, ())
    assert who([None], sight(11, rank="16")) == ({0: 11}, ())
    assert who([None], sight(11, rank="3", world_size="4")) == ({3: 11}, ())


def test_who_claims_a_rank_and_talks_to_nobody_is_what_a_rank_has_left() -> None:
    left, rank = sight(11), sight(12, JOINS)
    assert who([0, 0], left, rank) == ({0: 12}, ())
    assert who([0, 0], sight(11, JOINS), rank) == ({0: 11}, (0,))


def missing(job: Job, ranks: list[int], **joins: Any) -> tuple[int, ...]:
    one = Stance(RankState.JOIN, "init_process_group", arguments=joins)
    return _look(job, dict.fromkeys(ranks, one), ()).missing


def member(rank: int, local_rank: int | None = None, **more: Any) -> Process:
    """Of a world of 8, of which 4 are on this host."""
    given = {"world_size": 8, "local_size": 4, "local_rank": local_rank, **more}
    return Process(100 + rank, 1, 1, rank, **given)


@pytest.mark.parametrize(
    ("members", "expected", "why"),
    [
        ([member(r, r - 4) for r in (4, 5, 7)], (6,), "numbered without a gap"),
        ([member(r, r // 2) for r in (0, 2, 6)], (), "by turns over the hosts: 4, or another?"),
        ([member(4, 0)], (), "one alone does not show how they are numbered"),
        ([member(5, 1, consecutive=True)], (4, 6, 7), "torchrun numbers them so"),
        ([member(r, r - 2) for r in (2, 4, 5)], (3,), "the first host has two ranks"),
        ([member(r) for r in (0, 1, 2)], (), "nobody says"),
        ([member(r, local_size=None) for r in (0, 1, 2)], (), "the others are elsewhere"),
        (
            [member(r, local_size=None, told={"MASTER_ADDR": "localhost"}) for r in range(7)],
            (7,),
            "they can only meet on this host",
        ),
        (
            [member(r, local_size=None, told={"MASTER_ADDR": "head"}) for r in range(7)],
            (),
            "there may be other hosts",
        ),
    ],
)
def test_who_should_be_on_this_host(
    members: list[Process], expected: tuple[int, ...], why: str
) -> None:
    ranks = [one.rank for one in members if one.rank is not None]
    assert missing(Job(1, "", members), ranks) == expected, why
    assert missing(Job(1, "", members, partial=True), ranks) == (), why


def test_of_a_program_on_several_hosts_nobody_is_missing() -> None:
    """It starts its ranks itself, here four of eight."""
    job = Job(1, "", [Process(100 + rank, 1, 1) for rank in range(4)])
    here = list(range(4))
    assert missing(job, here, world_size="8", hostname="head") == ()
    assert missing(job, here, world_size="8", hostname="127.0.0.1") == (4, 5, 6, 7)
    assert missing(job, here, world_size="8") == (4, 5, 6, 7)  # they meet in a file
