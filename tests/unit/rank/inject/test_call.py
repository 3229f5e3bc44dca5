"""What `change` and the faults of data make of a call's arguments, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distdebug.rank.inject.arguments import change
from distdebug.rank.inject.call import AskedLater, CannotHappen, InjectedCall, OtherWork, skip
from distdebug.rank.inject.data import damage_call, damage_parameter


class Group:
    """Rank 1 of three; its global ranks are 4, 5 and 6."""

    ranks = (4, 5, 6)
    names = ("1", "tp", "tp")

    def __init__(self, siblings: tuple[Any, ...] = (), size: int = 3, names: Any = None) -> None:
        self._siblings, self._size = siblings, size
        self.names = names or self.names

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return self._size

    def siblings(self) -> list[Any]:
        return list(self._siblings)


def call(name: str, *args: Any, group: Any = None) -> InjectedCall:
    return InjectedCall(group or Group(), name, args, {})


def options(kind: str, **values: Any) -> Any:
    made = getattr(dist, kind)()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def shapes(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return tuple(argument.shape)
    return [shapes(one) for one in argument]


T = torch.arange(12.0).reshape(6, 2)
SMALL = torch.zeros(2, 2)


@pytest.mark.parametrize(
    ("name", "args", "to", "first", "second"),
    [
        ("allreduce", ([T], options("AllreduceOptions")), None, [(5, 2)], None),
        ("allreduce", ([T], options("AllreduceOptions")), [3], [(3,)], None),
        ("allreduce", ([torch.zeros(())],), None, [(1 + 1,)], None),
        ("allreduce", ([torch.zeros(1)],), None, [(2,)], None),
        ("broadcast", ([torch.zeros(0)],), None, [(1,)], None),
        ("allgather", ([[T, T, T]], [T]), None, [[(5, 2)] * 3], [(5, 2)]),
        ("_allgather_base", (torch.zeros(6, 2), SMALL), None, (3, 2), (1, 2)),
        ("_reduce_scatter_base", (SMALL, T), None, (1, 2), (3, 2)),
        ("_reduce_scatter_base", (SMALL, T), [4], (4,), (12,)),
        ("scatter", ([T], [], options("ScatterOptions")), None, [(5, 2)], []),
        ("send", ([T], 2, 0), None, [(5, 2)], None),
    ],
)
def test_shape(name: str, args: Any, to: Any, first: Any, second: Any) -> None:
    before = shapes([one for one in args[:2] if not isinstance(one, int | type(args[-1]))])
    changed = change(call(name, *args), "shape", to)
    assert shapes(changed.args[0]) == first
    if second is not None:
        assert shapes(changed.args[1]) == second
    assert len(changed.args) == len(args)
    assert before == shapes([one for one in args[:2] if not isinstance(one, int | type(args[-1]))])


def test_a_changed_call_says_what_the_program_believes_to_be_written() -> None:
    changed = change(call("allreduce", [T], options("AllreduceOptions")), "shape", None)
    assert changed.tensors is not None
    assert changed.tensors[0] is T
    again = change(changed, "dtype", None)
    assert again.tensors == changed.tensors
    assert again.args[0][0].dtype is torch.float64


@pytest.mark.parametrize(
    ("before", "to", "after"),
    [
        (torch.float32, None, torch.float64),
        (torch.float64, None, torch.float32),
        (torch.bfloat16, None, torch.float32),
        (torch.int64, None, torch.int32),
        (torch.bool, None, torch.uint8),
        (torch.float32, "float16", torch.float16),
    ],
)
def test_dtype(before: Any, to: str | None, after: Any) -> None:
    given = torch.ones(4, dtype=before)
    changed = change(call("_allgather_base", given.repeat(3), given), "dtype", to)
    assert [one.dtype for one in changed.args] == [after, after]
    assert given.dtype is before


def test_reduce_op() -> None:
    given = options("AllreduceOptions", reduceOp=dist.ReduceOp.SUM, asyncOp=False)
    changed = change(call("allreduce", [T], given), "reduce_op", None)
    assert changed.args[1].reduceOp == dist.ReduceOp.MAX
    assert changed.args[1].asyncOp is False
    assert given.reduceOp == dist.ReduceOp.SUM
    product = change(call("allreduce", [T], given), "reduce_op", "product")
    assert product.args[1].reduceOp == dist.ReduceOp.PRODUCT


def test_root() -> None:
    given = options("BroadcastOptions", rootRank=2)
    assert change(call("broadcast", [T], given), "root", None).args[1].rootRank == 0
    assert change(call("broadcast", [T], given), "root", 5).args[1].rootRank == 1
    assert given.rootRank == 2


def test_a_new_root_has_a_list_and_an_old_one_none() -> None:
    becomes = change(call("gather", [], [T], options("GatherOptions", rootRank=0)), "root", None)
    assert shapes(becomes.args[0]) == [[(6, 2)] * 3]
    was = change(call("gather", [[T] * 3], [T], options("GatherOptions", rootRank=1)), "root", None)
    assert (was.args[0], was.args[2].rootRank) == ([], 2)
    becomes = change(call("scatter", [T], [], options("ScatterOptions", rootRank=0)), "root", None)
    assert shapes(becomes.args[1]) == [[(6, 2)] * 3]


def test_split() -> None:
    changed = change(call("alltoall_base", T, T.clone(), [], []), "split", None)
    output, given, receives, sends = changed.args
    assert (receives, sends) == ([2, 2, 2], [1, 2, 3])  # what it sends to itself stays
    assert (shapes(output), shapes(given)) == ((6, 2), (6, 2))


def test_split_between_two_ranks() -> None:
    """There, the row goes to the rank itself, which must have room for it."""
    group = Group(size=2)
    changed = change(
        call("alltoall_base", T, T.clone(), [3, 3], [3, 3], group=group), "split", None
    )
    output, sent, receives, sends = changed.args
    assert (receives, sends) == ([3, 4], [2, 4])
    assert (shapes(output), shapes(sent)) == ((7, 2), (6, 2))


def test_split_of_lists() -> None:
    outputs, inputs = [SMALL] * 3, [SMALL, SMALL, SMALL]
    changed = change(call("alltoall", outputs, inputs), "split", [4, 2, 0])
    assert shapes(changed.args[1]) == [(4, 2), (2, 2), (0, 2)]
    assert shapes(changed.args[0]) == [(2, 2)] * 3


def test_shape_of_an_all_to_all() -> None:
    changed = change(call("alltoall_base", T, T.clone(), [], []), "shape", None)
    assert changed.args[2:] == ([2, 2, 2], [2, 2, 3])
    assert shapes(changed.args[1]) == (7, 2)


def test_messages() -> None:
    given = call("send", [T], 0, 7)
    assert change(given, "tag", None).args[1:] == (0, 8)
    assert change(given, "tag", 3).args[1:] == (0, 3)
    assert change(given, "peer", None).args[1:] == (2, 7)
    assert change(given, "peer", 6).args[1:] == (2, 7)
    assert change(call("recv_anysource", [T], 7), "tag", None).args[1] == 8


def test_group() -> None:
    small, same = Group(size=2, names=("2", "pp", "pp")), Group(names=("3", "dp", "dp"))
    group = Group((small, same))
    reduced = call("allreduce", [T], options("AllreduceOptions"), group=group)
    assert change(reduced, "group", None).group is small
    assert change(reduced, "group", "dp").group is same
    gathered = call("_allgather_base", torch.zeros(18, 2), T, group=group)
    assert change(gathered, "group", None).group is same  # its tensors are for three ranks


@pytest.mark.parametrize(
    ("name", "args", "what", "to", "words"),
    [
        ("barrier", (), "shape", None, "has no tensors"),
        ("barrier", (), "dtype", None, "has no tensors"),
        ("broadcast", ([T],), "reduce_op", None, "has no reduce op"),
        ("allreduce", ([T],), "root", None, "has no root"),
        ("allreduce", ([T],), "reduce_op", None, "without an options object"),
        ("allreduce", ([T],), "split", None, "has no splits"),
        ("allreduce", ([T],), "tag", None, "no send or recv"),
        ("send", ([T], 0, 7), "peer", 0, "not in the group"),
        ("send", ([T], 0, 7), "peer", 4, "no other rank"),
        ("recv_anysource", ([T], 7), "peer", None, "has no peer"),
        ("allreduce", ([T],), "dtype", "float99", "no dtype"),
        ("allreduce", ([T],), "group", None, "in no other group"),
        ("alltoall_base", (T, T, [], []), "split", [1, 2], "has 3 splits"),
        ("alltoall_base", (T, T, [0, 6, 0], [0, 6, 0]), "split", None, "sends no row"),
    ],
)
def test_refused(name: str, args: Any, what: str, to: Any, words: str) -> None:
    with pytest.raises(CannotHappen, match=words):
        change(call(name, *args), what, to)


# -- data ------------------------------------------------------------------------------------------


def damaged(action: str, tensor: torch.Tensor, **arguments: Any) -> torch.Tensor:
    told: list[str] = []
    damage_call(action, arguments, "allreduce", ([tensor],), 0, lambda: told.append("now"))
    assert told == ["now"]
    return tensor


def test_data() -> None:
    assert math.isnan(damaged("nan", torch.zeros(2, 2))[0, 0])
    assert damaged("inf", torch.zeros(3, dtype=torch.float16)).tolist() == [math.inf, 0, 0]
    strided = torch.zeros(4, 4)[::2, 1::2]
    assert math.isnan(damaged("nan", strided)[0, 0])


@pytest.mark.parametrize(
    ("tensor", "bit", "after"),
    [
        (torch.ones(2), 22, 1.5),
        (torch.ones(()), 31, -1.0),
        (torch.ones(2, dtype=torch.float64), 63, -1.0),
        (torch.ones(2, dtype=torch.int64), 3, 9),
        (torch.ones(2, dtype=torch.uint8), 7, 129),
        (torch.ones(2, dtype=torch.bfloat16), 15, -1.0),
    ],
)
def test_bitflip(tensor: torch.Tensor, bit: int, after: float) -> None:
    assert damaged("bitflip", tensor, bit=bit).flatten()[0].item() == after


def test_autograd_does_not_notice() -> None:
    parameter = torch.ones(2, requires_grad=True)
    result = (parameter * parameter).sum()
    damaged("nan", parameter)
    result.backward()
    assert parameter._version == 0


@pytest.mark.parametrize(
    ("action", "name", "args"),
    [
        ("nan", "barrier", ()),
        ("nan", "allreduce", ([torch.zeros(0)],)),
        ("nan", "allreduce", ([torch.zeros(2, dtype=torch.int64)],)),
        ("bitflip", "allreduce", ([torch.zeros(2, dtype=torch.float16)],)),
        ("nan", "recv", ([T], 0, 0)),
        ("nan", "broadcast", ([T], options("BroadcastOptions", rootRank=1))),
    ],
)
def test_nothing_to_damage(action: str, name: str, args: Any) -> None:
    with pytest.raises(CannotHappen):
        damage_call(action, {"bit": 22}, name, args, 0, lambda: pytest.fail("announced"))


def test_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)
    damage_parameter("nan", {"name": "1.bias"}, lambda: None)
    assert math.isnan(model[1].bias[0].item())
    with pytest.raises(CannotHappen, match="named 'nobody'"):
        damage_parameter("nan", {"name": "nobody"}, lambda: pytest.fail("announced"))


# -- handles ---------------------------------------------------------------------------------------


def test_a_call_that_was_left_out_is_done() -> None:
    work = skip(call("allreduce", [T], options("AllreduceOptions")))
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.get_future().value()[0] is T
    assert work.get_future_result().value() == 0
    assert skip(call("monitored_barrier")) is None


def test_who_asks_whether_a_call_is_over_is_answered_once_it_is() -> None:
    answers = iter([False, False, True])
    looks: list[None] = []

    class Asked(OtherWork):
        def is_completed(self) -> bool:
            return next(answers)

    work = AskedLater(Asked(None, ()), lambda: looks.append(None))
    assert work.is_completed()
    assert len(looks) == 2


def test_a_handle_waits_for_both() -> None:
    class Waited(OtherWork):
        waited = 0

        def wait(self, timeout: Any = None) -> bool:
            self.waited += 1
            return True

    one, other = Waited(None, ()), Waited(None, ())
    work = OtherWork(one, [T], also=other)
    work.wait()
    assert (one.waited, other.waited) == (1, 1)
    assert work.get_future().value()[0] is T
