"""Rows of integers that hold little travel in few bytes; data does not travel at all."""

from __future__ import annotations

import random

import pytest

from distcore.plan.exchange import packed, unpacked

SHAPE_IN_ZEROS = b"\x05\0\0\0" * 3 + bytes(1 << 22)
DATA = random.Random(0).randbytes(1 << 20)


@pytest.mark.parametrize("data", [SHAPE_IN_ZEROS, b"\1" * 300_000], ids=["shape", "mask"])
def test_it_comes_out_as_it_went_in(data: bytes) -> None:
    found = packed(data, 65536)
    assert found is not None
    assert len(found) < 65536
    assert unpacked(found, len(data)) == data
    assert unpacked(found, len(data) + 1) is None
    assert unpacked(found, len(data) - 1) is None


def test_data_is_too_much() -> None:
    assert packed(DATA, 65536) is None
    assert packed(bytes(1 << 16) + DATA, 65536) is None
    assert packed(bytes(1 << 30), 65536) is None


def test_what_is_not_packed_is_taken_as_it_is() -> None:
    assert unpacked(b"abcd", 4) == b"abcd"
    assert unpacked(b"abcd", 400) is None
    assert unpacked(None, 4) is None
