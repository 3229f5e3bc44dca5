"""Reduce ops on every dtype, and the bytes under tensors."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from distcore.base.buffers import bytes_of, copy_bytes, tensor_over
from distcore.base.reduction import Reduction, reduction_for

R = dist.ReduceOp
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
EVERY_DTYPE = (
    *SIGNED,
    torch.uint8,
    *UNSIGNED,
    torch.bool,
    *FLOATS,
    *COMPLEX,
    torch.complex32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
SUPPORTED = {
    **{dtype: set(OPS) for dtype in (*SIGNED, torch.uint8)},
    **{dtype: {"SUM", "PRODUCT", "BAND", "BOR", "BXOR"} for dtype in UNSIGNED},
    torch.bool: set(OPS) - {"AVG"},
    **{dtype: {"SUM", "AVG", "PRODUCT", "MIN", "MAX"} for dtype in FLOATS},
    **{dtype: {"SUM", "AVG"} for dtype in (*COMPLEX, torch.complex32)},
}


def combined(reduction: Reduction, *tensors: torch.Tensor) -> torch.Tensor:
    first, *others = (tensor.clone() for tensor in tensors)
    for other in others:
        reduction.combine(first, other)
    reduction.finish(first, len(tensors))
    return first


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_an_op_works_on_a_dtype_or_says_why_not(op: str, dtype: torch.dtype) -> None:
    if op in SUPPORTED.get(dtype, ()):
        made = reduction_for(getattr(R, op), dtype)
        assert made is reduction_for(R(getattr(R, op)), dtype, "mpi"), "both spellings, one object"
        assert repr(made) == f"<Reduction {op.lower()} of {str(dtype).removeprefix('torch.')}>"
        return
    with pytest.raises(TypeError) as caught:
        reduction_for(getattr(R, op), dtype, "shm")
    assert f"backend shm cannot reduce {dtype} with {op}: " in str(caught.value)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("SUM", [0, 1, 1, 1]),
        ("PRODUCT", [0, 0, 0, 1]),
        ("MIN", [0, 0, 0, 1]),
        ("MAX", [0, 1, 1, 1]),
        ("BAND", [0, 0, 0, 1]),
        ("BOR", [0, 1, 1, 1]),
        ("BXOR", [0, 1, 1, 0]),
    ],
)
def test_bool_is_logical_as_with_gloo(op: str, expected: list[int]) -> None:
    a, b = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]]).bool()
    result = combined(reduction_for(getattr(R, op), torch.bool), a, b)
    assert result.tolist() == [bool(x) for x in expected]
    assert set(bytes(bytes_of(result))) <= {0, 1}


@pytest.mark.parametrize("dtype", [*SIGNED, torch.uint8, *FLOATS], ids=str)
@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("SUM", [7, 11, 100]),
        ("PRODUCT", [10, 24, 0]),
        ("MIN", [2, 3, 0]),
        ("MAX", [5, 8, 100]),
    ],
)
def test_arithmetic(op: str, expected: list[int], dtype: torch.dtype) -> None:
    a, b = torch.tensor([2, 3, 100], dtype=dtype), torch.tensor([5, 8, 0], dtype=dtype)
    result = combined(reduction_for(getattr(R, op), dtype), a, b)
    assert torch.equal(result, torch.tensor(expected, dtype=dtype))


@pytest.mark.parametrize("dtype", [*SIGNED, torch.uint8, *UNSIGNED], ids=str)
def test_bits_and_wrapping_around(dtype: torch.dtype) -> None:
    top = torch.iinfo(dtype).max
    a, b = torch.tensor([top, 12], dtype=dtype), torch.tensor([1, 10], dtype=dtype)
    for op, expected in (("BAND", [1, 8]), ("BOR", [top, 14]), ("BXOR", [top - 1, 6])):
        assert combined(reduction_for(getattr(R, op), dtype), a, b).tolist() == expected
    wrapped = combined(reduction_for(R.SUM, dtype), a, b).tolist()
    assert wrapped == [torch.iinfo(dtype).min, 22]


def test_average_divides_integers_towards_zero() -> None:
    parts = torch.tensor([[-7, 7, -1], [-2, 2, 0]])
    assert combined(reduction_for(R.AVG, torch.int64), *parts).tolist() == [-4, 4, 0]


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
def test_average_of_inexact_numbers(dtype: torch.dtype) -> None:
    parts = torch.tensor([[1, -3], [2, 0], [1, 1], [1, 1]]).to(dtype)
    expected = torch.tensor([1.25, -0.25]).to(dtype)
    assert torch.equal(combined(reduction_for(R.AVG, dtype), *parts), expected)


def test_complex_sums_by_parts_and_zero_dim() -> None:
    for dtype in COMPLEX:
        a, b = torch.tensor(1 + 2j, dtype=dtype), torch.tensor(3 - 5j, dtype=dtype)
        assert combined(reduction_for(R.SUM, dtype), a, b).item() == 4 - 3j
        assert combined(reduction_for(R.AVG, dtype), a, b).item() == 2 - 1.5j


@pytest.mark.parametrize("op", ["MIN", "MAX"])
def test_not_a_number_is_passed_on(op: str) -> None:
    nan = float("nan")
    a, b = torch.tensor([nan, 1.0]), torch.tensor([1.0, nan])
    assert combined(reduction_for(getattr(R, op), torch.float32), a, b).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool], ids=str)
def test_large_tensors_are_computed_in_pieces(dtype: torch.dtype) -> None:
    count = 32768 * 2 + 17
    a, b = torch.randint(0, 2, (2, count)).to(dtype)
    for op in ("SUM", "MAX"):
        reference = {"SUM": torch.add, "MAX": torch.maximum}[op](a, b)
        assert torch.equal(combined(reduction_for(getattr(R, op), dtype), a, b), reference)
    if dtype.is_floating_point:
        assert torch.equal(combined(reduction_for(R.AVG, dtype), a, b), (a + b) / 2)


def test_the_operands_keep_their_order() -> None:
    """Torch's minimum gives the second of two equal zeros: whoever swaps them gets other bits."""
    minimum = reduction_for(R.MIN, torch.float32)
    minus, plus = torch.tensor([-0.0] * 8), torch.tensor([0.0] * 8)
    outs = [torch.empty(8) for _ in range(2)]
    minimum.merge(bytes_of(minus), bytes_of(plus), bytes_of(outs[0]))
    right = plus.clone()
    view = bytes_of(right)
    minimum.merge(bytes_of(minus), view, view)
    assert bytes(bytes_of(outs[0])) == bytes(view)
    left = minus.clone()
    minimum.combine(left, plus)
    assert bytes(bytes_of(outs[0])) == bytes(bytes_of(left))


