"""monitored_barrier passes on all ranks or fails on all, and all name the same ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch.distributed as dist

from distcore.errors import BarrierFailed
from distcore.groups import monitored_barrier as monitored
from distcore.groups.monitored_barrier import monitored_barrier
from tests.support.gate import Gate
from tests.support.meshes import together

RANKS = [10, 20, 30]
LONG_S = 30.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitored, "ANSWER_S", 1.5)


def barriers(body: Callable[[int, Callable[..., None]], None]) -> list[BaseException | None]:
    """Run `body(rank, barrier)` on three ranks; what each raised."""
    store = dist.HashStore()

    def run(rank: int) -> None:
        def barrier(number: int = 0, timeout_s: float = LONG_S, wait_all: bool = False) -> None:
            monitored_barrier(
                store, RANKS, rank, number, timeout_s, wait_all, lambda late: f" [{late}]"
            )

        body(rank, barrier)

    return together(3, run)


def test_all_come() -> None:
    def body(_rank: int, barrier: Callable[..., None]) -> None:
        for number in range(3):
            barrier(number)

    assert barriers(body) == [None] * 3


@pytest.mark.parametrize(
    ("missing", "wait_all", "named"),
    [
        ({1}, False, "Rank 20"),
        ({2}, True, "Ranks 30"),
        ({1, 2}, False, "Rank 20"),
        ({1, 2}, True, "Ranks 20, 30"),
        ({0}, False, "Rank 10"),
        ({0, 2}, True, "Ranks 10"),
    ],
)
def test_all_fail(missing: set[int], wait_all: bool, named: str) -> None:
    """Also those that come when the others have given up."""
    gave_up = threading.Barrier(4 - len(missing))
    late = threading.Event()

    def body(rank: int, barrier: Callable[..., None]) -> None:
        if rank in missing:
            assert late.wait(LONG_S)
            barrier(timeout_s=LONG_S, wait_all=wait_all)
        else:
            try:
                gate.come()
                barrier(timeout_s=1.0, wait_all=wait_all)
            finally:
                gave_up.wait(LONG_S)

    def release() -> None:
        gave_up.wait(LONG_S)
        late.set()

    threading.Thread(target=release).start()
    began = time.monotonic()
    with Gate(3 - len(missing)) as gate:
        found = barriers(body)
    assert time.monotonic() - began < 20
    for error in found:
        assert isinstance(error, BarrierFailed), error
        assert f"{named} failed to pass monitoredBarrier in 1000 ms [" in str(error)
        # While the first is missing, nobody can tell who else is.
        absent = {0} if 0 in missing else missing
        assert error.missing == tuple(10 * (rank + 1) for rank in sorted(absent))


def test_the_group_goes_on_after_a_failure() -> None:
    gave_up = threading.Event()

    def body(rank: int, barrier: Callable[..., None]) -> None:
        if rank == 2:  # it comes when the first has given up
            assert gave_up.wait(LONG_S)
        with pytest.raises(BarrierFailed):
            barrier(0, timeout_s=0.05 if rank == 0 else LONG_S)
        gave_up.set()
        barrier(1)

    assert barriers(body) == [None] * 3
