"""Where the elements of tensors and arrays lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from distdebug.rank.checks import reads
from distdebug.rank.checks.reads import MemoryLayout

BASE = torch.zeros(8, 8)
ROWS = (BASE[2].data_ptr(), BASE[4].data_ptr())


def of(given: torch.Tensor, as_array: bool) -> MemoryLayout:
    found = reads.of_array(given.numpy()) if as_array else reads.of_tensor(given)
    assert found is not None
    return found


@pytest.mark.parametrize("as_array", [False, True])
def test_elements_between_those_that_are_written(as_array: bool) -> None:
    for there in (BASE, BASE.t(), BASE[:, 0], BASE[2:4].t(), BASE[::3]):
        assert of(there, as_array).touches(ROWS)
    for elsewhere in (BASE[::4], BASE[4:], BASE[:2].t(), BASE[4:, 1:3]):
        assert not of(elsewhere, as_array).touches(ROWS)
    assert of(BASE[2:4], as_array).lies_in(ROWS)
    assert of(BASE[3, 1:2], as_array).lies_in(ROWS)
    assert not of(BASE[2:5], as_array).lies_in(ROWS)
    assert not of(BASE[1:4], as_array).lies_in(ROWS)


def test_backwards() -> None:
    array = BASE.numpy()
    assert reads.of_array(array[3:1:-1]).range == ROWS
    assert reads.of_array(array[::-1]).touches(ROWS)
    assert not reads.of_array(array[:3:-1]).touches(ROWS)


def test_nothing_lies_nowhere() -> None:
    nothing = reads.of_array(np.ones((0, 3)))
    assert not nothing.touches((0, 1 << 62))
    assert not nothing.lies_in((0, 1 << 62))
    assert reads.of_tensor(torch.ones(0)) is None
    assert reads.of_tensor(torch.ones(2, device="meta")) is None
    assert reads.of_storage(torch.ones(0).untyped_storage()) is None


def test_a_storage() -> None:
    whole = reads.of_storage(BASE.untyped_storage())
    assert whole is not None
    assert whole.range == (BASE.data_ptr(), BASE.data_ptr() + BASE.nbytes)


def test_what_is_an_array() -> None:
    assert reads.is_array(np.ones(2))
    assert not reads.is_array(np.float32(2))
    assert not reads.is_array(BASE)
