"""A call that is wrong by itself is the caller's, at its line, whichever argument is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

PROGRAM = """
import torch, torch.distributed as dist
def some(count=4, dtype=torch.float32):
    return torch.ones(count, dtype=dtype)
def several(ranks, count=4, dtype=torch.float32):
    return [some(count, dtype) for _ in range(ranks)]
dist.init_process_group("{backend}")
pair = dist.new_group([1, 2])
rank = dist.get_rank()
dist.all_reduce(some())
if rank == 1:
    {call}
dist.barrier()
dist.destroy_process_group()
"""
LINE = 12
WRONG = {
    "send peer": "dist.send(some(), 99)",
    "isend peer": "dist.isend(some(), -1)",
    "recv peer": "dist.recv(some(), 99)",
    "irecv peer": "dist.irecv(some(), 99)",
    "send self": "dist.send(some(), 1)",
    "recv self": "dist.recv(some(), 1)",
    "isend self": "dist.isend(some(), 1).wait()",
    "batch peer": "dist.batch_isend_irecv([dist.P2POp(dist.isend, some(), 99)])",
    "batch self": "[w.wait() for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, some(), 1)])]",
    "send_object_list peer": "dist.send_object_list([1], 99)",
    "recv_object_list peer": "dist.recv_object_list([None], 99)",
    "send peer outside": "dist.send(some(), 0, group=pair)",
    "send tag": "dist.send(some(), 0, tag=-1)",
    "recv tag": "dist.recv(some(), 0, tag=-1)",
    "isend tag": "dist.isend(some(), 0, tag=-1)",
    "broadcast root": "dist.broadcast(some(), 99)",
    "broadcast root async": "dist.broadcast(some(), 99, async_op=True).wait()",
    "broadcast root outside": "dist.broadcast(some(), 0, group=pair)",
    "reduce root": "dist.reduce(some(), 99)",
    "gather root": "dist.gather(some(), None, 99)",
    "scatter root": "dist.scatter(some(), None, 99)",
    "broadcast_object_list root": "dist.broadcast_object_list([1], 99)",
    "scatter_object_list root": "dist.scatter_object_list([None], [1], 99)",
    "gather list": "dist.gather(some(), several(2), 1)",
    "gather dtype": "dist.gather(some(), several(3, dtype=torch.float64), 1)",
    "gather size": "dist.gather(some(), several(3, 5), 1)",
    "scatter list": "dist.scatter(some(), several(4), 1)",
    "scatter dtype": "dist.scatter(some(), several(3, dtype=torch.float64), 1)",
    "all_gather list": "dist.all_gather(several(2), some())",
    "all_gather dtype": "dist.all_gather(several(3, dtype=torch.float64), some())",
    "all_gather_into_tensor size": "dist.all_gather_into_tensor(some(5), some())",
    "all_gather_into_tensor dtype": "dist.all_gather_into_tensor(some(12, torch.int32), some())",
    "reduce_scatter list": "dist.reduce_scatter(some(), several(2))",
    "reduce_scatter dtype": "dist.reduce_scatter(some(dtype=torch.float64), several(3))",
    "reduce_scatter_tensor size": "dist.reduce_scatter_tensor(some(), some(5))",
    "reduce_scatter_tensor dtype": "dist.reduce_scatter_tensor(some(), some(12, torch.float64))",
    "all_to_all list": "dist.all_to_all(several(2), several(3))",
    "all_to_all dtype": "dist.all_to_all(several(3, dtype=torch.float64), several(3))",
    "all_to_all_single negative": "dist.all_to_all_single(some(6), some(6), [2] * 3, [-2, 6, 2])",
    "all_to_all_single dtype": "dist.all_to_all_single(some(6, torch.float64), some(6))",
    "all_reduce complex": "dist.all_reduce(some(dtype=torch.complex64), dist.ReduceOp.MAX)",
    "all_reduce dtypes": "dist.all_reduce_coalesced([some(), some(dtype=torch.float64)])",
    "new_group rank": "dist.new_group([1, 99])",
}
TOGETHER = {  # others make the call, too, and the first part of it is right
    "gather_object root": "dist.gather_object(1, [None] * 3 if rank == 0 else None, {wrong})",
    "scatter_object_list list": "dist.scatter_object_list([None], [1] * (3 + ({wrong})), 1)",
}
ALIKE = {  # gloo refuses it when it has counted the call, which others must make as well
    "all_to_all_single splits": "dist.all_to_all_single(some(6), some(6), [2, 2, 2], [3, 3, 3])",
    "all_to_all_single rows": "dist.all_to_all_single(some(7), some(7))",
    "all_reduce op": "dist.all_reduce(some(), dist.ReduceOp.BAND)",
    "all_reduce op async": "dist.all_reduce(some(), dist.ReduceOp.BXOR, async_op=True).wait()",
    "reduce op": "dist.reduce(some(), 0, dist.ReduceOp.BOR)",
}
SHORT = ("recv self", "send tag", "broadcast root async", "all_to_all_single negative")


@pytest.mark.parametrize("backend", ["gloo", "tcp"])
@pytest.mark.parametrize(
    "what",
    [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in WRONG],
)
def test_it_is_the_callers(what: str, backend: str, tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(backend=backend, call=WRONG[what]))
    done = zygote.run(3, ["train.py"], tmp_path)
    assert done.exit_code == 1, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("invalid_argument", [1]), done.explain()
    assert error["ranks"]["1"]["location"]["line"] == LINE, done.explain()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["gloo", "tcp"])
@pytest.mark.parametrize("wrong", ["99 if rank == 1 else 0", "0"])
@pytest.mark.parametrize("what", TOGETHER)
def test_objects(what: str, wrong: str, backend: str, tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    text = PROGRAM.replace("if rank == 1:", "if True:")
    script.write_text(text.format(backend=backend, call=TOGETHER[what].replace("{wrong}", wrong)))
    done = zygote.run(3, ["train.py"], tmp_path)
    if wrong == "0":
        assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
        return
    assert done.exit_code == 1, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("invalid_argument", [1]), done.explain()
    assert error["ranks"]["1"]["location"]["line"] == LINE, done.explain()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["gloo", "tcp"])
@pytest.mark.parametrize("what", ALIKE)
def test_all_ranks_make_the_same_mistake(
    what: str, backend: str, tmp_path: Path, zygote: Zygote
) -> None:
    script = tmp_path / "train.py"
    text = PROGRAM.replace("if rank == 1:", "if True:")
    script.write_text(text.format(backend=backend, call=ALIKE[what]))
    done = zygote.run(3, ["train.py"], tmp_path)
    assert done.exit_code == 1, done.explain()
    (error,) = done.errors
    assert error["kind"] == "invalid_argument", done.explain()
    lines = {one["location"]["line"] for one in error["ranks"].values()}
    assert lines == {LINE}, done.explain()


RIGHT = """
other = 1 - rank
if rank == 1:
    dist.send(some(), 0, tag=3)
    dist.isend(some(), 2).wait()
elif rank == 0:
    dist.recv(some(), 1, tag=3)
else:
    dist.recv(some(), 1)
for root in range(3):
    dist.broadcast(some(), root)
    dist.reduce(some(), root)
    dist.gather(some(), several(3) if rank == root else None, root)
    dist.scatter(some(), several(3) if rank == root else None, root)
dist.all_gather(several(3), some())
dist.all_to_all_single(some(6), some(6), [2, 2, 2], [2, 2, 2])
"""


@pytest.mark.parametrize("backend", ["gloo", "tcp"])
def test_right_ones(backend: str, tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    before, _, after = PROGRAM.partition("if rank == 1:\n    {call}\n")
    script.write_text(before.format(backend=backend) + RIGHT + after)
    done = zygote.run(3, ["train.py"], tmp_path)
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
