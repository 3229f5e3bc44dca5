"""A rank that a simulation has made reads from its flight record as it was written."""

from __future__ import annotations

import socket
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from distdebug.diagnosis.judging import judge
from distdebug.diagnosis.limits import Limits
from distdebug.plan.judgement import Outcome, judge_programs, simulate
from distdebug.record import layout
from distdebug.record.reading.reader import FlightReader
from distdebug.record.reading.records import Records
from distdebug.record.snapshot import Rank
from distdebug.record.writing.whole_records import write_whole
from tests.support.programs import Programs
from tests.unit.diagnosis.builder import all_reduce, all_to_all, broadcast, recv, send

START_NS = 1_773_152_102_000_000_000
AS_READ = {"branches", "history", "layer_serial", "process", "replicas"}
"""Fields that are something else, and no less, when they are read."""


def written(outcome: Outcome, folder: Path, **more: Any) -> dict[int, Rank]:
    found = {}
    for number, rank in outcome.now.ranks.items():
        path = folder / f"{number}.flight"
        write_whole(path, rank, {"argv": ["train.py"]}, **more)
        reader = FlightReader(path)
        found[number] = reader.view(rank.process)
    return found


def mixed() -> Programs:
    made = Programs(3)
    made.new_group("1", [0, 2])
    made.each(all_reduce(8))
    made.each(all_reduce(4, 2), line=90)
    made.each(all_reduce(8), "1")
    made[0].makes(send(1, 8, tag=3), is_async=True)
    made[1].makes(recv(0, 8, tag=3))
    made[0].makes(send(2, 8, tag=5))
    made[2].makes(recv(-1, 8, tag=5))
    made[0].makes(all_to_all([1, 2, 3], [1, 4, 7]))
    made[1].makes(all_to_all([4, 5, 6], [2, 5, 8]))
    made[2].makes(all_to_all([7, 8, 9], [3, 6, 9]))
    made[2].notes_down("unwaited_work", "dropped", op="send", count=1)
    made.end([2])
    made[0].makes(broadcast(8))
    made[1].makes(broadcast(8))
    return made


def test_a_rank_reads_as_it_was_written(tmp_path: Path) -> None:
    outcome = simulate(mixed().programs(), start_ns=START_NS)
    for number, read in written(outcome, tmp_path).items():
        rank = outcome.now.ranks[number]
        for field in fields(Rank):
            if field.name not in AS_READ:
                assert getattr(read, field.name) == getattr(rank, field.name), field.name
        assert rank.history is not None
        assert read.history is not None
        for call in range(rank.calls):
            mine, theirs = rank.history.call(call), read.history.call(call)
            assert mine is not None
            assert theirs == mine
        assert sum(channel.taken for channel in rank.channels) == (number == 2)
        for channel in rank.channels:
            assert read.history.message(channel, 0) == rank.history.message(channel, 0)


def test_whoever_reads_the_records_finds_the_same(tmp_path: Path) -> None:
    made = mixed()
    here = socket.gethostname()
    programs = {rank: replace(one, host=here) for rank, one in made.programs().items()}
    found = judge_programs(programs, start_ns=START_NS)
    written(found.outcome, tmp_path)
    records = Records(tmp_path)
    records.look()
    (read,) = records.snapshots(lambda pid, _: found.outcome.now.ranks[pid - 1000].process)
    ranks = found.outcome.now.ranks
    read = replace(read, taken_ns=found.outcome.now.taken_ns)
    before = replace(read, ranks={number: replace(rank) for number, rank in read.ranks.items()})
    judged = judge([read], [before], limits_of_a_plan())
    assert [(one.kind, one.culprits, one.message) for one in judged.findings] == [
        (one.kind, one.culprits, one.message) for one in found.findings
    ]
    assert {number: rank.calls for number, rank in read.ranks.items()} == {
        number: rank.calls for number, rank in ranks.items()
    }


def limits_of_a_plan() -> Limits:
    return Limits(hang_timeout_s=1e8, notice_after_s=1e8)


def test_of_many_calls_the_last_are_on_record(tmp_path: Path) -> None:
    made = Programs(1)
    for number in range(layout.RING + 300):
        made.each(all_reduce(number % 7 + 1))
    made.end()
    outcome = simulate(made.programs(), start_ns=START_NS)
    (read,) = written(outcome, tmp_path).values()
    assert read.calls == layout.RING + 300
    assert read.history is not None
    assert read.history.call(299) is None
    assert len(read.history.recent(layout.RING)) == layout.RING
    last = read.history.at(("0", 0), layout.RING + 299)
    assert last is not None
    assert str(last.signature) == f"all_reduce(sum, float32[{(layout.RING + 299) % 7 + 1}])"
    assert (tmp_path / "0.flight").stat().st_blocks * 512 < 2 << 20  # nothing but what there is