@pytest.mark.parametrize("factor", [2.0, torch.tensor([2.0]), torch.tensor(2, dtype=torch.int32)])
@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *SIGNED, torch.uint8], ids=str)
def test_premultiplied_sum(dtype: torch.dtype, factor: float | torch.Tensor) -> None:
    reduction = reduction_for(dist._make_nccl_premul_sum(factor), dtype)
    given = torch.tensor([3, 4]).to(dtype)
    assert torch.equal(reduction.prepare(given), torch.tensor([6, 8]).to(dtype))
    assert torch.equal(given, torch.tensor([3, 4]).to(dtype)), "it must not change"
    assert reduction.prepare(given, given) is given
    assert torch.equal(given, torch.tensor([6, 8]).to(dtype))
    reduction.combine(given, torch.tensor([1, 1]).to(dtype))
    reduction.finish(given, 2)
    assert torch.equal(given, torch.tensor([7, 9]).to(dtype))


def test_each_premultiplied_sum_has_its_own_factor() -> None:
    made = [reduction_for(dist._make_nccl_premul_sum(x), torch.float32) for x in (2.0, 3.0)]
    assert [reduction.factor for reduction in made] == [2.0, 3.0]
    assert repr(made[1]) == "<Reduction premul_sum by 3.0 of float32>"


@pytest.mark.parametrize(
    ("op", "dtype", "words"),
    [
        (lambda: dist._make_nccl_premul_sum(2.5), torch.int32, "2.5 is not a whole number"),
        (lambda: dist._make_nccl_premul_sum(float("inf")), torch.int8, "inf is not a whole"),
        (lambda: dist._make_nccl_premul_sum(torch.tensor(1j)), torch.float32, "is complex"),
        (lambda: dist._make_nccl_premul_sum(2.0), torch.bool, "a bool has no PREMUL_SUM"),
        (lambda: R.PREMUL_SUM, torch.float32, "needs a factor"),
        (lambda: "sum", torch.float32, "'sum' is no reduce op"),
        (lambda: None, torch.float32, "None is no reduce op"),
    ],
)
def test_what_is_no_op_is_refused(op, dtype: torch.dtype, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        reduction_for(op(), dtype)
    assert words in str(caught.value)
    assert "backend tcp" in str(caught.value)


@pytest.mark.parametrize("dtype", [x for x in EVERY_DTYPE if x != torch.complex32], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5)], ids=str)
def test_bytes_of_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape, dtype=torch.uint8).to(dtype)
    view = bytes_of(tensor)
    assert (view.format, view.readonly, len(view)) == ("B", False, tensor.nbytes)
    back = tensor_over(view, dtype)
    assert (back.dtype, back.shape) == (dtype, (tensor.numel(),))
    if tensor.numel():
        assert back.data_ptr() == tensor.data_ptr()
        view[:] = b"\x01" * len(view)
        assert bytes(bytes_of(tensor)) == b"\x01" * tensor.nbytes
        assert bytes(bytes_of(back)) == b"\x01" * tensor.nbytes


def test_bytes_of_a_slice_begin_there() -> None:
    whole = torch.arange(10, dtype=torch.int16)
    assert bytes(bytes_of(whole[3:5])) == b"\x03\x00\x04\x00"


def test_a_read_only_view_is_copied_without_a_warning() -> None:
    tensor = tensor_over(memoryview(b"\x01\x00\x02\x00"), torch.int16)
    tensor.add_(1)
    assert tensor.tolist() == [2, 3]


def test_a_part_of_an_element_is_refused() -> None:
    with pytest.raises(ValueError):
        tensor_over(memoryview(bytearray(3)), torch.int16)


def test_copy_in_pieces() -> None:
    data = memoryview(bytearray(range(256)) * 12289)  # three pieces, the last one short
    into = memoryview(bytearray(len(data)))
    copy_bytes(into, data)
    assert into == data
    copy_bytes(into, into)
    assert into == data
