"""Where a NaN was made: in which module and operation, in a forward or a backward, or elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

from distdebug.rank.checks.nan_origin import NanOrigin

NAN = float("nan")


@pytest.fixture
def origin() -> Iterator[NanOrigin]:
    before = dict(modules._global_forward_hooks), dict(modules._global_forward_pre_hooks)
    made = NanOrigin()
    made.watch()
    yield made
    for hooks, kept in zip(
        (modules._global_forward_hooks, modules._global_forward_pre_hooks), before, strict=True
    ):
        for number in hooks.keys() - kept.keys():
            del hooks[number]


class Root(nn.Module):
    """Takes the root of what it gets."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


class Net(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layers(x)
        return made


def test_the_operation_is_named_with_module_line_and_batch(origin: NanOrigin) -> None:
    net = Net(nn.Identity(), Root(), nn.Identity())
    net(torch.ones(2))
    net(torch.tensor([-1.0, 4.0]))
    said = origin.found(NAN)
    assert said.startswith("`layers.1` (Root) was the first that returned it, by sqrt at test_nan_")
    assert said.endswith("in forward; batch 2: float32[2] from -1 to 4")


def test_statistics_are_as_they_were(origin: NanOrigin) -> None:
    class Norm(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) - float("inf") + float("inf")

    norm = Norm(3)
    norm(torch.randn(4, 3))
    before = norm.running_mean.clone() if norm.running_mean is not None else None
    assert "`Norm` was the first" in origin.found(NAN)
    assert before is not None
    assert torch.equal(before, norm.running_mean)  # type: ignore[arg-type]
    assert int(norm.num_batches_tracked or 0) == 1


def test_a_batch_a_parameter_or_another_rank_had_it(origin: NanOrigin) -> None:
    net = Net(nn.Linear(2, 2))
    net(torch.tensor([[1.0, NAN]]))
    assert "the batch has it; batch 1: float32[1, 2] from 1 to 1, 1 not finite" in origin.found(NAN)
    other = NanOrigin()
    other._begins(net, outermost=True)
    with torch.no_grad():
        net.layers[0].bias.fill_(NAN)  # type: ignore[union-attr, operator]
    x = torch.ones(1, 2)
    other._ends(net, (x,), {}, net.layers(x), outermost=True)
    assert "its layers.0.bias holds it already, since an earlier step" in other.found(NAN)
    third = NanOrigin()
    third.receives("all_reduce(sum, float32[2]) #7", [torch.ones(2)])
    third.receives("all_reduce(sum, float32[2]) #8", [torch.tensor([NAN])])
    assert "with the result of all_reduce(sum, float32[2]) #8" in third.found(NAN)


def test_a_backward_is_made_again(origin: NanOrigin) -> None:
    net = Net(nn.Linear(2, 2), nn.ReLU(), Root())
    with torch.no_grad():
        net.layers[0].weight.fill_(-1)  # type: ignore[union-attr, operator]
        net.layers[0].bias.fill_(0)  # type: ignore[union-attr, operator]
    net(torch.ones(2)).sum().backward()
    said = origin.found(NAN)
    assert said.startswith("it arose in the backward of `Net`, by SqrtBackward0 at test_nan_origin")


def test_the_batch_is_that_of_the_last_backward(origin: NanOrigin) -> None:
    """The steps before it were sound, and their gradients are still kept."""
    net = Net(nn.Linear(2, 2), Root())
    with torch.no_grad():
        net.layers[0].weight.fill_(1)  # type: ignore[union-attr, operator]
        net.layers[0].bias.fill_(0)  # type: ignore[union-attr, operator]
    net(torch.ones(2)).sum().backward()
    net(torch.tensor([3.0, 1.0])).sum().backward()
    net(torch.zeros(2)).sum().mul(0.0).backward()
    said = origin.found(NAN)
    assert "by SqrtBackward0" in said
    assert said.endswith("batch 3: float32[2] from 0 to 0")


def test_a_backward_that_a_hook_communicates_in_is_not(origin: NanOrigin) -> None:
    net = Net(nn.Linear(2, 2), nn.ReLU(), Root())
    with torch.no_grad():
        net.layers[0].weight.fill_(-1)  # type: ignore[union-attr, operator]
        net.layers[0].bias.fill_(0)  # type: ignore[union-attr, operator]
    net.layers[0].weight.register_hook(  # type: ignore[union-attr, operator]
        lambda _: origin.calls(sys._getframe(0))
    )
    net(torch.ones(2)).sum().backward()
    assert "is not known" in origin.found(NAN)


def test_a_loss_that_is_no_module(origin: NanOrigin) -> None:
    net = Net(nn.Linear(2, 1))
    loss = net(torch.ones(2))
    torch.sqrt((loss - loss.detach()).sum()).mul(0.0).backward()
    assert "`Net` returned was sound, and its gradient was not: the loss" in origin.found(NAN)


def test_the_loss_that_is_a_module(origin: NanOrigin) -> None:
    net = Net(nn.Linear(2, 1))
    made = net(torch.ones(2))
    Root()(made - made.detach()).sum().mul(0.0).backward()
    assert "it arose in the backward of `Root`, by SqrtBackward0" in origin.found(NAN)


def test_what_is_masked_inside_is_no_origin(origin: NanOrigin) -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.nan_to_num(Root()(x))

    Masked()(torch.tensor([-1.0]))
    assert "what modules returned was sound" in origin.found(NAN)


def test_an_exception_leaves_no_module_open(origin: NanOrigin) -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError

    net = Net(nn.Identity(), Fails())
    with pytest.raises(ValueError):
        net(torch.ones(2))
    Root()(torch.tensor([-1.0]))
    assert "`Root` was the first that returned it, by sqrt" in origin.found(NAN)


def test_one_that_communicates_is_not_called_again(origin: NanOrigin) -> None:
    calls = []

    class Talks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(origin.calls(sys._getframe(0)))
            return x.sqrt()

    Talks()(torch.tensor([-1.0]))
    said = origin.found(NAN)
    assert "`Talks` was the first that returned it; its input and parameters were sound" in said
    assert len(calls) == 1


def test_no_module_at_all(origin: NanOrigin) -> None:
    assert origin.found(NAN) == "where it was made is not known: no module of torch.nn was called"
