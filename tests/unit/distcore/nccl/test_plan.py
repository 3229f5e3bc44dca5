"""Which transfers each call is made of, and that nothing is copied that need not be."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import ReduceOp

from distcore.nccl import plan
from distcore.nccl.elements import adjacent, reducing_for
from distcore.nccl.library import (
    AllGather,
    AllReduce,
    Broadcast,
    Receiving,
    Reduce,
    ReduceScatter,
    Sending,
    Transfer,
    in_order,
)

SUM = reducing_for(ReduceOp.SUM, torch.float32, "nccl")
BAND = reducing_for(ReduceOp.BAND, torch.int32, "nccl")


def shown(transfer: Transfer) -> str:
    match transfer:
        case Sending(tensor, peer):
            return f"send {tensor.numel()} to {peer}"
        case Receiving(tensor, peer):
            return f"receive {tensor.numel()} from {peer}"
        case Broadcast(tensor, root):
            return f"broadcast {tensor.numel()} of {root}"
        case Reduce(source, _, root, _):
            return f"reduce {source.numel()} to {root}"
        case AllGather(source, target) | ReduceScatter(source, target, _):
            return f"{type(transfer).__name__} {source.numel()} to {target.numel()}"
        case AllReduce(source):
            return f"all_reduce {source.numel()}"


def steps(made: plan.Plan) -> list[list[str]]:
    return [[shown(one) for one in phase.transfers] for phase in made]


def tensors(*counts: int) -> list[torch.Tensor]:
    return [torch.zeros(count) for count in counts]


def test_all_reduce_works_on_the_tensor_itself() -> None:
    tensor = torch.zeros(4, 2)
    made = plan.all_reduce(tensor, SUM, 0, 2)
    assert steps(made) == [["all_reduce 8"]]
    (transfer,) = made[0].transfers
    assert isinstance(transfer, AllReduce)
    assert transfer.source.data_ptr() == transfer.target.data_ptr() == tensor.data_ptr()
    assert made[0].then == []


def test_gather_and_scatter() -> None:
    # 4 bytes an element: everything that is only moved is moved as bytes.
    assert steps(plan.gather(None, torch.zeros(2), 1, 0, 3)) == [["send 8 to 1"]]
    outputs = tensors(2, 2, 2)
    made = plan.gather(outputs, torch.ones(2), 1, 1, 3)
    assert steps(made) == [["receive 8 from 0", "receive 8 from 2"]]
    assert outputs[1].tolist() == [1, 1]
    assert steps(plan.scatter(torch.zeros(2), None, 2, 0, 3)) == [["receive 8 from 2"]]
    output = torch.zeros(2)
    made = plan.scatter(output, [torch.full((2,), float(i)) for i in range(3)], 2, 2, 3)
    assert steps(made) == [["send 8 to 0", "send 8 to 1"]]
    assert output.tolist() == [2, 2]


def test_all_to_all_leaves_out_what_is_empty_on_both_sides() -> None:
    made = plan.all_to_all(tensors(1, 0, 3), tensors(1, 5, 0), 0, 3)
    assert steps(made) == [["send 20 to 1", "receive 12 from 2"]]
    other = plan.all_to_all(tensors(5, 1, 1), tensors(0, 1, 2), 1, 3)
    assert steps(other) == [["send 8 to 2", "receive 20 from 0", "receive 4 from 2"]]


def test_sends_and_receives_of_all_ranks_match() -> None:
    size = 5
    counts = [[(a * 3 + b * 7) % 4 for b in range(size)] for a in range(size)]
    sent, received = [], []
    for rank in range(size):
        outputs = tensors(*(counts[peer][rank] for peer in range(size)))
        for one in plan.all_to_all(outputs, tensors(*counts[rank]), rank, size)[0].transfers:
            if isinstance(one, Sending):
                sent.append((rank, one.peer, one.tensor.numel()))
            elif isinstance(one, Receiving):
                received.append((one.peer, rank, one.tensor.numel()))
    assert sorted(sent) == sorted(received)
    assert sent


def test_neighbours_are_gathered_without_a_copy() -> None:
    whole = torch.zeros(6)
    parts = list(whole.split(2))
    made = plan.all_gather(parts, torch.ones(2), 0)
    assert steps(made) == [["AllGather 8 to 24"]]
    (transfer,) = made[0].transfers
    assert isinstance(transfer, AllGather)
    assert transfer.target.data_ptr() == whole.data_ptr()
    assert made[0].then == []
    apart = plan.all_gather(tensors(2, 2, 2), torch.ones(2), 0)
    assert steps(apart) == [["AllGather 8 to 24"]]
    assert len(apart[0].then) == 3


def test_uneven_ones_go_without_padding() -> None:
    assert steps(plan.all_gather(tensors(2, 0, 3), torch.ones(3), 2)) == [
        ["broadcast 8 of 0", "broadcast 12 of 2"]
    ]
    made = plan.reduce_scatter(torch.zeros(3), tensors(2, 0, 3), SUM, 2, 3)
    assert steps(made) == [["reduce 2 to 0", "reduce 3 to 2"]]


def test_reduce_scatter_of_neighbours() -> None:
    whole, output = torch.zeros(6), torch.zeros(2)
    (phase,) = plan.reduce_scatter(output, list(whole.split(2)), SUM, 0, 3)
    (transfer,) = phase.transfers
    assert isinstance(transfer, ReduceScatter)
    assert transfer.source.data_ptr() == whole.data_ptr()
    assert transfer.target.data_ptr() == output.data_ptr()
    assert phase.then == []


@pytest.mark.parametrize("count", [7, 2])
def test_bits_are_combined_part_by_part(count: int) -> None:
    sizes = {7: [3, 3, 1], 2: [1, 1, 0]}[count]
    exchange, share = steps(plan.all_reduce(torch.zeros(count, dtype=torch.int32), BAND, 1, 3))
    expected = {f"send {4 * n} to {to}" for to, n in enumerate(sizes) if n and to != 1}
    assert set(exchange) == expected | {f"receive {4 * sizes[1]} from {peer}" for peer in (0, 2)}
    assert share == [f"broadcast {4 * n} of {r}" for r, n in enumerate(sizes) if n]


def test_a_strided_tensor_is_copied_and_copied_back() -> None:
    tensor = torch.zeros(4, 2)[:, 0]
    (phase,) = plan.all_reduce(tensor, SUM, 0, 2)
    (transfer,) = phase.transfers
    assert isinstance(transfer, AllReduce)
    transfer.target.fill_(5)
    for then in phase.then:
        then()
    assert tensor.tolist() == [5] * 4


def test_nothing_is_sent_for_nothing() -> None:
    empty = torch.zeros(0)
    assert steps(plan.all_reduce(empty, SUM, 0, 2)) == [[]]
    assert plan.broadcast(empty, 0, 1) == []
    assert plan.all_gather(tensors(0, 0), empty, 0) == []
    assert plan.reduce_scatter(empty, tensors(0, 0), SUM, 0, 2) == []
    assert plan.gather(None, empty, 0, 1, 2) == []
    # But a message must arrive: a byte stands for it.
    assert steps(plan.send(empty, 1, 0)) == [["send 1 to 1"]]
    assert steps(plan.receive(empty, 1, 0)) == [["receive 1 from 1"]]


def test_several_calls_run_as_one_step_by_step() -> None:
    numbers = torch.zeros(3, dtype=torch.int32)
    bits = plan.all_reduce(numbers, BAND, 0, 2)
    whole = plan.merged([plan.all_reduce(torch.zeros(4), SUM, 0, 2), bits])
    assert [len(phase.transfers) for phase in whole] == [3, 2]
    assert steps(whole)[0][0] == "all_reduce 4"


def test_messages_of_a_batch_go_in_the_order_of_their_tags() -> None:
    (a,) = tensors(1)
    here: list[Transfer] = [Sending(a, 1, 2), Broadcast(a, 0), Sending(a, 1, 1), Sending(a, 2, 1)]
    there: list[Transfer] = [Receiving(a, 0, 1), Receiving(a, 0, 2)]
    assert [one.tag for one in in_order(here) if isinstance(one, Sending) and one.peer == 1] == [
        1,
        2,
    ]
    assert in_order(there) == there
    assert isinstance(in_order(here)[0], Broadcast)


def test_neighbours_of_other_storages_are_not_taken_for_one() -> None:
    whole = torch.zeros(6)
    assert adjacent([whole[:3], whole[3:]]) is not None
    assert adjacent([whole[3:], whole[:3]]) is None
    assert adjacent([whole[:2], whole[3:]]) is None
    assert adjacent([torch.zeros(3), torch.zeros(3)]) is None
    assert adjacent([whole[::2], whole[1::2]]) is None
