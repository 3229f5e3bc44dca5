"""What is remembered from one look at a run to the next."""

from __future__ import annotations

import weakref
from dataclasses import replace

from distdebug.diagnosis.judging import Judge
from distdebug.diagnosis.limits import Limits
from distdebug.record.snapshot import Rank, Snapshot

from .builder import MS, Run, recv


class Ranks(dict[int, Rank]):
    """Of which it can be told whether somebody still has them."""


def in_a_cycle() -> Run:
    run = Run(2)
    run[0].calls(recv(1), waits=True)
    run[1].calls(recv(0), waits=True)
    return run


def corrected(snapshot: Snapshot, by_ns: int = 0, pid: int = 0) -> Snapshot:
    """The same where the clock of the node that has them comes to be known better, and where other
    processes are those ranks."""
    ranks = {
        number: replace(rank, started_ns=rank.started_ns + by_ns, pid=rank.pid + pid)
        for number, rank in snapshot.ranks.items()
    }
    return replace(snapshot, ranks=Ranks(ranks))


def kinds(judge: Judge, snapshot: Snapshot) -> list[str]:
    return [one.kind for one in judge.look([snapshot]).findings]


def test_a_world_whose_beginning_is_corrected_is_the_same_one() -> None:
    run, judge = in_a_cycle(), Judge(Limits())
    first = run.snapshot()
    assert kinds(judge, first) == []
    assert kinds(judge, corrected(run.snapshot(), by_ns=-MS)) == ["deadlock"], "none has moved"


def test_other_processes_are_another_world() -> None:
    run, judge = in_a_cycle(), Judge(Limits())
    assert kinds(judge, run.snapshot()) == []
    assert kinds(judge, corrected(run.snapshot(), by_ns=MS, pid=10)) == []


def test_no_more_is_kept_than_the_last_look() -> None:
    """The clocks of many nodes come to be known better one after the other: all their ranks as of
    each time were else kept until the end."""
    run, judge = in_a_cycle(), Judge(Limits())
    kept = []
    for index in range(3):
        snapshot = corrected(run.snapshot(), by_ns=index * MS)
        kept.append(weakref.ref(snapshot.ranks))
        judge.look([snapshot])
    del snapshot
    assert [one() is not None for one in kept] == [False, False, True]
