"""A mistake that several ranks make on one line is one finding with all of them as culprits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from distdebug.record.replicas import HYPERPARAMETER, bits_of
from distdebug.record.signature import ANY_SOURCE
from distdebug.record.snapshot import CallSite, Column

from .builder import Run, all_reduce, all_to_all, recv, send

ROOT = "RuntimeError: ProcessGroupGloo::broadcast: invalid root rank: 99"


def wrong(run: Run, rank: int, line: int, kind: str = "RuntimeError") -> None:
    run[rank].raises(ROOT, line=line, type=kind, invalid_argument=True)


def test_a_root_that_all_of_them_gave() -> None:
    run = Run(4)
    for rank in (1, 2):
        wrong(run, rank, 21)
    wrong(run, 3, 40)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("invalid_argument", (1, 2), (0, 3))
    assert found.message.startswith(f"ranks 1,2 raised {ROOT} at train.py:21")


def test_it_waits_a_moment_for_the_others() -> None:
    run = Run(3)
    wrong(run, 0, 21)
    assert run.errors(settled=False) == []
    wrong(run, 1, 21)
    (found,) = run.errors()
    assert found.culprits == (0, 1)


def test_calls_on_a_group_that_they_are_not_in() -> None:
    run = Run(4)
    for rank, line in ((0, 16), (3, 16), (1, 30)):
        run[rank].notes_down("not_in_group", "barrier on a group this rank is not in", line)
        run[rank].notes_down("not_in_group", "barrier on a group this rank is not in", line)
    first, second = run.diagnose().findings
    assert (first.kind, first.severity, first.culprits) == ("not_in_group", "warning", (0, 3))
    assert set(first.ranks) == {0, 3}
    assert second.culprits == (1,)


def test_all_that_differs_is_told() -> None:
    run = Run(3)
    run[0, 1].calls(all_reduce(8), waits=True)
    run[2].calls(all_reduce(4, dtype="float64", op="max"), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("shape_mismatch", (2,))
    assert found.message.endswith("; they differ in shape, dtype and reduce op")
    assert found.headline.endswith(" (3 ranks); they differ in shape, dtype and reduce op")


def test_the_rank_in_every_bad_pair_is_the_culprit() -> None:
    run = Run(3)
    run[0].calls(all_to_all([1, 1, 1], [1, 5, 1]), waits=True)
    run[1].calls(all_to_all([1, 1, 1], [1, 1, 1]), waits=True)
    run[2].calls(all_to_all([1, 1, 1], [1, 1, 1]), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("split_mismatch", (0, 1))  # one pair: either may be

    run = Run(3)
    run[0].calls(all_to_all([1, 1, 1], [1, 1, 1]), waits=True)
    run[1].calls(all_to_all([5, 1, 5], [1, 1, 1]), waits=True)
    run[2].calls(all_to_all([1, 1, 1], [1, 1, 1]), waits=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("split_mismatch", (1,), (0, 2))


def test_the_sender_that_sent_less_than_its_peers() -> None:
    run = Run(4)
    for rank, count in ((1, 2), (2, 1), (3, 2)):
        for _ in range(count):
            run[rank].calls(send(0))
    for _ in range(5):
        run[0].calls(recv(ANY_SOURCE))
    run[0].calls(recv(ANY_SOURCE), waits=True)
    run[1, 2, 3].exits(0)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("unmatched_p2p", (2,), (0, 1, 3))
    assert found.message.endswith("rank 2 sent less than the others")


def test_all_have_sent_as_many() -> None:
    run = Run(3)
    run[1, 2].calls(send(0))
    for _ in range(2):
        run[0].calls(recv(ANY_SOURCE))
    run[0].calls(recv(ANY_SOURCE), waits=True)
    run[1, 2].exits(0)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("unmatched_p2p", (0,))


def unsafe(run: Run, rank: int, line: int = 50) -> None:
    message = f"rank {rank} gives all_reduce(sum, float32[8]) #0 of group 0 a tensor with gaps"
    others = [one for one in range(run.size) if one != rank]
    run[rank].calls(all_reduce(8), waits=True)
    run[rank].notes_down(
        "finding",
        message,
        line,
        finding="unsafe_tensor",
        culprits=[rank],
        victims=others,
        group=["0", 0],
        seq=0,
    )


def test_a_tensor_that_all_of_them_gave_on_one_line() -> None:
    run = Run(3)
    unsafe(run, 1)
    assert run.errors(settled=False) == []
    unsafe(run, 0)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("unsafe_tensor", (0, 1), (2,))
    assert found.message.endswith("a tensor with gaps; rank 0 as well")


def forks(run: Run, rank: int, line: int) -> None:
    run[rank].notes_down("forked", f"a child of rank {rank} called all_reduce", line)


def test_children_that_were_forked_on_one_line() -> None:
    run = Run(4)
    for rank in (3, 0, 2):
        forks(run, rank, 21)
    forks(run, 1, 30)
    first, second = run.errors()
    assert (first.kind, first.culprits, second.culprits) == ("forked", (0, 2, 3), (1,))
    assert first.message.startswith("a forked child of rank 3 ")
    assert first.message.endswith("; ranks 0,2 as well")


LR = Column(HYPERPARAMETER, 'param_groups[0]["lr"]')


def rates(run: Run, group: str, desc: str, of_ranks: dict[int, float], line: int = 90) -> None:
    """Each of these ranks, which are a group, has this learning rate after its first step."""
    for rank, rate in of_ranks.items():
        run[rank].has_group(group, list(of_ranks), desc=desc)
        run[rank].steps(1, [bits_of(rate)], columns=[LR], line=line)
        run[rank].replicas[-1].group = (group, 0)


def test_what_differs_in_each_row_of_a_mesh_is_one_finding() -> None:
    run = Run(4)
    rates(run, "1", "mesh_replicate", {0: 0.1, 2: 0.2})
    rates(run, "2", "mesh_replicate", {1: 0.1, 3: 0.2})
    run.passes(1.0)
    (found,) = run.errors()
    assert (found.culprits, found.victims) == ((0, 1, 2, 3), ())
    assert found.message.endswith("; ranks 1,3 as well")
    assert sorted(found.ranks) == [0, 1, 2, 3]


def rows(run: Run, *groups: tuple[int, ...], lines: Sequence[int] = ()) -> None:
    """In each of these groups the second rank calls something else than the first."""
    for number, (one, other) in enumerate(groups):
        for rank in (one, other):
            run[rank].has_group(f"row{number}", [one, other], desc="mesh_tp")
        run[one].calls(all_reduce(8), group=f"row{number}", waits=True, line=10)
        line = lines[number] if lines else 13
        run[other].calls(all_to_all([1, 1], [1, 1]), group=f"row{number}", waits=True, line=line)


def test_a_wrong_branch_in_each_row_of_a_mesh_is_one_finding() -> None:
    run = Run(4)
    rows(run, (0, 1), (2, 3))
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("op_mismatch", (0, 1, 2, 3), ())
    assert found.group.ranks == (0, 1)
    assert found.message.endswith("; ranks 2,3 as well")


def test_mistakes_on_other_lines_stay_apart() -> None:
    run = Run(4)
    rows(run, (0, 1), (2, 3), lines=(13, 19))
    assert [found.culprits for found in run.errors()] == [(0, 1), (2, 3)]


def test_what_became_of_a_rank_that_had_gone_wrong_makes_nobody_else_a_culprit() -> None:
    """Rank 1 is in both groups: the second one is no row beside the first."""
    run = Run(4)
    rows(run, (0, 1), (1, 3))
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("op_mismatch", (0, 1))


@pytest.mark.parametrize(("desc", "line"), [("team", 90), ("mesh_replicate", 91)])
def test_models_of_other_teams_or_on_other_lines_stay_apart(desc: str, line: int) -> None:
    run = Run(4)
    rates(run, "1", desc, {0: 0.1, 2: 0.2})
    rates(run, "2", desc, {1: 0.1, 3: 0.2}, line=line)
    run.passes(1.0)
    assert [found.culprits for found in run.errors()] == [(0, 2), (1, 3)]


def rows_of_a_mesh(size: int) -> Run:
    """Rows of two ranks along one axis, in a group each."""
    run = Run(size)
    for first in range(0, size, 2):
        for rank in (first, first + 1):
            run[rank].has_group(f"tp{first}", [first, first + 1], desc="mesh_tp")
    return run


def crossed_rows(lines: Sequence[int]) -> Run:
    """In each row both ranks receive first, the second of them on a line of its row's own."""
    run = rows_of_a_mesh(2 * len(lines))
    for row, line in enumerate(lines):
        run[2 * row].calls(recv(2 * row + 1), group=f"tp{2 * row}", waits=True, line=17)
        run[2 * row + 1].calls(recv(2 * row), group=f"tp{2 * row}", waits=True, line=line)
    return run


