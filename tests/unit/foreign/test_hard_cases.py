"""Dumps of which the simple rules say something wrong; each with a twin in which nothing is wrong,
or in which the same look has another cause."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.foreign import dump_files, flight_recorder, judging
from distdebug.foreign.trace import traced

NOW_S = 1_780_000_000
TIMEOUT_S = 600
WORLD = "[0, 1, 2, 3]"
DONE = "completed"
Row = dict[str, Any]


def call(op: str, seq: int, state: str = "scheduled", *, size: int = 8, group: str = "0") -> Row:
    """A collective; `at` may be changed afterwards."""
    return {
        "pg_id": int(group),
        "process_group": (group, "default_pg" if group == "0" else "tensor"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": NOW_S * 10**9,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_completed_ns": NOW_S * 10**9 + 1000 if state == DONE else None,
        "retired": state == DONE,
        "timeout_ms": TIMEOUT_S * 1000,
        "is_p2p": False,
    }


def message(
    words: str, seq: int, state: str = "scheduled", *, size: int = 8, group: str = "0"
) -> Row:
    return {
        **call(words, 0, state, size=size, group=group),
        "p2p_seq_id": seq,
        "is_p2p": True,
    }


def batch(seq: int, state: str, *words: str) -> list[Row]:
    """Messages in one launch; the last entry alone is ever complete."""
    end = {**message("coalesced", seq, state), "input_sizes": [], "output_sizes": []}
    return [*(message(one, seq) for one in words), end]


def dump(rows: Sequence[Row], config: str | None = WORLD, first: int = 0) -> dict[str, Any]:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": config}} if config else {}
    entries = [{**row, "record_id": first + at, "op_id": at + 1} for at, row in enumerate(rows)]
    return {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": entries}


def judged(*ranks: Sequence[Row], age_s: float | None = None, first: int = 0) -> list[Finding]:
    dumps = {
        rank: flight_recorder.read(pickle.dumps(dump(rows, str(list(range(len(ranks)))), first)))
        for rank, rows in enumerate(ranks)
    }
    return judging.judge(traced(dumps), age_s)


def said(found: Sequence[Finding]) -> list[tuple[str, set[int], str | None]]:
    return [(one.kind, set(one.culprits), one.side) for one in found]


# -- messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["scheduled", DONE])
def test_a_send_and_its_receive_differ_in_size(state: str) -> None:
    before = [message("send 0->1", 1, DONE)], [message("recv 1<-0", 1, DONE)]
    found = judged(
        [*before[0], message("send 0->1", 2, state, size=16)],
        [*before[1], message("recv 1<-0", 2, state)],
    )
    assert said(found) == [("p2p_mismatch", {0, 1}, None)]
    assert found[0].proven
    assert "16 elements against 8" in found[0].message
    assert judged(*before) == []


def test_of_records_without_beginning_both_must_stand_in_the_message() -> None:
    ranks = ([message("send 0->1", 9, size=16)], [message("recv 1<-0", 9)])
    found = judged(*ranks, first=100)
    assert said(found) == [("p2p_mismatch", {0, 1}, None)]
    assert not found[0].proven
    # Here the receiver stands before it, and what it will receive then may be another message.
    behind = judged(
        [call("all_reduce", 7), *ranks[0]], [call("barrier", 3, group="1"), *ranks[1]], first=100
    )
    assert "p2p_mismatch" not in [one.kind for one in behind]


def test_a_batch_that_waits_for_another_of_its_messages_is_no_device_that_stands_still() -> None:
    ring = [f"send {rank}->{(rank + 1) % 4}" for rank in range(4)]
    back = [f"recv {rank}<-{(rank - 1) % 4}" for rank in range(4)]
    ranks = [[*batch(1, DONE, ring[rank], back[rank])] for rank in range(4)]
    # Rank 2 has not come to its second batch: 1 and 3 cannot end theirs, 0 can.
    for rank, state in ((0, DONE), (1, "scheduled"), (3, "scheduled")):
        ranks[rank] += batch(2, state, ring[rank], back[rank])
    ranks[0].append(call("all_reduce", 1))
    assert said(judged(*ranks)) == [("missing_rank", {2}, "host")]
    ranks[2] += batch(2, "scheduled", ring[2], back[2])
    assert said(judged(*ranks))[0][1] != {2}


def test_both_send_before_they_receive() -> None:
    found = judged(
        [message("send 0->1", 1), message("recv 0<-1", 2)],
        [message("send 1->0", 1), message("recv 1<-0", 2)],
    )
    assert said(found) == [("deadlock", {0, 1}, None)]


def test_whom_a_receive_from_any_source_is_for_is_not_guessed() -> None:
    found = judged([message("send 0->2", 1)], [], [message("recv 2<-?", 1, DONE)])
    assert all(not set(one.culprits) & {2} for one in found)


def test_a_host_that_stands_between_the_parts_of_a_batch_has_not_issued_it() -> None:
    def ranks(last: Sequence[Row]) -> list[list[Row]]:
        return [
            [*batch(1, DONE, "send 0->1"), *batch(2, "scheduled", "send 0->1")],
            [*batch(1, DONE, "recv 1<-0"), *last],
        ]

    found = judged(*ranks([message("recv 1<-0", 2)]))
    assert said(found) == [("unmatched_p2p", {1}, "host")]
    assert found[0].ranks[1].state == "has issued a part of"
    whole = judged(*ranks(batch(2, "scheduled", "recv 1<-0")))
    assert [one.kind for one in whole] == ["stalled"]


def test_a_ring_that_begins_amid_the_parts_of_a_coalesced_call_is_not_compared() -> None:
    parts = [call("_all_gather_base", 4), call("_all_gather_base", 4)]
    end = {**call("coalesced", 4, DONE), "input_sizes": [], "output_sizes": []}
    after = call("all_reduce", 5, DONE)
    launch = [*parts, end, after]
    before = call("all_reduce", 3, DONE)
    assert judged([before, *launch], launch[1:], launch[2:], launch, first=900) == []
    other = [call("_reduce_scatter_base", 4), *launch[1:]]
    found = judged([before, *launch], [before, *launch], [before, *other], first=900)
    assert said(found) == [("op_mismatch", {2}, None)]


def test_members_are_told_by_the_numbers_in_messages_where_no_dump_lists_them() -> None:
    rows = {
        5: [message("send 0->1", 1, DONE, group="7"), message("send 0->1", 2, group="7")],
        3: [message("recv 1<-0", 1, DONE, group="7")],
    }
    dumps = {
        rank: flight_recorder.read(pickle.dumps(dump(mine, None))) for rank, mine in rows.items()
    }
    found = judging.judge(traced(dumps))
    assert said(found) == [("unmatched_p2p", {3}, "host")]
    assert found[0].group is not None
    assert found[0].group.ranks == (5, 3)


# -- what nobody completes ------------------------------------------------------------------------


def test_a_call_that_all_have_issued_and_nobody_completes() -> None:
    ranks = [[call("all_reduce", 1, DONE), call("all_reduce", 2)] for _ in range(3)]
    found = judged(*ranks)
    assert said(found) == [("stalled", {0, 1, 2}, "device")]
    assert not found[0].proven
    assert "none has completed it" in found[0].message
    assert judged(*ranks, age_s=0.2) == []  # a job at work looks like this
    assert judged(*[rows[:1] for rows in ranks]) == []


@pytest.mark.parametrize(("age_s", "found"), [(60.0, [("stalled", {2}, "device")]), (None, [])])
def test_the_last_call_of_all_that_one_device_has_not_completed(
    age_s: float | None, found: object
) -> None:
    """Nobody waits behind it: of dumps that may be of one moment each it tells nothing."""
    ranks = [[call("all_reduce", 1, DONE if rank != 2 else "scheduled")] for rank in range(4)]
    assert said(judged(*ranks, age_s=age_s)) == found


@pytest.mark.parametrize(("completed", "named"), [(20, {0, 1}), (17, set())])
def test_ranks_whose_rings_have_lost_the_call_in_which_they_stand_are_not_accused(
    completed: int, named: set[int]
) -> None:
    """All that is on record pends: either the first of these calls does not end, or an older one
    that newer ones have overwritten, of which torch's count tells."""
    rows = [call("all_reduce", seq) for seq in range(21, 25)]
    counts = {"last_enqueued_collective": 24, "last_completed_collective": completed}
    dumps = {
        rank: flight_recorder.read(
            pickle.dumps({**dump(rows, "[0, 1]", first=50), "pg_status": {"0": counts}})
        )
        for rank in range(2)
    }
    (found,) = judging.judge(traced(dumps), None)
    assert (found.kind, set(found.culprits)) == ("stalled", named)
    assert ("overwritten" in found.message) == (not named)


