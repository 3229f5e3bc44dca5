"""Which parameters a program seems to have forgotten, by what it does with the gradients of others.

A group is any hashable here: nothing is asked of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from distdebug.rank.replicas.declarations import forgotten, left_beside

GROUP: Any = "world"
OTHER: Any = "expert's"


class Layer(nn.Module):
    """Two norms beside a shard."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(4), nn.LayerNorm(width)
        self.shard = nn.Linear(4, 4)


def found(
    model: nn.Module,
    summed: Iterable[nn.Module],
    by_other: Iterable[nn.Module] = (),
    frozen: Iterable[nn.Module] = (),
) -> tuple[list[str], list[str]]:
    """The names of what is left out, and of what is like it."""
    names = {id(one): name for name, one in model.named_parameters()}
    held = {id(one) for module in frozen for one in module.parameters()}

    def of(modules: Iterable[nn.Module]) -> dict[int, object]:
        return {id(one): one for each in modules for one in each.parameters()}

    reduced = {GROUP: of(summed), OTHER: of(by_other)}
    both = forgotten(list(model.modules()), names.keys() - held, reduced, GROUP)
    left_out, like = ([names[key] for key in names if key in ids] for ids in both)
    return left_out, like


NONE: tuple[list[str], list[str]] = ([], [])


def test_a_norm_beside_one_that_is_summed() -> None:
    model = Layer()
    expected = (["last.weight", "last.bias"], ["norm.weight", "norm.bias"])
    assert found(model, [model.norm]) == expected


def test_in_another_layer() -> None:
    model = nn.Sequential(Layer(), Layer())
    first, second = model
    assert isinstance(first, Layer)
    assert isinstance(second, Layer)
    left_out, _ = found(model, [first.norm, second.norm, first.last])
    assert left_out == ["1.last.weight", "1.last.bias"]


def test_matrices_are_shards() -> None:
    """Also where another of the same class and layout is summed."""
    model = nn.ModuleDict({"replicated": nn.Linear(4, 4), "column": nn.Linear(4, 4)})
    assert found(model, [model["replicated"]]) == NONE


def test_nothing_is_summed() -> None:
    assert found(Layer(), []) == NONE


def test_all_are_summed() -> None:
    model = Layer()
    assert found(model, [model.norm, model.last]) == NONE


def test_what_is_like_it_has_another_layout() -> None:
    """A norm of the features of a shard."""
    model = Layer(width=2)
    assert found(model, [model.norm]) == NONE
    model.last = nn.LayerNorm(4).to(torch.float64)
    assert found(model, [model.norm]) == NONE
    model.last = nn.LayerNorm(4, bias=False)
    assert found(model, [model.norm]) == NONE


def test_another_class() -> None:
    """Clients of federated learning keep their batch norms."""
    model = nn.Sequential(nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    assert found(model, [model[0], model[2]]) == NONE


def test_a_part_that_is_all_of_the_ranks_own() -> None:
    """An expert, a head, a discriminator: with a norm of its own."""
    own = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
    model = nn.ModuleDict({"norm": nn.LayerNorm(4), "own": own})
    assert found(model, [model["norm"]]) == NONE


def test_no_common_module() -> None:
    both = nn.ModuleDict({"one": nn.LayerNorm(4), "other": nn.LayerNorm(4)})
    apart = nn.ModuleList(both.children())
    names = {id(one) for one in both.parameters()}
    reduced = {GROUP: {id(one): one for one in both["one"].parameters()}}
    assert forgotten(list(apart.children()), names, reduced, GROUP) == (set(), set())


def test_summed_among_others() -> None:
    """By those that hold the same expert; but data parallelism sums all alike."""
    model = Layer()
    assert found(model, [model.norm], by_other=[model.last, model.shard]) == NONE
    left_out, _ = found(model, [model.norm], by_other=[model])
    assert left_out == ["last.weight", "last.bias"]


def test_no_gradient() -> None:
    model = Layer()
    assert found(model, [model.norm], frozen=[model.last]) == NONE


def test_the_bias_of_a_matrix_that_is_summed() -> None:
    """But not a head of each rank's own, a low-rank factor of its own, or what others sum."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    (weight, bias), (head, _) = (list(one.parameters()) for one in model)
    names = {id(one) for one in model.parameters()}
    modules = list(model.modules())
    reduced: dict[Any, dict[int, object]] = {GROUP: {id(weight): weight}, OTHER: {}}
    assert left_beside(modules, names, reduced, GROUP) == ({id(bias)}, {id(weight)})
    assert left_beside(modules, names - {id(bias)}, reduced, GROUP) == (set(), set())
    reduced[OTHER] = {id(bias): bias}
    assert left_beside(modules, names, reduced, GROUP) == (set(), set())
    factors = nn.Module()
    factors.down, factors.up = nn.Parameter(torch.ones(4, 2)), nn.Parameter(torch.ones(2, 4))
    reduced = {GROUP: {id(factors.down): factors.down, id(head): head}}
    assert left_beside([factors], {id(factors.up)}, reduced, GROUP) == (set(), set())
