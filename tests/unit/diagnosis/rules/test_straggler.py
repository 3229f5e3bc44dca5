"""One rank that keeps the others waiting, and runs that look like it and are balanced."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from distdebug.diagnosis.rules.straggler import stragglers
from distdebug.record.layout import CallState
from tests.unit.diagnosis.builder import Run, all_reduce, barrier, recv, send

STEPS = 40


def trained(work_s: Callable[[int, int], float], size: int = 4, steps: int = STEPS) -> Run:
    """Each step every rank computes for `work_s(rank, step)`, then meets the others."""
    run = Run(size)
    for step in range(steps):
        now_ns = run.now_ns
        arrivals = sorted((work_s(rank, step), rank) for rank in range(size))
        for work, rank in arrivals:
            run.now_ns = now_ns + int(work * 1e9)
            run[rank].calls(all_reduce(8), waits=True, line=17)
        for rank in range(size):
            run[rank].goes_on()
    return run


def test_a_slow_rank_is_named() -> None:
    (found,) = stragglers(trained(lambda rank, _: 0.05 if rank == 2 else 0.02).snapshot())
    assert (found.kind, found.severity, found.culprits) == ("straggler", "warning", (2,))
    assert found.victims == (0, 1, 3)
    assert found.ranks[2].location.line == 17
    assert found.data["last"] == found.data["collectives"] == STEPS - 10
    assert found.data["factor"] == pytest.approx(2.4, abs=0.2)
    assert found.data["share"] == 1.0
    assert found.data["late_ms"] == pytest.approx(30, abs=2)
    assert found.message.startswith(
        'rank 2 is the last to arrive at 30 of 30 collectives of group "default_pg", '
    )


def test_it_is_named_where_it_does_not_wait_at_all() -> None:
    """The others do nothing between their calls, so no factor can be told."""
    (found,) = stragglers(trained(lambda rank, _: 0.05 if rank == 0 else 0.0, size=2).snapshot())
    assert found.culprits == (0,)
    assert found.data["factor"] <= 100


jitter = random.Random(7)
BALANCED: dict[str, Callable[[int, int], float]] = {
    "all alike": lambda rank, step: 0.02,
    "noise": lambda rank, step: jitter.uniform(0.01, 0.04),
    "changes hands": lambda rank, step: (
        0.1 if (rank == 1 and step < 32) or (rank == 2 and step >= 32) else 0.02
    ),
    "in turns": lambda rank, step: 0.1 if step % 4 == rank else 0.02,
    "one slow step": lambda rank, step: 5.0 if (rank, step) == (1, 20) else 0.02,
    "stalls of a busy machine": lambda rank, step: (
        0.4 if rank == 1 and step in (13, 21, 33) else 0.02
    ),
    "last by little, and a stall": lambda rank, step: (
        0.5 if (rank, step) == (1, 20) else 0.0205 if rank == 1 else 0.02
    ),
    "a slow start": lambda rank, step: 3.0 if rank == 1 and step < 10 else 0.02,
    "always last, by little": lambda rank, step: 0.102 if rank == 1 else 0.1,
    "checkpoints now and then, else last by chance": lambda rank, step: (
        0.42 if rank == 0 and step % 6 == 0 else 0.0203 if (rank == 0) == (step % 4 > 0) else 0.02
    ),
    "late half of the time": lambda rank, step: 0.05 if rank == 1 and step % 2 else 0.02,
}


@pytest.mark.parametrize("name", BALANCED)
def test_quiet_when_balanced(name: str) -> None:
    assert stragglers(trained(BALANCED[name]).snapshot()) == []


def test_ten_slow_steps_are_enough() -> None:
    """At ten times as long, where no noise looks like that."""
    slow = trained(lambda rank, _: 0.2 if rank == 1 else 0.02, size=2, steps=10)
    (found,) = stragglers(slow.snapshot())
    assert found.culprits == (1,)
    assert found.data["collectives"] == found.data["last"] == 8
    assert found.data["factor"] == pytest.approx(10, abs=1)


def with_a_second_call(work_s: Callable[[int, int], float], steps: int) -> Run:
    """As `trained`, and each step ends with one more collective, to which all come at once."""
    run = Run(3)
    for step in range(steps):
        now_ns = run.now_ns
        for work, rank in sorted((work_s(rank, step), rank) for rank in range(3)):
            run.now_ns = now_ns + int(work * 1e9)
            run[rank].calls(all_reduce(8), waits=True, line=17)
        for rank in range(3):
            run[rank].goes_on()
        for rank in sorted(range(3), key=lambda _: jitter.random()):
            run.now_ns += 20_000
            run[rank].calls(all_reduce(1), waits=True, line=18)
        for rank in range(3):
            run[rank].goes_on()
    return run


def test_calls_that_follow_at_once_hide_nobody() -> None:
    slow = with_a_second_call(lambda rank, _: 0.3 if rank == 1 else 0.03, steps=11)
    (found,) = stragglers(slow.snapshot())
    assert found.culprits == (1,)
    assert found.ranks[1].location.line == 17


def test_calls_that_follow_at_once_make_nobody_a_straggler() -> None:
    alike = with_a_second_call(lambda rank, _: 0.03 + rank * 1e-5, steps=30)
    assert stragglers(alike.snapshot()) == []


def test_of_a_short_run_more_is_asked() -> None:
    for work_s in (
        lambda rank, _: 0.2 if rank == 1 else 0.1,
        lambda rank, step: 0.2 if rank == 1 and step not in (4, 7) else 0.02,
    ):
        assert stragglers(trained(work_s, steps=12).snapshot()) == []


def test_quiet_after_few_collectives() -> None:
    slow = trained(lambda rank, _: 1.0 if rank == 1 else 0.0, steps=8)
    assert stragglers(slow.snapshot()) == []


def test_quiet_where_it_costs_little() -> None:
    """Sharded training on a shared machine: a step has many collectives, most of which follow each
    other closely. One rank is a little late at half of them, and computes as long as the other."""

    def work_s(rank: int, step: int) -> float:
        if step % 6 == 0:
            return 0.060 + jitter.uniform(0, 0.004)
        return 0.0045 if rank == 0 and step % 2 else 0.002 + jitter.uniform(0, 0.0005)

    assert stragglers(trained(work_s, size=2, steps=300).snapshot()) == []


def test_late_since_some_time() -> None:
    """Noise before does not hide it."""
    slow = trained(
        lambda rank, step: 0.1 if rank == 3 and step > 40 else jitter.uniform(0.02, 0.022),
        steps=100,
    )
    (found,) = stragglers(slow.snapshot())
    assert found.culprits == (3,)


def test_quiet_where_one_waits_for_a_message() -> None:
    """The time in a call is not the rank's own: a pipeline's last stage is not to blame."""
    run = Run(2)
    for _ in range(STEPS):
        run[0].calls(all_reduce(8), waits=True)
        run[1].calls(send(0), waits=True)
        run.passes(0.05)
        run[1].goes_on()
        run[1].calls(all_reduce(8), waits=True)
        run[0].goes_on()
        run[1].goes_on()
    assert stragglers(run.snapshot()) == []


def test_quiet_where_one_waits_for_an_older_handle() -> None:
    """The handles are waited for in another order than they were made in."""
    run = Run(2)
    for _ in range(STEPS):
        older = run[1].calls(recv(0, tag=1), waits=True)
        newer = run[1].calls(recv(0, tag=2), thread=2, waits=True)
        run[1].goes_on(thread=2)
        run[0].calls(send(1, tag=2))
        run[0].calls(all_reduce(8), waits=True)
        run.passes(0.05)
        assert older.number < newer.number
        run[1].goes_on()
        run[1].calls(all_reduce(8), waits=True)
        run[0].goes_on()
        run[1].goes_on()
    assert stragglers(run.snapshot()) == []


def test_a_rank_is_named_once() -> None:
    """For the group where it costs most."""
    run = Run(3)
    run.new_group("pair", [0, 1])
    for _ in range(STEPS):
        for group, members, late_s in (("0", (0, 2, 1), 0.02), ("pair", (0, 1), 0.06)):
            for rank in members:
                if rank == 1:
                    run.passes(late_s)
                run[rank].calls(barrier(), group=group, waits=True)
            for rank in members:
                run[rank].goes_on()
    (found,) = stragglers(run.snapshot())
    assert found.culprits == (1,)
    assert found.group is not None
    assert found.group.name == "pair"


def test_overwritten_calls_are_not_missed() -> None:
    run = trained(lambda rank, _: 0.05 if rank == 2 else 0.02)
    run[3].history.forgotten = 15
    (found,) = stragglers(run.snapshot())
    assert found.data["collectives"] == STEPS - 16  # the first one that is left has none before it


def trained_by_ddp(work_s: Callable[[int, int, int], float], buckets: int = 1) -> Run:
    """Each step every rank computes `work_s(rank, step, bucket)` before each bucket, and waits for
    all of them in C++ before the next step: a heartbeat sees that they have ended, 80 ms later."""
    run, size = Run(3), 3
    clocks = [run.now_ns] * size
    for step in range(STEPS):
        issued = []
        for bucket in range(buckets):
            for rank in range(size):
                clocks[rank] += int(work_s(rank, step, bucket) * 1e9)
            for when, rank in sorted((clock, rank) for rank, clock in enumerate(clocks)):
                run.now_ns = when
                issued.append((rank, run[rank].calls(all_reduce(8), is_async=True, line=17)))
            last_ns = max(clocks)
        for rank, call in issued:
            row = run[rank].history.calls[call.number]
            run[rank].history.calls[call.number] = replace(
                row, state=CallState.COMPLETED, completed_ns=last_ns + 80_000_000
            )
        clocks = [last_ns + 1000] * size
    run.now_ns = max(clocks) + 10**9
    return run


@pytest.mark.parametrize("buckets", [1, 3])
def test_a_slow_rank_is_named_where_nobody_sees_its_calls_end(buckets: int) -> None:
    run = trained_by_ddp(
        lambda rank, _, bucket: 0.05 if (rank, bucket) == (1, 0) else 0.005, buckets
    )
    (found,) = stragglers(run.snapshot())
    assert found.culprits == (1,)
    assert found.data["factor"] > 2


def test_quiet_where_all_compute_alike_between_buckets() -> None:
    run = trained_by_ddp(lambda rank, step, bucket: 0.02 + jitter.uniform(0, 0.005), 3)
    assert stragglers(run.snapshot()) == []
    run = trained_by_ddp(lambda rank, *_: 0.021 if rank == 1 else 0.02, 2)
    assert stragglers(run.snapshot()) == []
