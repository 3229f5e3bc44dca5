"""torch's operators, which compiled code calls past the functions of torch.distributed: each is
on record, with its line, and gives what it gives in stock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distdebug.record.layout import CallState
from distdebug.record.snapshot import Call, Rank
from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests" / "ranks" / "scripts" / "operators.py"
RECORDED = {
    "_c10d_functional::all_gather_into_tensor_out": ["all_gather_into_tensor"],
    "_c10d_functional::batch_p2p_ops": ["recv", "send"],
    "_c10d_functional::irecv": [["send"], ["recv"]],
    "_c10d_functional::isend": [["send"], ["recv"]],
    "_c10d_functional::wait_tensors": ["all_reduce", "all_reduce"],
    "_dtensor::shard_dim_alltoall": ["all_to_all_single"],
    "c10d::_allgather_base_": ["all_gather_into_tensor"],
    "c10d::_reduce_scatter_base_": ["reduce_scatter_tensor"],
    "c10d::allreduce_": ["all_reduce", "all_reduce"],
    "c10d::allreduce_coalesced_": ["all_reduce"],
    "c10d::allgather_": ["all_gather"],
    "c10d::allgather_coalesced_": ["all_gather"],
    "c10d::allgather_into_tensor_coalesced_": ["all_gather_into_tensor"],
    "c10d::alltoall_": ["all_to_all"],
    "c10d::alltoall_base_": ["all_to_all_single"],
    "c10d::broadcast_": ["broadcast"],
    "c10d::recv_": [["send"], ["recv"]],
    "c10d::recv_any_source_": [["send"], ["recv"]],
    "c10d::send": [["send"], ["recv"]],
}
"""What is not called as the operator is, without what stands before and behind its name. Which of
the operators of one tensor are coalesced ones to a group is torch's own affair, and changes."""


def expected(operator: str, rank: int) -> list[str]:
    """The ops that a call of it puts on record."""
    known = RECORDED.get(operator)
    if known is None:
        name = operator.partition("::")[2].strip("_")
        return [name.removesuffix("_out").removesuffix("_coalesced")]
    return known[rank] if isinstance(known[0], list) else [str(one) for one in known]


def by_operator(view: Rank, order: list[str]) -> dict[str, list[Call]]:
    """What is on record between the sums that the script makes around each."""
    assert view.history is not None
    found: dict[str, list[Call]] = {}
    calls = iter(view.history.recent(view.calls))
    assert any(str(call.signature) == "all_reduce(sum, int32[1])" for call in calls)
    for place, name in enumerate(order, 2):
        found[name] = []
        for call in calls:
            if str(call.signature) == f"all_reduce(sum, int32[{place}])":
                break
            found[name].append(call)
    return found


@pytest.mark.parametrize(
    ("level", "beside"),
    [
        ("INFO", ""),
        pytest.param("DETAIL", "", marks=pytest.mark.long),
        pytest.param("INFO", "tcp", marks=pytest.mark.long),
    ],
)
def test_every_operator_is_on_record(
    level: str, beside: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    run = ranks.forked(torch_loaded, tmp_path / "observed", 2, SCRIPT)
    run.extra = {"DISTDEBUG_LEVEL": level, "DISTDEBUG_TESTED": str(ROOT)}
    run.extra |= {"DISTDEBUG_BESIDE": beside}
    assert run.run() == 0, run.explain()
    stock = ranks.forked(torch_loaded, tmp_path / "stock", 2, SCRIPT, observed=False)
    stock.extra = {"DISTDEBUG_TESTED": str(ROOT)}
    assert stock.run() == 0, stock.explain()
    first, second = run.views()
    for view in (first, second):
        order = json.loads(run.log(view.rank).splitlines()[-1])
        assert json.dumps(order) in stock.stdout
        assert len(order) > 35
        for name, calls in by_operator(view, order).items():
            if name.endswith(" refused"):
                continue
            made = sorted(call.signature.op.removesuffix("_coalesced") for call in calls)
            assert made == expected(name, view.rank), name
            for call in calls:
                assert call.site is not None, name
                assert Path(call.site.file).parent == SCRIPT.parent, name
                assert call.state is CallState.COMPLETED, name
    for key, group in first.groups.items():
        other = second.groups[key]
        assert (group.issued, group.chain, group.exact) == (other.issued, other.chain, other.exact)
