"""Ranks that are killed, stopped, that leave or give up: who is told what, and how soon."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ranks.distcore.conftest import Join
from tests.support.crew import Crew
from tests.support.torch_loaded import TorchLoaded

if TYPE_CHECKING:
    from distdebug.testing.rank_session import DistRank

TRANSPORTS = ("tcp", "auto")
BOUND_S = 20.0
"""For what should be known within a second, on a machine that is busy."""


@pytest.fixture(params=TRANSPORTS)
def crew(
    request: pytest.FixtureRequest, tmp_path: Path, torch_loaded: TorchLoaded
) -> Iterator[Crew]:
    with Crew(torch_loaded, tmp_path, 4, {"DISTCORE_TRANSPORT": request.param}) as made:
        yield made


def join(crew: Crew, name: str, ranks: range | list[int] | None = None, **options: object) -> None:
    crew.ask(ranks or range(crew.size), "init", path=str(crew.directory / name), **options)


def test_a_killed_rank(crew: Crew) -> None:
    """In the middle of a call; nobody's own wait alone would name it. A forked child that holds
    its connections changes nothing, and the others can go on without it in a new group."""
    join(crew, "store")
    [child] = crew.ask([2], "fork")
    try:
        crew.everyone("all_reduces", count=3)  # all are on their way
        crew.tell(range(4), "all_reduces", until_error=True)
        time.sleep(0.3)  # not for order: any moment will do
        crew.signal(2, signal.SIGKILL)
        began = time.monotonic()
        for rank in (0, 1, 3):
            found = crew.answer(rank, limit_s=30)
            assert time.monotonic() - began < BOUND_S
            assert found["kind"] == "PeerLost", found
            assert found["culprit"] == 2, found
            assert "rank 2 was lost in all_reduce(sum, float32[200000])" in found["text"]
    finally:
        os.kill(child["child"], signal.SIGKILL)
    for rank in (0, 1, 3):
        [found] = crew.ask([rank], "all_reduces")
        assert found["kind"] == "GroupFailed"
        assert found["culprit"] == 2
        assert "cannot be used any more" in found["text"]


@pytest.mark.parametrize("call", ["all_gather", "all_reduces"])
def test_a_stopped_rank(crew: Crew, call: str) -> None:
    """Nothing tells it from a slow one but the group's timeout. In the one call all wait for it
    themselves, in the other most wait for one that waits."""
    timeout_s = 6.0
    join(crew, "store", timeout_s=timeout_s)
    crew.everyone("all_reduces", count=3)
    crew.signal(1, signal.SIGSTOP)
    began = time.monotonic()
    crew.tell(range(4), call)
    for rank in (0, 2, 3):
        found = crew.answer(rank, limit_s=30)
        assert found["kind"] == "DeadlineExceeded", found
        assert found["culprit"] == 1, found
        assert re.search(r"rank 1(, which)? does not answer", found["text"]), found
    assert timeout_s - 1 < time.monotonic() - began < timeout_s + BOUND_S
    crew.signal(1, signal.SIGCONT)
    found = crew.answer(1)
    if found["kind"] == "":  # all that it needed was sent
        [found] = crew.ask([1], call)
    assert found["kind"] == "DeadlineExceeded", found
    assert found["culprit"] == 1
    # A new group, of the same processes.
    crew.everyone("destroy")
    join(crew, "another")
    assert all(found["kind"] == "" for found in crew.everyone("all_reduces", count=5))
    crew.everyone("destroy")


def test_a_rank_that_leaves_without_a_word(crew: Crew) -> None:
    """The twin: it ends as programs end, its groups open, and nobody who is through with it cares.
    Those who still need it are told."""
    join(crew, "store", groups=[[0, 1, 2]])
    crew.tell(range(4), "all_reduces", count=30)
    crew.tell([3], "exit")  # while the others may still be in the last call
    assert [crew.answer(rank)["kind"] for rank in range(4)] == [""] * 4
    found = crew.ask([0, 1, 2], "all_reduces", count=20, group=1)
    assert [one["kind"] for one in found] == [""] * 3
    began = time.monotonic()
    for one in crew.ask([0, 1, 2], "all_reduces", count=1):
        assert one["kind"] == "PeerLost"
        assert one["culprit"] == 3
    assert time.monotonic() - began < BOUND_S
    crew.ask([0, 1, 2], "destroy")


def test_calls_that_nobody_waits_for_end_before_the_process(crew: Crew) -> None:
    join(crew, "store")
    crew.ask([3], "begin_all_reduces", count=20)
    crew.tell([3], "exit")
    found = crew.ask([0, 1, 2], "all_reduces", count=20)
    assert [one["kind"] for one in found] == [""] * 3
    crew.ask([0, 1, 2], "destroy")


def test_a_process_that_ends_before_its_calls_can(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    """The others never make those calls: its end is not held up for long, and they are told."""
    with Crew(torch_loaded, tmp_path, 3) as crew:
        join(crew, "store")
        crew.ask([2], "begin_all_reduces", count=2)
        crew.tell([2], "exit")
        crew.wait_for_end(2)
        for one in crew.ask([0, 1], "all_reduces", count=1):
            assert one["kind"] == "Aborted", one
            assert "rank 2 ended its process while 2 calls were pending" in one["text"]
        crew.ask([0, 1], "destroy")


@pytest.mark.parametrize("elements", [5_000, 100_000])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ends", ["exit", "killed"])
def test_what_a_blocking_call_sent_outlives_its_process(
    tmp_path: Path, torch_loaded: TorchLoaded, ends: str, transport: str, elements: int
) -> None:
    """The call has returned, and the root is gone before the other rank comes to it; what the root
    did not send is missed."""
    with Crew(torch_loaded, tmp_path, 2, {"DISTCORE_TRANSPORT": transport}) as crew:
        join(crew, "store")
        crew.everyone("all_reduces")
        crew.ask([0], "broadcast", src=0, elements=elements)
        if ends == "exit":
            crew.tell([0], "exit")
        else:
            crew.signal(0, signal.SIGKILL)
        crew.wait_for_end(0)
        crew.ask([1], "broadcast", src=0, elements=elements)
        [missed] = crew.ask([1], "all_reduces")
        assert missed["kind"] == "PeerLost", missed
        assert missed["culprit"] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_asynchronous_call_outlives_a_program_in_good_order(
    tmp_path: Path, torch_loaded: TorchLoaded, transport: str
) -> None:
    """More than what lies between two ranks: the process stays until the other has it."""
    with Crew(torch_loaded, tmp_path, 2, {"DISTCORE_TRANSPORT": transport}) as crew:
        join(crew, "store")
        crew.everyone("all_reduces")
        crew.ask([0], "broadcast", src=0, elements=11_000_000, use_async=True)
        crew.tell([0], "exit")
        with pytest.raises(AssertionError, match="rank 0 did not end"):
            crew.wait_for_end(0, 3)
        crew.ask([1], "broadcast", src=0, elements=11_000_000)
        crew.wait_for_end(0)


def test_abort_from_a_thread(crew: Crew) -> None:
    join(crew, "store")
    crew.everyone("all_reduces")
    crew.tell([0, 1], "all_reduces")
    began = time.monotonic()
    [own] = crew.ask([2], "abort_while_waiting")
    crew.tell([3], "all_reduces")
    assert "rank 2 called abort()" in own["text"]
    assert own["kind"] == "Aborted"
    for rank in (0, 1, 3):
        found = crew.answer(rank)
        assert found["kind"] in ("Aborted", "GroupFailed"), found
        assert "rank 2 called abort()" in found["text"]
    assert time.monotonic() - began < BOUND_S
    crew.everyone("destroy")
    join(crew, "another")
    assert all(found["kind"] == "" for found in crew.everyone("all_reduces", count=5))


def test_waiting_costs_nothing(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    with Crew(torch_loaded, tmp_path, 3) as crew:
        join(crew, "store", timeout_s=40)
        crew.everyone("all_reduces")
        late_s, path = 3.0, str(tmp_path / "waits")
        crew.tell(range(3), "processor_time_of_a_barrier", late=2, late_s=late_s, path=path)
        for rank in (0, 1):
            found = crew.answer(rank)
            assert found["took_s"] > late_s
            assert found["used_s"] < 0.05 * late_s


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.distributed(nproc=4, backend="tcp")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_threads_with_a_group_each(
    dist_rank: DistRank, join_alone: Join, transport: str
) -> None:
    join_alone(20.0, DISTCORE_TRANSPORT=transport)
    from tests.ranks.scripts import distcore_worker as worker

    rank, size = dist_rank.rank, dist_rank.world_size
    worker.make_groups(rank, size, [[0, 1, 2, 3], [3, 2, 1, 0]])
    worker.command_two_threads(rank, size, rounds=60)


@pytest.mark.distributed(nproc=2, backend="tcp")
def test_a_large_tensor(dist_rank: DistRank, join_alone: Join) -> None:
    join_alone(20.0)
    from tests.ranks.scripts import distcore_worker as worker

    worker.command_large(dist_rank.rank, dist_rank.world_size, size_bytes=200_000_000)
