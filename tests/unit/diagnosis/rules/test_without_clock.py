"""Snapshots in which nothing is now: who never issued a call, whose device never completed one, and
where following who waits for whom ends. Rules that ask for how long abstain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from distdebug.diagnosis.diagnose import diagnose
from distdebug.diagnosis.findings import Finding
from distdebug.record.snapshot import Knows, Snapshot
from tests.unit.diagnosis.builder import Run, all_reduce, broadcast, recv, send

KNOWS = Knows(clock=False, root=False)
Said = list[tuple[str, set[int], str | None]]


def judged(run: Run, completed: Mapping[int, int], knows: Knows = KNOWS) -> Sequence[Finding]:
    """The findings, where each rank has completed so many collectives of the world."""
    return diagnose(without_clock(run, completed, knows)).findings


def without_clock(run: Run, completed: Mapping[int, int], knows: Knows = KNOWS) -> Snapshot:
    snapshot = run.snapshot()
    ranks = {}
    for number, rank in snapshot.ranks.items():
        groups = {
            key: replace(group, completed=completed.get(number, group.issued))
            for key, group in rank.groups.items()
        }
        ranks[number] = replace(rank, groups=groups)
    return replace(snapshot, ranks=ranks, knows=knows)


def said(found: Sequence[Finding]) -> Said:
    return [(one.kind, set(one.culprits), one.side) for one in found]


def test_who_never_issued_what_others_wait_in_is_named_without_any_time_limit() -> None:
    run = Run(4)
    run.each(all_reduce(8))
    run[0, 1, 3].calls(all_reduce(8), waits=True)
    found = judged(run, {0: 1, 1: 1, 3: 1})
    assert said(found) == [("missing_rank", {2}, "host")]
    assert not found[0].proven
    assert "rank 2 never issued what others wait in" in found[0].message
    assert diagnose(run.snapshot()).findings == ()  # by a clock nobody is late yet


def test_who_alone_has_not_completed_a_call_has_a_device_that_stands_still() -> None:
    run = Run(4)
    run[2].calls(all_reduce(8), waits=True)
    run[0, 1, 3].calls(all_reduce(8))
    run[0, 1, 3].calls(all_reduce(8), waits=True)
    completed = {0: 1, 1: 1, 2: 0, 3: 1}
    assert said(judged(run, completed)) == [("stalled", {2}, "device")]
    # Where completion is not on record nothing tells the device from the host.
    knows = replace(KNOWS, completion=False)
    assert said(judged(run, completed, knows)) == [("stalled", {2}, None)]


def test_a_root_that_is_over_with_its_broadcast_tells_nothing_of_a_rank_behind_another_call() -> (
    None
):
    run = Run(2)
    run[0].calls(broadcast(8))
    run[0].calls(all_reduce(8), waits=True)
    run[1].calls(recv(0, 4), waits=True)
    found = judged(run, {0: 1, 1: 0})
    assert all(one.side != "device" for one in found)


def test_a_call_that_all_are_in_and_nobody_completes() -> None:
    run = Run(3)
    run.each(all_reduce(8), waits=True)
    assert said(judged(run, {0: 0, 1: 0, 2: 0})) == [("stalled", {0, 1, 2}, "device")]


def test_two_that_send_before_they_receive_are_in_a_cycle() -> None:
    run = Run(2)
    run[0].calls(send(1), waits=True)
    run[1].calls(send(0), waits=True)
    assert said(judged(run, {})) == [("deadlock", {0, 1}, None)]


@pytest.mark.parametrize(("seen", "named"), [((0, 1), {2}), ((0,), set())])
def test_who_has_no_record_is_missing_and_named_where_nobody_else_can_be(
    seen: Sequence[int], named: set[int]
) -> None:
    run = Run(3)
    run[seen].calls(all_reduce(8), waits=True)
    snapshot = without_clock(run, dict.fromkeys(seen, 0))
    snapshot = replace(snapshot, ranks={rank: snapshot.ranks[rank] for rank in seen})
    (found,) = diagnose(snapshot).findings
    assert (set(found.culprits), found.side) == (named, None)
    assert set(found.missing) == {0, 1, 2} - set(seen)


def test_a_disagreement_that_a_rank_without_record_could_turn_is_suspected() -> None:
    run = Run(3)
    run[0].calls(all_reduce(8), waits=True)
    run[1].calls(all_reduce(16), waits=True)
    snapshot = without_clock(run, {0: 0, 1: 0})
    snapshot = replace(snapshot, ranks={rank: snapshot.ranks[rank] for rank in (0, 1)})
    (found,) = diagnose(snapshot).findings
    assert (found.kind, found.proven) == ("shape_mismatch", False)
    assert found.message.startswith("suspected: ")


def test_who_is_known_to_be_behind_after_all_gave_up() -> None:
    run = Run(3)
    run[0, 1].calls(all_reduce(8))
    assert said(judged(run, {})) == [("missing_rank", {2}, "host")]
