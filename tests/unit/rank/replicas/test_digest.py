"""Which tensors have one digest, and which have not."""

from __future__ import annotations

import pytest
import torch

from distdebug.rank.replicas.quantities import ROW, digests

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_changed_signs_do_not_make_up_for_each_other(dtype: torch.dtype) -> None:
    tensor = torch.arange(1, 9).to(dtype)
    other = tensor.clone()
    other[2], other[5] = -other[2], -other[5]
    assert of(other) != of(tensor)


def test_the_order_counts() -> None:
    tensor = torch.arange(2.0 * ROW)
    assert of(tensor) != of(tensor.flip(0))
    assert of(tensor) != of(torch.cat([tensor[ROW:], tensor[:ROW]]))


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
