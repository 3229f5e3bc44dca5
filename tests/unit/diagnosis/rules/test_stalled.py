"""Everybody waits, and nothing moves; and the twins, in which somebody may yet act."""

from __future__ import annotations

import pytest

from distdebug.diagnosis.limits import Limits
from distdebug.diagnosis.shared_findings import heard_at
from distdebug.record.layout import Activity

from ..builder import Run, all_reduce, broadcast

ADDRESS = "tcp://10.0.0.1:29500"
CLIENTS = {"address": ADDRESS, "all_clients": True, "served_at": "10.0.0.1:41000"}


def joining(size: int = 3, waiting: int = 3) -> Run:
    """That many ranks wait in their initialisation."""
    run = Run(size, joined=False, limits=Limits(hang_timeout_s=3))
    for rank in range(waiting):
        run.starts(rank).waits_in(Activity.INIT, **CLIENTS)
    return run


def test_nobody_serves_the_rendezvous() -> None:
    run = joining()
    run.passes(3.1)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.exit_code) == ("stalled", (0, 1, 2), 93)
    assert (found.proven, found.cause) == (False, "rendezvous")
    assert f"ranks 0,1,2 wait in init_process_group for {ADDRESS}" in found.message
    assert "10.0.0.1:41000" in found.details[0]
    assert heard_at(found, "a:1", "").details[0] == "nobody listens at a:1"


def test_not_before_the_hang_timeout() -> None:
    run = joining()
    run.passes(1.5)
    assert run.errors() == []


def test_a_rank_that_has_not_come_is_missing() -> None:
    run = joining(waiting=2)
    run.passes(3.1)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("join_timeout", (2,))


def test_a_rank_that_computes_is_not_stalled() -> None:
    run = joining()
    run[1].waits.clear()
    run[1].free_threads = 1
    run.passes(3.1)
    assert all(found.kind != "stalled" for found in run.errors())


@pytest.mark.parametrize("rest", ["waits", "gives up"])
def test_own_time_limits_ran_out(rest: str) -> None:
    """At no moment did they wait for each other."""
    run = joining(2, waiting=2)
    run.passes(1)
    message = "DistNetworkError: The client socket has timed out after 1000ms"
    run[0].raises(message, exits=False, communication=True)
    if rest == "gives up":
        run[1].raises(message, exits=False, communication=True)
    run.passes(4)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("stalled", (0, 1))
    assert "gave up in init_process_group" in found.message


def test_waits_of_several_kinds() -> None:
    run = Run(2, limits=Limits(hang_timeout_s=3))
    run.each(all_reduce(8))
    run[0].waits_in(Activity.DESTROY)
    run[1].waits_in(Activity.STORE, key="done")
    run.passes(3.1)
    found = run.errors()
    assert [one.kind for one in found] == ["stalled"]
    assert "rank 0 waits in destroy_process_group" in found[0].message
    assert "rank 1 waits for the store key 'done'" in found[0].message


def test_a_large_call_takes_its_time() -> None:
    run = Run(2, limits=Limits(hang_timeout_s=3))
    for rank in range(2):
        run[rank].calls(all_reduce(100_000_000), waits=True)
    run.passes(4)
    assert run.errors() == []


@pytest.mark.parametrize("how", ["a thread beside", "the GIL in its hands"])
def test_who_joins_stands_still_whatever_else_its_process_does(how: str) -> None:
    """A thread that logs does not bring the peers; and a FileStore reads with the GIL."""
    run = joining()
    run.passes(3.1)
    if how == "a thread beside":
        run[0].free_threads = 1
    else:
        run[0].heartbeat_ns = run.now_ns - 3 * 10**9
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("stalled", (0, 1, 2))


def test_a_thread_beside_another_wait_may_end_it() -> None:
    run = Run(2, limits=Limits(hang_timeout_s=3))
    run.each(all_reduce(8))
    for rank in range(2):
        run[rank].waits_in(Activity.STORE, key="done")
    run[0].free_threads = 1
    run.passes(3.1)
    assert all(one.kind != "stalled" for one in run.errors())


@pytest.mark.parametrize("compares", [True, False])
def test_at_debug_level_off_ranks_that_disagree_hang(compares: bool) -> None:
    """What they call is not compared there, but that nothing moves is seen."""
    run = Run(3, limits=Limits(compares=compares))
    run[0, 1].calls(all_reduce(8), waits=True)
    run[2].calls(broadcast(8), waits=True)
    assert [found.kind for found in run.errors()] == (["op_mismatch"] if compares else [])
    run.passes(61)
    (found,) = run.errors()
    assert found.kind == ("op_mismatch" if compares else "missing_rank")
    assert (found.proven, found.culprits) == ((True, (2,)) if compares else (False, (0, 1, 2)))
    assert ("not the same call on all of them" in found.message) is not compares
