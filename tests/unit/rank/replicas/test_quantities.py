"""What of an optimiser's step is compared: each quantity tells of itself alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from distdebug.rank.replicas import quantities
from distdebug.record.replicas import OPTIMIZER_CLASS, number_of
from distdebug.record.snapshot import Column


def a_step(**options: float) -> tuple[nn.Linear, torch.optim.SGD]:
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(module.parameters(), **{"lr": 0.5, "momentum": 0.9, **options})
    module(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()
    return module, optimizer


def told(
    module: nn.Module, optimizer: torch.optim.Optimizer, *, stepped: bool = True
) -> dict[Column, int]:
    columns = quantities.columns(optimizer, [name for name, _ in module.named_parameters()])
    parameters = list(module.parameters())
    values = quantities.ReplicaReading(optimizer, parameters, None, stepped).values(len(columns))
    return dict(zip(columns, values, strict=True))


def write_parameter(module: nn.Linear, _: torch.optim.SGD) -> None:
    module.bias.data[1] += 1


def write_gradient(module: nn.Linear, _: torch.optim.SGD) -> None:
    assert module.bias.grad is not None
    module.bias.grad[1] += 1


def write_state(module: nn.Linear, optimizer: torch.optim.SGD) -> None:
    optimizer.state[module.bias]["momentum_buffer"][1] += 1


def write_rate(_: nn.Linear, optimizer: torch.optim.SGD) -> None:
    optimizer.param_groups[0]["lr"] = 0.25


@pytest.mark.parametrize(
    ("write", "column"),
    [
        (write_parameter, Column("parameter", "bias")),
        (write_gradient, Column("gradient", "bias")),
        (write_state, Column("optimizer_state", "bias")),
        (write_rate, Column("hyperparameter", 'param_groups[0]["lr"]')),
    ],
)
def test_a_change_is_told_by_its_own_column(
    write: Callable[[nn.Linear, torch.optim.SGD], None], column: Column
) -> None:
    module, optimizer = a_step()
    before = told(module, optimizer)
    assert told(*a_step()) == before, "the same step gives the same values"
    write(module, optimizer)
    after = told(module, optimizer)
    assert [one for one in before if before[one] != after[one]] == [column]


def test_numbers_stand_as_they_are() -> None:
    found = told(*a_step())
    assert number_of(found[Column("hyperparameter", 'param_groups[0]["lr"]')]) == 0.5
    assert number_of(found[Column("hyperparameter", 'param_groups[0]["momentum"]')]) == 0.9


def test_before_the_first_step_nothing_tells_of_what_a_step_is_made_of() -> None:
    """The ranks may step on their own: that is known only when they have."""
    found = told(*a_step(), stepped=False)
    assert {found[Column(what, "bias")] for what in ("gradient", "optimizer_state")} == {0}


def test_another_optimizer_is_told_by_its_class() -> None:
    module, optimizer = a_step()
    other = torch.optim.Adam(module.parameters(), lr=0.5)
    column = Column("hyperparameter", OPTIMIZER_CLASS)
    assert told(module, optimizer)[column] != told(module, other)[column]


def test_the_state_of_others_optimisers_is_their_own() -> None:
    """What one leaves out when it compresses gradients, say, is of each rank alone."""

    class Compressing(torch.optim.SGD):
        pass

    module, optimizer = a_step()
    kept = Compressing(module.parameters(), lr=0.5)
    kept.load_state_dict(optimizer.state_dict())
    assert told(module, kept)[Column("optimizer_state", "bias")] == 0


def test_a_scheduler_adds_a_number_later() -> None:
    module, optimizer = a_step()
    columns = quantities.columns(optimizer, ["weight", "bias"])
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    parameters = list(module.parameters())
    values = quantities.ReplicaReading(optimizer, parameters, None, True).values(len(columns))
    assert len(values) == len(columns)


def test_samples_are_all_elements_of_a_small_replica() -> None:
    module, optimizer = a_step()
    parameters = list(module.parameters())
    counts = quantities.samples(parameters, None)
    assert counts == [6, 2, 6, 2, 6, 2]
    found = quantities.ReplicaReading(optimizer, parameters, None, True).samples(counts)
    assert module.bias.grad is not None
    assert found[6:8] == module.bias.tolist()
    assert found[14:16] == module.bias.grad.tolist()
    assert found[22:24] == optimizer.state[module.bias]["momentum_buffer"].tolist()
    before = quantities.ReplicaReading(optimizer, parameters, None, False).samples(counts)
    assert before[:8] == found[:8]
    assert all(map(math.isnan, before[8:]))


def test_samples_of_a_large_tensor_are_spaced() -> None:
    large = nn.Parameter(torch.arange(100_000, dtype=torch.float32))
    optimizer = torch.optim.SGD([large], lr=0.1)
    counts = quantities.samples([large], None)
    assert sum(counts) <= quantities.MOST_SAMPLES
    found = quantities.ReplicaReading(optimizer, [large], None, False).samples(counts)[: counts[0]]
    steps = {after - before for before, after in itertools.pairwise(found)}
    assert len(steps) == 1
    assert found[-1] > 90_000


def test_samples_of_complex_elements() -> None:
    turning = nn.Parameter(torch.tensor([1 + 2j, 3 + 4j]))
    optimizer = torch.optim.SGD([turning], lr=0.1)
    found = quantities.ReplicaReading(optimizer, [turning], None, False).samples([2, 0, 0])
    assert found == [1.0, 3.0]
