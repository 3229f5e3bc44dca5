"""Which steps of optimisers are the program's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.optim.optimizer import register_optimizer_step_post_hook

from distdebug.rank.torch_private.training import cannot_look, graph_of


@pytest.fixture
def left_out() -> Iterator[list[bool]]:
    """Of each step, whether it is left out."""
    seen: list[bool] = []

    def after(*_: object) -> None:
        seen.append(cannot_look(sys._getframe()))

    handle = register_optimizer_step_post_hook(after)
    yield seen
    handle.remove()


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)


def test_a_step_within_another_is_a_part_of_it(left_out: list[bool]) -> None:
    inner = sgd()

    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            inner.step()

    outer = Outer([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    outer.step()
    assert left_out == [True, False]


class Shadowing(Joinable):
    """What steps for a rank without inputs, as ZeroRedundancyOptimizer does."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = sgd()

    def join_hook(self, **_: Any) -> JoinHook:
        hook = JoinHook()
        hook.main_hook = self.optimizer.step  # type: ignore[method-assign]
        return hook

    @property
    def join_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def join_process_group(self) -> Any:
        return None


def test_steps_that_join_makes_for_a_rank_without_inputs(
    left_out: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = iter([1, 1, 0])
    monkeypatch.setattr(Join, "_extract_dist_info", lambda _self: None)
    monkeypatch.setattr(Join, "_get_num_nonjoined_procs", lambda _self: next(others))
    shadowing = Shadowing()
    with Join([shadowing]):
        shadowing.optimizer.step()
    shadowing.optimizer.step()
    assert left_out == [False, True, True, False]


@pytest.mark.parametrize(
    ("layer", "kinks"),
    [
        (torch.nn.ReLU(), 1),
        (torch.nn.Hardswish(), 1),
        (torch.nn.MaxPool1d(2), 1),
        (torch.nn.GELU(), 0),
        (torch.nn.Softmax(-1), 0),
    ],
)
def test_operations_whose_derivative_jumps(layer: torch.nn.Module, kinks: int) -> None:
    loss = layer(torch.nn.Linear(4, 4)(torch.ones(2, 4))).square().sum()
    assert graph_of(loss)[0] == "float32"
    assert graph_of(loss)[3] == kinks
