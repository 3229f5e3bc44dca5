"""How reduce ops and dtypes are put in NCCL's terms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed import ReduceOp

import distcore as dist
from distcore.nccl.elements import moved, reducing_for, refuse_float8

premul_sum = dist._make_nccl_premul_sum


@pytest.mark.parametrize(
    ("op", "dtype", "text"),
    [
        (ReduceOp.SUM, torch.float32, "SUM of float32, as float32"),
        (ReduceOp.AVG, torch.bfloat16, "AVG of bfloat16, as bfloat16"),
        (ReduceOp.AVG, torch.int64, "AVG of int64, as int64"),
        (ReduceOp.MAX, torch.uint32, "MAX of uint32, as uint32"),
        (ReduceOp.PRODUCT, torch.float8_e5m2, "PROD of float8_e5m2, as float8_e5m2"),
        (ReduceOp.SUM, torch.bool, "MAX of bool, as uint8"),
        (ReduceOp.MAX, torch.bool, "MAX of bool, as uint8"),
        (ReduceOp.MIN, torch.bool, "MIN of bool, as uint8"),
        (ReduceOp.BXOR, torch.bool, "SUM of bool, as uint8"),
        (ReduceOp.SUM, torch.complex64, "SUM of complex64, as float32"),
        (ReduceOp.AVG, torch.complex128, "AVG of complex128, as float64"),
        (ReduceOp.SUM, torch.int16, "SUM of int16, computed as int32"),
        (ReduceOp.AVG, torch.uint16, "SUM of uint16, computed as int32"),
        (ReduceOp.BAND, torch.int32, "BAND of int32, combined by the ranks"),
        (ReduceOp.BXOR, torch.uint64, "BXOR of uint64, combined by the ranks"),
    ],
)
def test_in_nccls_terms(op: Any, dtype: torch.dtype, text: str) -> None:
    assert repr(reducing_for(op, dtype, "nccl")) == f"<Reducing {text}>"


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (ReduceOp.PRODUCT, torch.complex64),
        (ReduceOp.MIN, torch.complex128),
        (ReduceOp.AVG, torch.bool),
        (ReduceOp.BAND, torch.float32),
        (ReduceOp.BOR, torch.float8_e4m3fn),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(op: Any, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError) as caught:
        reducing_for(op, dtype, "distcore_nccl")
    for part in (str(dtype), "distcore_nccl", op.name):
        assert part in str(caught.value)


def test_factors() -> None:
    own = reducing_for(premul_sum(0.5), torch.float16, "nccl")
    assert (own.op, own.factor, own.times) == ("PREMUL_SUM", 0.5, None)
    complex_factor = reducing_for(premul_sum(torch.tensor(2j)), torch.complex64, "nccl")
    assert (complex_factor.op, complex_factor.factor, complex_factor.times) == ("SUM", None, 2j)
    again = reducing_for(premul_sum(0.25), torch.float16, "nccl")
    assert again.factor == 0.25  # each has its own: not taken from those made before
    whole = reducing_for(premul_sum(torch.tensor(3)), torch.int64, "nccl")
    assert whole.factor == 3
    assert isinstance(whole.factor, int)


def test_float8_needs_a_gpu_that_has_it() -> None:
    how = reducing_for(ReduceOp.SUM, torch.float8_e4m3fn, "distcore_nccl")
    with pytest.raises(TypeError, match=r"distcore_nccl cannot reduce \S+float8_e4m3fn with"):
        refuse_float8(how, (8, 0), "distcore_nccl")
    refuse_float8(how, (9, 0), "distcore_nccl")
    refuse_float8(reducing_for(ReduceOp.SUM, torch.float16, "x"), (7, 0), "x")


def test_parity_of_many_bools() -> None:
    """The lowest bit of a sum that wraps around is still its parity."""
    how = reducing_for(ReduceOp.BXOR, torch.bool, "nccl")
    flat = torch.tensor([True, False])
    total = how.view(flat)
    total[0] = 1 + 2 * 127 & 255  # 511 true ones
    how.finish(total, flat, 511)
    assert flat.tolist() == [True, False]


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.complex32, torch.complex128, torch.uint16, torch.float8_e5m2]
)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_moved_elements_are_their_bytes(dtype: torch.dtype) -> None:
    flat = torch.zeros(3, dtype=dtype)
    assert moved(flat).numel() == 3 * dtype.itemsize
    assert moved(flat).data_ptr() == flat.data_ptr()
