"""Ranks compare notes beside a group, whatever its backend."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch.distributed as dist

from distcore.errors import DeadlineExceeded, GroupFailed
from distcore.tcp.side_channel import SideChannel
from distcore.transports import survey
from tests.support.gate import Gate
from tests.support.meshes import together

T = TypeVar("T")
SIZES = [2, 3, 5]
SAME = 0x9E3779B97F4A7C15
LIMIT_S = 30.0


def on_channels(size: int, body: Callable[[SideChannel, int], T]) -> list[T | BaseException]:
    """Run `body(channel, rank)` on every rank of a group of threads."""
    store = dist.HashStore()
    through = threading.Barrier(size)

    def run(rank: int) -> T:
        channel = SideChannel(store, "0", [10 * one for one in range(size)], rank, LIMIT_S)
        try:
            return body(channel, rank)
        finally:
            through.wait(LIMIT_S)
            channel.close()

    return together(size, run)


@pytest.mark.parametrize("size", SIZES)
def test_all_hear_the_same(size: int) -> None:
    """Every rank in turn is the odd one; the channel goes on after a disagreement."""

    def body(channel: SideChannel, rank: int) -> list[bool]:
        answers = [channel.agree(SAME, 0, LIMIT_S)]
        for odd in range(size):
            answers.append(channel.agree(SAME ^ (rank == odd), 0, LIMIT_S))
            answers.append(channel.agree(SAME, 0, LIMIT_S))
        return answers

    assert on_channels(size, body) == [[True] + [False, True] * size] * size


@pytest.mark.parametrize("size", SIZES)
def test_shares_must_add_up(size: int) -> None:
    def body(channel: SideChannel, rank: int) -> tuple[bool, bool, bool]:
        around = (1 << 64) - (size - 1) if rank == 0 else 1
        return (
            channel.agree(SAME, around, LIMIT_S),
            channel.agree(SAME, around + (rank == size - 1), LIMIT_S),
            channel.agree(SAME ^ (rank == 0), around, LIMIT_S),
        )

    assert on_channels(size, body) == [(True, False, False)] * size


@pytest.mark.parametrize("size", SIZES)
def test_gathers_what_each_gives(size: int) -> None:
    given = [b"x" * (1000 * rank * rank) for rank in range(size)]
    given[-1] = b"y" * 300_000
    assert on_channels(size, lambda c, rank: c.gather(given[rank], LIMIT_S)) == [given] * size


def test_nobody_gives_anything() -> None:
    assert on_channels(2, lambda c, _rank: c.gather(b"", LIMIT_S)) == [[b"", b""]] * 2


def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(channel: SideChannel, rank: int) -> BaseException | None:
        if rank == 1:
            return None
        gate.come()
        with pytest.raises(GroupFailed) as caught:
            channel.agree(SAME, 0, 0.5)
        assert channel.failure is caught.value
        with pytest.raises(GroupFailed, match="cannot be used any more"):
            channel.agree(SAME, 0, LIMIT_S)
        return caught.value

    monkeypatch.setattr(survey, "LEAST_S", 1.5)  # an answer takes its time on a crowded machine
    with Gate(2) as gate:
        found = on_channels(3, body)
    assert found.pop(1) is None
    for error in found:
        assert isinstance(error, DeadlineExceeded), error
        assert error.culprit == 10, error


def test_abort_ends_the_wait_of_all() -> None:
    def body(channel: SideChannel, rank: int) -> str:
        if rank == 0:
            threading.Timer(0.1, channel.abort, ["enough"]).start()
        if rank == 2:
            return "elsewhere"
        with pytest.raises(GroupFailed) as caught:
            channel.agree(SAME, 0, LIMIT_S)
        return str(caught.value)

    found = on_channels(3, body)
    assert found[2] == "elsewhere"
    assert all("enough" in str(text) for text in found[:2]), found


def test_beside_a_group_of_the_same_name() -> None:
    """Two channels, one after the other in one store, do not meet."""
    store = dist.HashStore()

    def run(rank: int) -> bool:
        for _ in range(2):
            channel = SideChannel(store, "0", [0, 1], rank, LIMIT_S)
            agreed = channel.agree(SAME, 0, LIMIT_S)
            channel.close()
        return agreed

    assert together(2, run) == [True, True]