def test_a_rank_that_stops_beside_a_mismatch_of_others_is_named_too() -> None:
    world = [call("all_reduce", 1, DONE)]
    differ = [[*world, call(op, 1, group="1")] for op in ("all_reduce", "broadcast")]
    apart = [[*world, call("barrier", 1, group="2")], world]

    def said_of(*ranks: Sequence[Row]) -> list[tuple[str, set[int], str | None]]:
        members = {"0": "[0, 1, 2, 3]", "1": "[0, 1]", "2": "[2, 3]"}
        groups = {
            name: {"name": name, "desc": "tensor" if name != "0" else "default_pg", "ranks": them}
            for name, them in members.items()
        }
        dumps = {
            rank: flight_recorder.read(pickle.dumps({**dump(rows), "pg_config": groups}))
            for rank, rows in enumerate(ranks)
        }
        return said(judging.judge(traced(dumps), None))

    mismatch = ("op_mismatch", {0, 1}, None)
    assert said_of(*differ, *apart) == [mismatch, ("missing_rank", {3}, "host")]
    # Who has raised at the mismatch, and is waited for in another group, is its consequence.
    raised = [*differ[1][:-1], call("broadcast", 1, DONE, group="1")]
    wait = [*world, call("all_reduce", 2)]
    assert said_of(differ[0], raised, wait, wait) == [mismatch]


