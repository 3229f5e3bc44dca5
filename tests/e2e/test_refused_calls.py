"""A call that its backend refuses and that the program catches was never made: nobody disagrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

PROGRAM = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
given = torch.ones(4)
if dist.get_rank() == 0:
    rows = [torch.ones(3 if sys.argv[1] == "refused" else 4) for _ in range(2)]
    try:
        dist.gather(given, rows)
    except RuntimeError as error:
        if "invalid tensor size" not in str(error):
            raise
dist.all_reduce(given)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("call", ["refused", "right"])
def test_the_first_call_of_a_group_at_detail(call: str, tmp_path: Path, zygote: Zygote) -> None:
    """Before that one the ranks have not come together: those that never make it must not be
    waited for."""
    (tmp_path / "train.py").write_text(PROGRAM)
    done = zygote.run(2, ["train.py", call], tmp_path, ["--debug-level", "DETAIL"])
    if call == "refused":
        assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
        return
    assert done.exit_code == 91, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"], error["seq"]) == ("op_mismatch", [0, 1], 0)


CATCHES = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for wrong in sys.argv[1]:
    try:
        dist.all_reduce(torch.ones(4 if str(rank) == wrong else 6))
    except RuntimeError:
        assert wrong != "-"
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("steps", "wrong"), [("-1--2-", [(1, 1), (2, 4)]), ("-1--1-", [(1, 1)])])
def test_what_the_ranks_have_refused_explains_only_more_of_the_same_rank(
    steps: str, wrong: list[tuple[int, int]], tmp_path: Path, zygote: Zygote
) -> None:
    """At DETAIL they compare each call before it is made: nothing of the first was sent."""
    (tmp_path / "train.py").write_text(CATCHES)
    flags = ["--debug-level", "DETAIL", "--on-finding", "report"]
    done = zygote.run(3, ["train.py", steps], tmp_path, flags)
    assert done.exit_code == 91, done.explain()
    found = [(*one["culprits"], one["seq"]) for one in done.errors]
    assert found == wrong, done.explain()
    assert {one["kind"] for one in done.errors} == {"shape_mismatch"}
