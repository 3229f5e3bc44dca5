"""Whose connection was lost, by the addresses that an error names."""

from __future__ import annotations

import pytest

from distdebug.rank.record.lost_connections import named_by
from distdebug.record.network import RANK_VARIABLE, address, rank_at


def test_the_addresses_are_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = RuntimeError(f"Connection closed by peer [{address(2)}]:4567. GLHF!")
    assert named_by(lost) is None
    monkeypatch.setenv(RANK_VARIABLE, "0")
    assert named_by(lost) == (2, 0)
    assert named_by(RuntimeError(f"from {address(0)} to {address(1)}: reset")) == (1, 0)
    for text in ("reset", "10.213.0.254:5", f"{address(1)} {address(2)}", "10.213.0.999"):
        assert named_by(RuntimeError(text)) is None
    assert named_by(ValueError(f"{address(1)}")) is None
    assert rank_at(address(1)) == 1


def test_a_rank_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RANK_VARIABLE, "²")
    assert named_by(RuntimeError(f"Connection closed by peer [{address(2)}]:4567")) is None