def test_who_stands_behind_an_older_call_is_no_member_of_the_stalled_one() -> None:
    ahead = [call("all_reduce", 1, group="1"), call("barrier", 1)]
    found = judged(ahead, ahead, [call("barrier", 1)], [call("barrier", 1)])
    assert said(found)[0][0] == "stalled"
    assert set(found[0].culprits) <= {0, 1}


def test_a_job_with_steps_of_seconds_is_at_work() -> None:
    def ranks(pauses: int) -> list[list[Row]]:
        made = []
        for at in range(pauses + 1):
            row = call("all_reduce", at + 1, DONE)
            row["time_created_ns"] = (NOW_S + 6 * at) * 10**9
            row["time_discovered_completed_ns"] = row["time_created_ns"] + 1000
            made.append(row)
        last = {**call("all_reduce", pauses + 2), "time_created_ns": made[-1]["time_created_ns"]}
        return [[*made, last], made]

    assert judged(*ranks(pauses=4), age_s=5.0) == []
    assert said(judged(*ranks(pauses=1), age_s=5.0)) == [("missing_rank", {1}, "host")]
    assert said(judged(*ranks(pauses=4), age_s=100.0)) == [("missing_rank", {1}, "host")]


def test_a_dump_of_active_calls_alone_does_not_tell_how_long_steps_are() -> None:
    waiting = [call("all_reduce", 9)]
    assert judged(waiting, [], age_s=15.0, first=700) == []
    assert said(judged(waiting, [], age_s=30.0, first=700)) == [("missing_rank", {1}, "host")]


# -- what torch writes when it gives up -----------------------------------------------------------


def test_what_torch_has_aborted_reads_complete_and_is_not() -> None:
    def ended(after_s: float) -> Row:
        row = call("all_reduce", 2, DONE)
        found_ns = row["time_created_ns"] + int(after_s * 1e9)
        return {**row, "time_discovered_completed_ns": found_ns, "retired": False}

    def later(after_s: float) -> Row:
        return {**ended(after_s), "collective_seq_id": 3, "time_created_ns": NOW_S * 10**9 + 10**10}

    first = call("all_reduce", 1, DONE)
    given_up = [first, ended(TIMEOUT_S + 2), later(TIMEOUT_S + 2)]
    found = judged(given_up, given_up, [first])
    assert said(found) == [("missing_rank", {2}, "host")]
    assert found[0].seq == 1
    in_time = [first, ended(5.0)]
    assert judged(in_time, in_time, in_time) == []


def test_a_recorder_that_was_reset_does_not_go_back_to_the_beginning() -> None:
    rows = [message("send 0->1", 5, DONE), message("send 0->1", 6, DONE)]
    assert not flight_recorder.read(pickle.dumps(dump(rows))).whole
    rows = [message("send 0->1", 1, DONE), message("send 0->1", 2, DONE)]
    assert flight_recorder.read(pickle.dumps(dump(rows))).whole


# -- files ---------------------------------------------------------------------------------------


def write(folder: Path, rank: int, rows: Sequence[Row], written_s: float, name: str = "") -> None:
    file = folder / (name or f"comm_lib_trace_rank_{rank}")
    file.write_bytes(pickle.dumps(dump(rows)))
    os.utime(file, (written_s, written_s))


@pytest.mark.parametrize("late_s", [-0.05, 0.2])
def test_a_file_system_with_a_clock_of_its_own(late_s: float, tmp_path: Path) -> None:
    for rank in range(4):
        write(tmp_path, rank, [call("all_reduce", 1)][: rank < 3], NOW_S + late_s)
    (job,) = dump_files.load(tmp_path).jobs
    assert job.age_s == pytest.approx(max(late_s, 0.0), abs=0.01)
    assert judging.judge(traced(job.dumps), job.age_s) == []


