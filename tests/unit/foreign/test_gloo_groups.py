"""gloo's dumps say who has called in a group and not who is in it, nothing of messages, and of a
call that it has put away not whether it failed: what is concluded all the same, and what is not."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.foreign import flight_recorder, judging
from distdebug.foreign.trace import traced

NOW_S = 1_780_000_000
Row = dict[str, Any]


def call(group: str, seq: int, *, op: str = "all_reduce", over: bool = False, line: int = 9) -> Row:
    default = group == "0"
    return {
        "pg_id": 0 if default else 1,
        "process_group": (group, "default_pg" if default else f"mesh_{group[0]}"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "profiling_name": f"gloo:{op}",
        "time_created_ns": NOW_S * 10**9,
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": over,
        "timeout_ms": 60_000,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "/home/user/train.py", "line": line}],
    }


BEGUN = call("0", 1, over=True)


def judged(
    *ranks: Sequence[Row] | None, age_s: float | None = 60.0, written_s: Sequence[float] = ()
) -> list[Finding]:
    """The findings on a job whose ranks have made these calls after a first one of all; None: the
    rank has left no dump. `written_s`: when each did, after its calls."""
    dumps = {}
    for rank, rows in enumerate(ranks):
        if rows is not None:
            entries = [{**row, "record_id": at} for at, row in enumerate([BEGUN, *rows])]
            config = {"": {"name": "", "desc": "", "ranks": "[]"}}
            dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
            read = flight_recorder.read(pickle.dumps(dump))
            written_ns = int((NOW_S + written_s[rank]) * 1e9) if written_s else 0
            dumps[rank] = replace(read, written_ns=written_ns)
    return judging.judge(traced(dumps), age_s)


def said(found: Sequence[Finding]) -> list[tuple[str, set[int], bool]]:
    return [(one.kind, set(one.culprits), one.proven) for one in found]


# -- groups of which nobody says who is in them ----------------------------------------------------


def test_of_two_ranks_each_waits_for_the_other() -> None:
    assert said(judged([call("1", 1)], [call("2", 1)])) == [("deadlock", {0, 1}, False)]
    assert said(judged([call("1", 1)], [])) == [("missing_rank", {1}, False)]


def test_a_group_of_one_waits_for_nobody() -> None:
    assert judged([call("1", 1, over=True)], []) == []


def test_where_all_wait_they_wait_for_each_other() -> None:
    found = judged(*[[call(str(1 + rank), 1)] for rank in range(4)])
    assert said(found) == [("deadlock", {0, 1, 2, 3}, False)]
    assert "who else is in that group is not in this kind of record" in found[0].message


def test_who_is_in_every_cycle_is_named_alone() -> None:
    world = [call("0", 2)]
    found = judged(world, [call("1", 1)], world, world)
    assert said(found) == [("deadlock", {1}, False)]
    assert set(found[0].victims) == {0, 2, 3}


@pytest.mark.parametrize("other", [[], None])
def test_where_one_does_not_wait_or_is_not_seen_there_need_be_no_cycle(other: Any) -> None:
    found = judged(other, [call("1", 1)], [call("2", 1)], [call("3", 1)])
    assert all(one.kind != "deadlock" for one in found)
    assert all(not one.culprits for one in found)


def test_where_a_call_of_two_pends_it_may_be_the_network() -> None:
    pair = [call("1", 1)]
    assert all(one.kind != "deadlock" for one in judged(pair, pair, [call("2", 1)]))


# -- whose call is the wrong one -------------------------------------------------------------------


def test_a_rank_that_is_not_seen_may_decide_who_is_wrong() -> None:
    usual, odd = [call("0", 2)], [call("0", 2, op="broadcast")]
    assert said(judged(usual, odd)) == [("op_mismatch", {0, 1}, True)]
    assert said(judged(usual, odd, usual)) == [("op_mismatch", {1}, True)]
    for third in ([], None):
        (finding,) = judged(usual, odd, third, usual)
        assert said([finding]) == [("op_mismatch", {1}, False)]  # one more would make it two each
        assert finding.message.startswith("suspected: ")
    assert said(judged(usual, odd, usual, usual, [])) == [("op_mismatch", {1}, True)]


def test_a_wrong_branch_in_every_row_of_a_mesh_is_one_finding() -> None:
    def rows(lines: Sequence[int]) -> list[Finding]:
        ranks = []
        for row, line in zip("ab", lines, strict=True):
            name = f"tp_{row}"
            ranks += [[call(name, 1)], [call(name, 1, op="allgather", line=line)]]
        return judged(*ranks)

    assert said(rows([30, 30])) == [("op_mismatch", {0, 1, 2, 3}, True)]
    assert said(rows([30, 40])) == [("op_mismatch", {0, 1}, True), ("op_mismatch", {2, 3}, True)]


# -- what is not concluded -------------------------------------------------------------------------


def test_dumps_of_a_job_at_work_are_of_different_moments() -> None:
    # Rank 1 has written its dump a moment before it made the call that all have completed since.
    ahead = [call("0", 2, over=True)]
    assert judged(ahead, [], ahead, age_s=0.05) == []
    assert said(judged(ahead, [], ahead, age_s=60.0)) == [("missing_rank", {1}, False)]


@pytest.mark.parametrize("age_s", [3.0, 60.0])
def test_worlds_that_were_made_again_may_be_two(age_s: float) -> None:
    def again(seq: int, op: str = "all_reduce", number: int = 7, over: bool = True) -> Row:
        return {**call("0", seq, op=op, over=over), "pg_id": number}

    one = [again(1), again(2, "barrier"), again(1, number=8)]
    two = [again(1), again(2), again(3, "barrier"), again(1, number=8)]
    assert judged(one, one, two, two, age_s=age_s) == []
    # What pends is a mismatch all the same.
    pends = [again(1), again(2, "barrier", over=False)]
    assert said(judged(pends, [again(1), again(2)], [again(1), again(2)], age_s=age_s)) == [
        ("op_mismatch", {0}, True)
    ]


def test_a_record_that_was_written_right_behind_a_call_has_not_put_it_away() -> None:
    # Rank 1 has ended after its last call, which the others have put away; they wait in one more.
    more = [call("0", 2, over=True), call("0", 3)]
    ranks = (more, [call("0", 2)], more)
    (finding,) = judged(*ranks, written_s=[60.0, 0.01, 60.0])
    assert said([finding]) == [("missing_rank", {1}, False)]
    assert finding.seq == 2
    # Rank 1 has pended for a minute in what rank 0 has put away: there it has failed.
    failed = ([call("0", 2, over=True)], [call("0", 2)], None, [])
    (finding,) = judged(*failed, written_s=[60.0, 60.0, 0.0, 60.0])
    assert 3 in finding.culprits
    assert not {0, 1} & set(finding.culprits)


def test_that_messages_and_groups_may_be_behind_it_is_said() -> None:
    (finding,) = judged([call("0", 2)], [])
    assert {"messages", "unformed_groups"} <= set(finding.not_in_record)
    assert "in a message, or forms a group, is not in this kind of record" in finding.message
