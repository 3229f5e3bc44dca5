"""The tables of ops and of dtypes agree with torch, and with what distcore's groups have."""

from __future__ import annotations

import pytest
import torch

from distcore.groups.process_group import CoreGroup
from distdebug.rank.torch_private.modules import c10d
from distdebug.record.ops import OPS, op_type
from distdebug.record.signature import DTYPES

NEWER = {"gather_into_tensor"}
"""Of torch's releases after the oldest that is tried."""
WITHOUT_OP_TYPE = {"monitored_barrier", *NEWER}


@pytest.mark.parametrize("op", OPS)
def test_an_op_has_methods_and_options(op: str) -> None:
    row = OPS[op]
    assert row.methods
    assert all(hasattr(CoreGroup, method) for method in row.methods)
    assert not row.options or hasattr(c10d, row.options)
    assert row.group_at >= 0


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_has_the_size_and_the_name_of_torch(name: str) -> None:
    row, dtype = DTYPES[name], getattr(torch, name)
    assert row.item_bytes == dtype.itemsize
    assert torch.zeros(1, dtype=dtype).type() == f"torch.{row.scalar}Tensor"


def test_op_types_are_told_apart() -> None:
    types = [op_type(op) for op in OPS if op not in WITHOUT_OP_TYPE]
    assert len(set(types)) == len(types)
