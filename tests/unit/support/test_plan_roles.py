"""Who is declared at another size: the ranks of which the program says the same."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.support.plan_roles import Culprits, FixedCount, Roles


def culprits(tmp_path: Path, source: str, kind: str, size: int, declared: list[int]) -> Culprits:
    script = tmp_path / "train.py"
    script.write_text(dedent(source))
    expected: dict[str, Any] = {"nproc": size, "outcome": kind, "culprits": declared}
    return Culprits(expected, script, 64)


LAST = "if rank == world_size - 1: leave()"
FIRST = "if dist.get_rank() == 0: save()"
HALF = "step = 10 if rank < 2 else 20"
STAGES = """
    if rank == 0: dist.send(x, 1)
    elif rank == 1: dist.recv(x, 0)
"""
IN_GROUP = "group = dist.new_group([0, 1]) if rank > 0 else None"


@pytest.mark.parametrize(
    ("source", "kind", "size", "declared", "right", "wrong"),
    [
        (LAST, "early_exit", 4, [3], [63], [3]),
        (FIRST, "op_mismatch", 4, [0], [0], [1]),
        (FIRST, "op_mismatch", 2, [0, 1], [0], list(range(64))),
        (HALF, "op_mismatch", 3, [2], [0, 1], list(range(2, 64))),
        (STAGES, "deadlock", 3, [0, 1], [0, 1], [0, 2]),
        (IN_GROUP, "group_mismatch", 3, [1], [1], [1, 2]),
        ("dst = rank + 1", "invalid_argument", 3, [2], [63], [1]),
        ("x = 1", "root_mismatch", 2, [0, 1], list(range(64)), [0, 1]),
    ],
)
def test_culprits_by_role(
    source: str,
    kind: str,
    size: int,
    declared: list[int],
    right: list[int],
    wrong: list[int],
    tmp_path: Path,
) -> None:
    found = culprits(tmp_path, source, kind, size, declared)
    assert found.are(right), found
    assert not found.are(wrong), found


def test_a_role_that_its_own_size_does_not_have_may_do_anything(tmp_path: Path) -> None:
    found = culprits(tmp_path, "if rank == 0: x\nif rank > 2: y", "early_exit", 3, [0])
    assert found.are([0])
    assert found.are([0, 5])
    assert not found.are([0, 1])


def test_a_table_with_a_row_for_each_rank_is_for_so_many(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("SIZES = [20, 12, 20]\nsize = SIZES[dist.get_rank()]\n")
    Roles(script, 3)
    with pytest.raises(FixedCount, match="SIZES has 3 rows"):
        Roles(script, 4)
