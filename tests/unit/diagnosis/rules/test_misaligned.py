"""Lines that part: who slipped, where, and what carries it; and programs whose lines may meet."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.diagnosis.builder import Run, all_gather, all_reduce, barrier, broadcast, recv, send

STEPS = 24


def found_of(run: Run) -> list[Any]:
    return [one for one in run.diagnose().findings if one.kind == "misaligned"]


def steps(run: Run, lines: list[int], wrong: dict[int, list[int]], at: int) -> None:
    """All ranks call from these lines in each step, some of them from others in one."""
    for step in range(STEPS):
        for rank in run.ranks:
            for line in wrong.get(rank, lines) if step == at else lines:
                run[rank].calls(all_reduce(8), line=line)


@pytest.mark.parametrize(
    ("made", "slip", "line", "seq"),
    [
        ([10, 12], "skipped", 11, 31),
        ([10, 11, 11, 12], "repeated", 11, 32),
        ([11, 10, 12], "swapped", 11, 30),
    ],
)
def test_who_slipped_and_where(made: list[int], slip: str, line: int, seq: int) -> None:
    run = Run(4)
    steps(run, [10, 11, 12], {2: made}, 10)
    (found,) = found_of(run)
    assert (found.severity, found.seq, found.culprits) == ("warning", seq, (2,))
    assert (found.data["slip"], found.data["parted_at"]) == (slip, seq)
    assert found.message.startswith(f"rank 2 {slip} train.py:{line} in step")
    assert found.ranks[2].location != found.ranks[0].location


def test_of_two_ranks_the_one_that_left_the_pattern_is_named_and_not_blamed() -> None:
    run = Run(2)
    steps(run, [10, 11], {1: [11, 10]}, 10)
    (found,) = found_of(run)
    assert (found.seq, found.culprits) == (20, ())
    assert found.message.startswith("rank 1 swapped")


def test_a_repaired_slip_says_from_where_on_lines_agree() -> None:
    run = Run(4)
    for step in range(STEPS):
        for rank in run.ranks:
            slips = {(1, 8): [10, 12], (1, 14): [10, 11, 11, 12]}
            for line in slips.get((rank, step), [10, 11, 12]):
                run[rank].calls(all_reduce(8), line=line)
    (found,) = found_of(run)
    assert (found.seq, found.data["slip"], found.culprits) == (25, "skipped", (1,))
    assert found.details[0].startswith("they belong together again from #")


def test_a_later_mismatch_says_it_first_and_blames_who_slipped() -> None:
    run = Run(4)
    steps(run, [10, 11], {2: [11]}, 10)
    run[0, 1, 3].calls(broadcast(4), line=20, waits=True)
    run[2].calls(broadcast(4), line=20)
    (found,) = [one for one in run.diagnose().findings if one.severity == "error"]
    assert (found.kind, found.culprits) == ("op_mismatch", (2,))
    assert found.details[0] == "the ranks' lines part at #20: rank 2 skipped train.py:10 in step"
    assert (found.data["parted_at"], found_of(run)) == (20, [])
    assert "their calls agree on #0 to #46, their lines only on #0 to #19" in found.details


def test_ranks_that_wait_for_each_other_carry_where_one_of_them_had_slipped() -> None:
    run = Run(2)
    run.new_group("1", [0, 1])
    for step in range(STEPS):
        for rank in (0, 1):
            for line in [10] if (rank, step) == (1, 10) else [10, 11]:
                waits = (rank, step, line) == (0, STEPS - 1, 11)
                run[rank].calls(all_reduce(8), group="1", line=line, waits=waits)
    run[1].calls(all_reduce(8), line=30, waits=True)
    (found,) = run.errors()
    assert (found.kind, found.data["parted_at"], found_of(run)) == ("deadlock", 21, [])
    assert found.details[0] == "the ranks' lines part at #21: rank 1 skipped train.py:11 in step"


def test_lines_of_messages_belong_together_by_which_have_met() -> None:
    run = Run(2)
    for step in range(STEPS):
        for line in [40, 41] if step != 10 else [41, 40]:
            run[0].calls(send(1), line=line)
        for line in (50, 51):
            run[1].calls(recv(0), line=line)
    (found,) = found_of(run)
    assert (found.seq, found.data["slip"]) == (20, "swapped")
    assert "at message #20 from rank 0 to rank 1" in found.message


def test_nothing_is_said_of_barriers_of_roles_and_of_turns() -> None:
    run = Run(2)
    for step in range(STEPS):
        for rank in (0, 1):
            lines = [10, 11] if (rank, step) != (1, 10) else [11, 10]
            for line in lines:
                run[rank].calls(barrier(), line=line)
    assert found_of(run) == []
    roles = Run(3)
    for _ in range(STEPS):
        for rank in range(3):
            roles[rank].calls(broadcast(8), line=20 if rank == 0 else 22)
            roles[rank].calls(all_gather(8), line=24)
    assert found_of(roles) == []
    turns = Run(2)
    for step in range(STEPS):
        for rank in (0, 1):
            turns[rank].calls(broadcast(8, root=step % 2), line=20 if step % 2 == rank else 22)
    assert found_of(turns) == []


def test_of_roles_with_lines_of_their_own_the_calls_alone_agree() -> None:
    run = Run(3)
    for _ in range(6):
        run[0].calls(all_reduce(8), line=10)
        run[1, 2].calls(all_reduce(8), line=20)
    run[0].calls(all_reduce(4), line=11, waits=True)
    run[1, 2].calls(broadcast(4), line=21, waits=True)
    (found,) = [one for one in run.diagnose().findings if one.severity == "error"]
    assert "their calls agree on #0 to #5" in found.details