def test_a_deadlock_in_each_row_of_a_mesh() -> None:
    run = crossed_rows([20, 20, 20])
    assert run.errors(settled=False) == []  # the other rows may be a moment behind
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("deadlock", (0, 1, 2, 3, 4, 5), ())
    assert [step.rank for step in found.cycle] == [0, 1]
    assert found.message.endswith("; ranks 2-5 as well")
    assert found.details[-1] == "ranks 2-5 wait for each other on the same lines"
    assert [found.ranks[rank].location.line for rank in range(6)] == [17, 20] * 3


def test_deadlocks_on_other_lines_are_others() -> None:
    run = crossed_rows([20, 33])
    assert sorted(one.culprits for one in run.errors()) == [(0, 1), (2, 3)]


def left_rows(lines: Sequence[int]) -> Run:
    """In each row the second rank makes one call less, and is at this line then."""
    run = rows_of_a_mesh(2 * len(lines))
    for row, line in enumerate(lines):
        group = f"tp{2 * row}"
        run[2 * row].calls(all_reduce(8), group=group, line=16)
        run[2 * row + 1].calls(all_reduce(8), group=group, line=16)
        run[2 * row + 1].location = CallSite("/home/user/train.py", line, "step")
        run[2 * row].calls(all_reduce(8), group=group, line=16, waits=True)
        run[2 * row + 1].exits(0)
    return run


def test_a_rank_of_each_row_has_left_too_early() -> None:
    (found,) = left_rows([16, 16]).errors()
    assert (found.kind, found.culprits, found.victims) == ("early_exit", (1, 3), (0, 2))
    assert found.message.endswith("; rank 3 as well")
    assert set(found.ranks) == {0, 1, 2, 3}


def test_who_left_at_another_line_has_another_reason() -> None:
    first, second = left_rows([16, 40]).errors()
    assert (first.culprits, second.culprits) == ((1,), (3,))
