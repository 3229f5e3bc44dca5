"""At DETAIL an asynchronous call that its backend refuses is refused by the call itself, in the
backend's own words, whether the other ranks come or not; and a right one is never taken for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distdebug.rank import limits
from distdebug.rank.checks import argument_checks
from distdebug.record import layout
from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded

SCRIPT = Path(__file__).parents[1] / "scripts" / "refused_at_once.py"


@pytest.mark.parametrize("backend", ["gloo", "tcp"])
def test_the_call_raises_what_the_backend_raises(
    backend: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    run = ranks.forked(torch_loaded, tmp_path, 2, SCRIPT, backend)
    run.extra = {"DISTDEBUG_LEVEL": "DETAIL"}
    assert run.run() == 0, run.explain()
    rows = [json.loads(line) for line in run.log(0).splitlines()]
    assert len(rows) == (28 if backend == "gloo" else 26)
    for row in rows:
        assert row["foretold"], row
        assert row["call"] == row["backend"] != "nothing", row
    zero, one = run.views()
    assert zero.groups.keys() == one.groups.keys()
    for key, group in zero.groups.items():
        assert (group.issued, group.chain) == (one.groups[key].issued, one.groups[key].chain)


def options(kind: Any, root: int) -> Any:
    made = kind()
    made.rootRank = root
    return made


T, OUT, TWO = torch.ones(4), torch.ones(8), [torch.ones(4), torch.ones(4)]
RIGHT = [
    ("allreduce", ([T],)),
    ("allreduce", ([T, torch.ones(4)],)),
    ("allreduce", ([T.to_sparse()],)),
    ("allreduce", ([T.to_sparse()], dist.ReduceOp.SUM)),
    ("allreduce", ([T.to_sparse()], dist.AllreduceOptions())),
    ("allreduce", ([torch.ones(())],)),
    ("allreduce_coalesced", ([T, OUT],)),
    ("broadcast", ([T], options(dist.BroadcastOptions, 1))),
    ("broadcast", ([torch.empty(0)], options(dist.BroadcastOptions, 0))),
    ("broadcast", (T, 1)),
    ("reduce", ([T], options(dist.ReduceOptions, 1))),
    ("allgather", ([TWO], [T])),
    ("allgather", ([TWO], [T.view(4)[:]])),
    ("_allgather_base", (OUT, T)),
    ("all_gather_single", (torch.ones(4, 3), torch.ones(2, 3))),
    ("allgather_into_tensor_coalesced", ([OUT], [T])),
    ("gather", ([TWO], [T], options(dist.GatherOptions, 0))),
    ("gather", ([], [T], options(dist.GatherOptions, 1))),
    ("scatter", ([T], [TWO], options(dist.ScatterOptions, 0))),
    ("scatter", ([T], [], options(dist.ScatterOptions, 1))),
    ("reduce_scatter", ([T], [TWO])),
    ("_reduce_scatter_base", (T, OUT)),
    ("reduce_scatter_tensor_coalesced", ([T], [OUT])),
    ("alltoall", (TWO, TWO)),
    ("alltoall_base", (T, T, [1, 3], [1, 3])),
    ("alltoall_base", (T, T, [], [])),
    ("alltoall_base", (torch.ones(3, 2), torch.ones(5, 2), [1, 2], [1, 4])),
    ("all_to_all_single", (T, T, [], [], None)),
    ("barrier", ()),
    ("barrier", (dist.BarrierOptions(),)),
    ("send", ([T], 1, 0)),
]


@pytest.mark.parametrize("backend", ["gloo", "tcp", "mpi"])
@pytest.mark.parametrize(("method", "args"), RIGHT)
def test_a_right_call_is_not_foretold_to_be_refused(
    backend: str, method: str, args: tuple[Any, ...]
) -> None:
    assert not argument_checks.expected(backend, method, args, 2, 0)


@pytest.mark.parametrize("backend", ["tcp", "mpi"])
def test_ranks_may_have_more_or_less_than_others(backend: str) -> None:
    row = [T, torch.ones(3)]
    for rank, own in enumerate(row):
        for method, args in (("allgather", ([row], [own])), ("reduce_scatter", ([own], [row]))):
            assert not argument_checks.expected(backend, method, args, 2, rank)
            assert argument_checks.expected(backend, method, args, 2, 1 - rank)


def test_of_a_backend_or_a_form_that_is_not_known_nothing_is_foretold() -> None:
    assert argument_checks.expected("gloo", "allreduce", ([],), 2, 0)
    assert not argument_checks.expected("nccl", "allreduce", ([],), 2, 0)
    assert not argument_checks.expected("gloo", "allreduce", (), 2, 0)
    assert not argument_checks.expected("gloo", "scatter", (None, 3), 2, 0)
    meta = torch.ones(3, device="meta")
    assert not argument_checks.expected("gloo", "_allgather_base", (meta, meta), 2, 0)


def test_the_bound_on_record_is_the_one_that_is_kept() -> None:
    assert limits.JOIN_S + limits.IN_CALL_S < layout.BOUNDED_S
