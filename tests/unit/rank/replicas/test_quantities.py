"""What of an optimiser's step is compared: each quantity tells of itself alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from distdebug.rank.replicas import quantities
from distdebug.rank.replicas.quantities import ROW, digests
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
    names, parameters = zip(*module.named_parameters(), strict=True)
    columns = quantities.columns(optimizer, names, parameters)
    values, _ = quantities.read(optimizer, parameters, None, stepped, len(columns), [])
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
    parameters = list(module.parameters())
    columns = quantities.columns(optimizer, ["weight", "bias"], parameters)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    values, _ = quantities.read(optimizer, parameters, None, True, len(columns), [])
    assert len(values) == len(columns)


def test_numbers_for_parameters_of_the_rank_alone_are_left_out() -> None:
    module, optimizer = a_step()
    before = told(module, optimizer)
    optimizer.add_param_group({"params": nn.Linear(2, 2).parameters(), "lr": 0.25})
    assert told(module, optimizer) == before


def test_samples_are_all_elements_of_a_small_replica() -> None:
    module, optimizer = a_step()
    parameters = list(module.parameters())
    counts = quantities.samples(parameters, None)
    assert counts == [6, 2, 6, 2, 6, 2]
    _, found = quantities.read(optimizer, parameters, None, True, 6, counts)
    assert module.bias.grad is not None
    assert found[6:8] == module.bias.tolist()
    assert found[14:16] == module.bias.grad.tolist()
    assert found[22:24] == optimizer.state[module.bias]["momentum_buffer"].tolist()
    _, before = quantities.read(optimizer, parameters, None, False, 6, counts)
    assert before[:8] == found[:8]
    assert all(map(math.isnan, before[8:]))


def test_samples_of_a_large_tensor_are_spaced() -> None:
    large = nn.Parameter(torch.arange(100_000, dtype=torch.float32))
    optimizer = torch.optim.SGD([large], lr=0.1)
    counts = quantities.samples([large], None)
    assert sum(counts) <= quantities.MOST_SAMPLES
    _, found = quantities.read(optimizer, [large], None, False, 3, counts)
    found = found[: counts[0]]
    steps = {after - before for before, after in itertools.pairwise(found)}
    assert len(steps) == 1
    assert found[-1] > 90_000


def test_samples_of_complex_elements() -> None:
    turning = nn.Parameter(torch.tensor([1 + 2j, 3 + 4j]))
    optimizer = torch.optim.SGD([turning], lr=0.1)
    _, found = quantities.read(optimizer, [turning], None, False, 3, [2, 0, 0])
    assert found == [1.0, 3.0]


DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.int8,
    torch.int64,
    torch.bool,
]


def of(tensor: torch.Tensor) -> int:
    return digests([tensor])[0]


def flipped(tensor: torch.Tensor, byte: int, bit: int) -> torch.Tensor:
    other = tensor.clone()
    other.view(-1).view(torch.uint8)[byte] ^= 1 << bit
    return other


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_bits(dtype: torch.dtype) -> None:
    tensor = torch.arange(0, 6).to(dtype).reshape(2, 3)
    assert of(tensor) == of(tensor.clone()) == of(tensor.t().contiguous().t())
    assert 0 <= of(tensor) < 1 << 64


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64])
def test_every_single_bit_counts(dtype: torch.dtype) -> None:
    tensor = torch.arange(1, 6).to(dtype)
    every = {
        of(flipped(tensor, byte, bit)) for byte in range(tensor.nbytes) for bit in range(8)
    } | {of(tensor)}
    assert len(every) == 8 * tensor.nbytes + 1


@pytest.mark.parametrize("element", [0, ROW - 1, ROW, 70 * ROW + 5, 70 * ROW + 99])
def test_in_a_large_tensor(element: int) -> None:
    tensor = torch.ones(70 * ROW + 100)
    before = of(tensor)
    assert of(flipped(tensor, 4 * element, 0)) != before
    tensor[element] = float("nan")
    assert of(tensor) != before


@pytest.mark.parametrize("elements", [8, 4096, 4099])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex128])
def test_changed_signs_do_not_make_up_for_each_other(dtype: torch.dtype, elements: int) -> None:
    tensor = torch.arange(1, elements + 1).to(dtype)
    other = tensor.clone()
    other[2], other[5] = -other[2], -other[5]
    assert len(set(digests([tensor, other, -tensor, -other]))) == 4


def test_the_order_counts() -> None:
    tensor = torch.arange(2.0 * ROW)
    assert of(tensor) != of(tensor.flip(0))
    assert of(tensor) != of(torch.cat([tensor[ROW:], tensor[:ROW]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool])
@pytest.mark.parametrize("elements", [1024, 4096, 5000, 2 * ROW + 9])
def test_the_place_of_an_element_counts(dtype: torch.dtype, elements: int) -> None:
    """A row or a column of sums, of those that are made of a large tensor, has moved as a whole."""
    tensor = torch.zeros(elements, dtype=dtype)
    tensor[::3] = 1
    two = tensor.clone()
    two[3], two[elements - 2] = 0, 1
    every = [tensor, two, *(tensor.roll(by) for by in (1, 2, 8, 32, 64, 512, 1000))]
    assert len(set(digests(every))) == len({tuple(one.tolist()) for one in every})
    rows = torch.randint(0, 2, (32, elements), generator=torch.Generator().manual_seed(0))
    assert len(set(digests([*rows.to(dtype)]))) == 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("size", [16, 30, 64, 256])
def test_permutations_differ(dtype: torch.dtype, size: int) -> None:
    """All of their rows and columns have the same sum."""
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(size, generator=generator) for _ in range(20)]
    swapped = orders[0].clone()
    swapped[2], swapped[5] = orders[0][5], orders[0][2]
    matrices = [torch.eye(size, dtype=dtype)[order] for order in (*orders, swapped)]
    assert len(set(digests(matrices))) == len(matrices)


def test_nans_are_one() -> None:
    """Which one an addition gives depends on the order of its operands."""
    tensor = torch.tensor([1.0, float("nan"), 2.0])
    other = flipped(flipped(tensor, 4, 0), 7, 7)
    assert other.isnan().tolist() == tensor.isnan().tolist()
    assert of(tensor) == of(other) != of(torch.tensor([1.0, 3.0, float("nan")]))
    assert of(torch.tensor([float("inf"), -float("inf")])) != of(tensor[:2])


def test_several_at_once_and_none() -> None:
    tensors = [torch.ones(3), torch.zeros(()), torch.empty(0), torch.full((), 2.0)]
    assert digests(tensors) == [of(tensor) for tensor in tensors]
    assert of(tensors[1]) != of(tensors[3])
    assert digests([]) == []


def test_the_programs_random_numbers_stay() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    of(torch.ones(3))
    assert torch.rand(3).equal(expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_minus_one_is_not_zero(dtype: torch.dtype) -> None:
    """All bits of one are those of the other, inverted."""
    zeros = torch.zeros(16, dtype=dtype)
    assert len(set(digests([zeros, zeros - 1]))) == 2
