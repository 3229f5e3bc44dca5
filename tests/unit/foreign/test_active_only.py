"""Dumps from which complete calls have been left out: what is gone is concluded, or not claimed."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.foreign import flight_recorder, judging
from distdebug.foreign.trace import traced
from tests.unit.foreign.test_hard_cases import DONE, Row, batch, call, message, said

GROUPS = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"},
    "1": {"name": "1", "desc": "tensor", "ranks": "[0, 1, 2]"},
}
Counts = Mapping[str, int]
"""By pg_id the last collective that a rank has issued and completed."""


def active(
    *ranks: Sequence[Row],
    groups: Mapping[str, Any] = GROUPS,
    counted: Sequence[Counts] = (),
    first: int = 40,
) -> list[Finding]:
    """The findings on what is left of these ranks' calls."""
    dumps = {}
    for rank, rows in enumerate(ranks):
        numbered = [
            {**row, "record_id": first + at, "op_id": at + 1} for at, row in enumerate(rows)
        ]
        status = {
            number: {
                "last_enqueued_collective": last,
                "last_started_collective": -1,
                "last_completed_collective": last
                - any(row["pg_id"] == int(number) for row in rows),
            }
            for number, last in (counted[rank] if counted else {}).items()
        }
        left = [row for row in numbered if row["state"] != DONE]
        dump = {"version": "2.10", "pg_config": groups, "pg_status": status, "entries": left}
        dumps[rank] = flight_recorder.read(pickle.dumps(dump))
    return judging.judge(traced(dumps))


def test_torch_counts_what_a_rank_has_completed_and_its_dump_leaves_out() -> None:
    # Rank 2 alone has not completed #8 of the second group; the others wait for it in the next
    # call. Their dumps have no record of that group.
    waiting, stuck = [call("all_reduce", 9)], [call("all_reduce", 8, group="1")]
    counted = [{"0": 9, "1": 8}, {"0": 9, "1": 8}, {"0": 8, "1": 8}]
    found = active(waiting, waiting, stuck, counted=counted)
    assert said(found) == [("stalled", {2}, "device")]
    # The same records, and the others have not issued it: a cycle.
    behind = [{"0": 9, "1": 7}, {"0": 9, "1": 7}, {"0": 8, "1": 8}]
    (finding,) = active(waiting, waiting, stuck, counted=behind)
    assert finding.kind == "deadlock"
    assert 2 in finding.culprits


@pytest.mark.parametrize("last", [30, 9])
def test_a_count_of_messages_is_none_of_collectives(last: int) -> None:
    # Messages are counted in, so that the rank that waits has counted something else than #9.
    waiting = [call("all_reduce", 9)]
    counted = [{"0": last + 1}, {"0": last + 1}, {"0": last}]
    assert said(active(waiting, waiting, [], counted=counted)) == [("missing_rank", {2}, "host")]


def test_the_default_group_is_the_first_one_that_a_process_makes() -> None:
    groups = {**GROUPS, "f3a0": {"name": "f3a0", "desc": "tensor", "ranks": "[0, 1, 2]"}}
    del groups["1"]
    waiting = [{**call("all_reduce", 9), "pg_id": 1, "process_group": ("f3a0", "tensor")}]
    stuck = [call("all_reduce", 8)]
    counted = [{"0": 8, "1": 9}, {"0": 8, "1": 9}, {"0": 8, "1": 8}]
    found = active(waiting, waiting, stuck, groups=groups, counted=counted)
    assert said(found) == [("stalled", {2}, "device")]


def pipeline(last: Sequence[str]) -> list[list[Row]]:
    """Four batches of one message each from rank 0 to 1 that are over, and then the last ones."""
    ways = ("send 0->1", "recv 1<-0", None)
    return [
        [*(row for seq in range(1, 5) if way for row in batch(seq, DONE, way)), *rows]
        for way, rows in zip(ways, [[call("all_reduce", 9)]] * 2 + [[]], strict=True)
    ] + [[call(one, 9)] for one in last]


def test_parts_that_complete_batches_have_left_are_no_messages_that_pend() -> None:
    assert said(active(*pipeline([]))) == [("missing_rank", {2}, "host")]


def test_messages_that_pend_one_by_one_are_no_parts_that_complete_batches_have_left() -> None:
    # The same records but that the peer has none of the other ends: it has not come.
    sends = [
        row
        for seq in range(1, 5)
        for row in (message("send 0->1", seq), call("all_gather", seq, DONE, group="1"))
    ]
    assert said(active(sends, [], [])) == [("unmatched_p2p", {1}, "host")]


def test_who_has_called_in_a_group_is_not_who_is_in_it() -> None:
    waiting, other = [call("all_reduce", 9)], [call("all_reduce", 8, group="1")]
    (finding,) = active(waiting, waiting, other, groups={})
    assert (finding.kind, finding.culprits, finding.side) == ("stalled", (2,), None)
    assert "who else is in that group is not in this kind of record" in finding.message
    # Rank 3 stands in a message of a group of which nothing is known: they may wait for it.
    alone = [message("recv 0<-1", 5, group="2")]
    (finding,) = active(waiting, waiting, other, alone, groups={})
    assert (finding.kind, finding.culprits, finding.side) == ("stalled", (), None)


PAIR = {**GROUPS, "1": {"name": "1", "desc": "tensor", "ranks": "[0, 1]"}}
COPY, SUM, LATER = (
    call(op, seq, group="1") for op, seq in (("broadcast", 5), ("all_reduce", 6), ("all_reduce", 7))
)
FROM_2 = message("recv 1<-2", 3)


def test_that_a_root_is_over_with_a_broadcast_is_no_sign_of_a_device_that_stands_still() -> None:
    # Rank 0 has sent its part and waits in the next call; rank 1 is held up by rank 2.
    done = {**COPY, "state": DONE}
    assert said(active([done, SUM], [FROM_2, COPY, SUM], [], groups=PAIR)) == [
        ("unmatched_p2p", {2}, "host")
    ]
    # Nothing holds rank 1 up but its device ...
    assert said(active([done, SUM], [COPY, SUM], [], groups=PAIR)) == [("stalled", {1}, "device")]
    # ... and here rank 0 is over with a call that nobody ends before rank 1 is in it.
    sent = [message("send 2->1", 3)]
    found = active([done, {**SUM, "state": DONE}, LATER], [FROM_2, COPY, SUM], sent, groups=PAIR)
    assert said(found) == [("stalled", {1}, "device")]


@pytest.mark.parametrize("desc", ["PIPELINE_MODEL_PARALLEL_GROUP", "undefined"])
def test_groups_of_one_description_send_alike(desc: str) -> None:
    # Three pipelines of two stages, each with one batch that is over; rank 5 has gone nowhere.
    groups = {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3, 4, 5]"},
        **{
            str(1 + one): {"name": str(1 + one), "desc": desc, "ranks": f"[{one}, {one + 3}]"}
            for one in range(3)
        },
    }
    ways = ["send 0->1"] * 3 + ["recv 1<-0"] * 3
    ranks = []
    for rank, way in enumerate(ways):
        group = str(1 + rank % 3)
        parts = [{**row, "pg_id": 1, "process_group": (group, desc)} for row in batch(1, DONE, way)]
        ranks.append([*parts, *([call("all_reduce", 9)] if rank < 5 else [])])
    found = said(active(*ranks, groups=groups))
    if desc == "undefined":
        assert ("missing_rank", {5}, "host") not in found  # of what they do nothing is known
    else:
        assert found == [("missing_rank", {5}, "host")]