@pytest.mark.parametrize(
    ("hung_s", "said_of"), [(0.3, []), (60.0, [("missing_rank", {3}, "host")])]
)
def test_hosts_whose_clocks_are_apart(hung_s: float, said_of: object, tmp_path: Path) -> None:
    for rank, ahead_s in enumerate((0.0, 17.0, 0.0, 0.0)):
        made_ns = int((NOW_S + ahead_s) * 1e9)
        rows = [{**call("all_reduce", 1), "time_created_ns": made_ns}]
        rows.append({**call("all_reduce", 2), "time_created_ns": made_ns})
        rows[0] |= {"state": DONE, "time_discovered_completed_ns": made_ns + 1000}
        write(tmp_path, rank, rows[: 1 + (rank < 3)], NOW_S + hung_s)
    (job,) = dump_files.load(tmp_path).jobs
    assert said(judging.judge(traced(job.dumps), job.age_s)) == said_of


@pytest.mark.parametrize(("before_s", "named"), [(0.0, {2, 3}), (30.0, {2})])
def test_a_dump_of_an_earlier_moment_does_not_lack_what_came_later(
    before_s: float, named: set[int], tmp_path: Path
) -> None:
    """Rank 3's was written when the job was at work, or with all the others."""
    done = [call("all_reduce", 1, DONE)]
    late = {**call("all_reduce", 2), "time_created_ns": (NOW_S + 20) * 10**9}
    for rank in range(4):
        written_s = NOW_S + 60.0 - (before_s + 25 if rank == 3 and before_s else 0)
        write(tmp_path, rank, done if rank > 1 else [*done, late], written_s)
    (job,) = dump_files.load(tmp_path).jobs
    trace = traced(job.dumps)
    assert said(judging.judge(trace, job.age_s)) == [("missing_rank", named, "host")]


@pytest.mark.parametrize(("early", "found"), [(True, []), (False, [("missing_rank", {1}, "host")])])
def test_who_has_fewer_calls_may_have_been_asked_earlier(
    early: bool, found: object, tmp_path: Path
) -> None:
    calls = [
        {**call("all_reduce", seq, DONE), "time_created_ns": (NOW_S + 4 * seq) * 10**9}
        for seq in range(1, 8)
    ]
    write(tmp_path, 0, calls, NOW_S + 900.0)
    write(tmp_path, 1, calls[:4], NOW_S + (18.0 if early else 900.0))
    (job,) = dump_files.load(tmp_path).jobs
    assert said(judging.judge(traced(job.dumps), job.age_s)) == found


def test_entries_in_another_order_than_they_were_recorded(tmp_path: Path) -> None:
    ahead = [call("all_reduce", 1, group="1"), call("barrier", 1)]
    rows = {0: ahead, 1: ahead, 2: [call("barrier", 1)], 3: [call("barrier", 1)]}
    verdicts = []
    for order in (1, -1):
        dumps = {rank: dump(mine) for rank, mine in rows.items()}
        for one in dumps.values():
            one["entries"] = one["entries"][::order]
        read = {rank: flight_recorder.read(pickle.dumps(one)) for rank, one in dumps.items()}
        verdicts.append(said(judging.judge(traced(read))))
    assert verdicts[0] == verdicts[1] != []


def test_the_dump_that_an_earlier_run_has_left_is_not_of_this_job(tmp_path: Path) -> None:
    waiting = [call("all_reduce", 1, DONE), call("all_reduce", 2)]
    yesterday = [{**row, "time_created_ns": (NOW_S - 86_400) * 10**9} for row in waiting]
    for rank in range(3):
        write(tmp_path, rank, waiting, NOW_S + TIMEOUT_S)
    write(tmp_path, 3, yesterday, NOW_S - 86_000)
    found = dump_files.load(tmp_path)
    (job,) = found.jobs
    assert set(job.dumps) == {0, 1, 2}
    assert found.notes == [
        "the dump of rank 3 (comm_lib_trace_rank_3) is of an earlier run, and left aside"
    ]
    (finding,) = judging.judge(traced(job.dumps), job.age_s)
    assert (finding.culprits, finding.missing) == ((3,), (3,))
    # One that is as far behind as a slow host is belongs to the job.
    write(tmp_path, 3, waiting[:1], NOW_S + TIMEOUT_S)
    (job,) = dump_files.load(tmp_path).jobs
    assert said(judging.judge(traced(job.dumps), job.age_s)) == [("missing_rank", {3}, "host")]


def test_of_two_dumps_the_one_in_which_more_is_complete_is_the_later(tmp_path: Path) -> None:
    for rank in range(4):
        write(tmp_path, rank, [call("all_reduce", 1, DONE)], NOW_S + 5)
        write(tmp_path, rank, [call("all_reduce", 1)], NOW_S + 1, f"comm_lib_trace_rank_{rank}.pkl")
    (job,) = dump_files.load(tmp_path).jobs
    assert judging.judge(traced(job.dumps)) == []
