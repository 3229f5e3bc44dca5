"""A call that is seen to be like the newest one of its line has the same key."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distdebug.rank.group import checked_group
from distdebug.rank.record.describe import METHODS
from distdebug.rank.record.likeness import FORMS, Form, Same
from distdebug.rank.torch_private import tensor_guard, tensor_guards

c10d: Any = torch._C._distributed_c10d


class Call:
    """Of `Known`, what is looked at here."""

    def __init__(self, key: Any) -> None:
        self.key = key


def tensors() -> Iterator[torch.Tensor]:
    """Like none of each other, but for the last two."""
    yield torch.zeros(2, 3)
    yield torch.zeros(3, 2)
    yield torch.zeros(2, 3, 1)
    yield torch.zeros(0, 3)
    yield torch.zeros(())
    yield torch.zeros(2, 3, dtype=torch.int32)
    yield torch.zeros(2, 3, device="meta")
    yield torch.zeros(2, 3, requires_grad=True)
    yield torch.zeros(2, 3).to_sparse()
    yield torch.nn.Parameter(torch.zeros(2, 3))
    yield torch.zeros(3, 2).t()


def reducing(options: type, op: Any) -> Any:
    made = options()
    made.reduceOp = op
    return made


def broadcast(root: int) -> Any:
    options = c10d.BroadcastOptions()
    options.rootRank = root
    return options


OPS = (dist.ReduceOp.SUM, dist.ReduceOp.MAX)
AllReduce, Scatter = c10d.AllreduceOptions, c10d.ReduceScatterOptions
VARIANTS: dict[str, Callable[[], list[tuple[Any, ...]]]] = {
    "allreduce": lambda: [
        *(([one], reducing(AllReduce, op)) for one in tensors() for op in OPS),
        ([torch.zeros(2, 3), torch.zeros(2, 3)], AllReduce()),
        ([torch.zeros(2, 3)], dist.ReduceOp.SUM),
        ([torch.zeros(2, 3)],),
        (torch.zeros(1, 2, 3), AllReduce()),
        ([], AllReduce()),
    ],
    "broadcast": lambda: [
        *(([one], broadcast(root)) for one in tensors() for root in (0, 1)),
        ([torch.zeros(2, 3)], 0),
        (torch.zeros(1, 2, 3), broadcast(0)),
    ],
    "allgather": lambda: [
        *(
            ([[torch.empty_like(one), other]], [one], None)
            for one, other in itertools.product(tensors(), repeat=2)
        ),
        ([[torch.zeros(2, 3)]], [torch.zeros(2, 3)], None),
        ([torch.zeros(2, 2, 3)], [torch.zeros(2, 3)], None),
    ],
    "_allgather_base": lambda: [
        (one, other, None) for one, other in itertools.product(tensors(), repeat=2)
    ],
    "_reduce_scatter_base": lambda: [
        (one, other, reducing(Scatter, op))
        for one, other in itertools.product(tensors(), repeat=2)
        for op in OPS
    ],
    "send": lambda: [
        *(([one], peer, tag) for one in tensors() for peer in (0, 1) for tag in (0, 1)),
        ([torch.zeros(2, 3)], True, 0),
        (torch.zeros(1, 2, 3), 0, 0),
    ],
}


def same(form: Form, key: Any, args: tuple[Any, ...]) -> Same | None:
    known: Any = Call(key)
    return form.same(known, args, tensor_guard)


@pytest.mark.parametrize("method", VARIANTS)
def test_what_is_like_a_call_has_its_key(method: str) -> None:
    form, key_of = FORMS[method], METHODS[method].key
    variants = VARIANTS[method]()
    found = 0
    for args in variants:
        newest = same(form, key_of(args), args)
        if newest is None:
            continue
        for others in variants:
            if form.is_like(newest.guard, newest.known.key, others):
                assert key_of(others) == key_of(args), (args, others)
                found += others is not args
    assert found, "a tensor with other strides makes the same call"


@pytest.mark.parametrize("method", FORMS)
def test_each_form_is_of_a_method_with_a_short_key(method: str) -> None:
    assert METHODS[method].short is not None


def test_a_call_is_like_itself_until_its_tensor_changes() -> None:
    form, one = FORMS["allreduce"], torch.zeros(4)
    args = ([one], AllReduce())
    newest = same(form, METHODS["allreduce"].key(args), args)
    assert newest is not None
    assert form.is_like(newest.guard, newest.known.key, args)
    one.resize_(2)
    assert not form.is_like(newest.guard, newest.known.key, args)
    one.data = torch.zeros(4, dtype=torch.float64)
    assert not form.is_like(newest.guard, newest.known.key, args)


class Own(torch.Tensor):
    pass


def test_what_a_guard_cannot_tell_is_described_each_time() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that these are new
        nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    assert tensor_guard([torch.zeros(2).as_subclass(Own)]) is None
    assert tensor_guard([nested]) is None
    one = torch.zeros(2)
    args = ([[one, one]], [one])  # a guard says no to a tensor that is given twice
    assert same(FORMS["allgather"], METHODS["allgather"].key(args), args) is None


def test_in_a_plan_tensors_answer_for_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tensor_guard([torch.zeros(2)]) is not None
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda _: False), raising=False)
    assert tensor_guard([torch.zeros(2)]) is None


@pytest.mark.parametrize("told", ["yes", "no"])
def test_guards_that_tell_something_else_are_left_alone(
    told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    off: list[str] = []
    monkeypatch.setattr(tensor_guards.TENSOR_GUARDS, "switch_off", off.append)
    tensor_guards.try_tensor_guards()
    assert off == []
    monkeypatch.setattr(tensor_guards, "_made", lambda _: lambda *_: told == "yes")
    tensor_guards.try_tensor_guards()
    assert len(off) == 1


def test_guards_that_cannot_be_made_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    off: list[str] = []
    monkeypatch.setattr(tensor_guards.TENSOR_GUARDS, "switch_off", off.append)
    monkeypatch.setattr("torch._C._dynamo.guards.TensorGuards", "something else")
    tensor_guards.try_tensor_guards()
    (said,) = off
    assert "TypeError" in said


def test_all_forms_are_used() -> None:
    assert set(FORMS) <= {name for name in METHODS if name in vars(checked_group.CheckedGroup)} | {
        "all_gather_single",  # from torch 2.14 on
        "reduce_scatter_single",
    }
