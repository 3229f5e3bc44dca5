"""Calls of two groups that ranks gave their devices in opposite order; twins."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.foreign import flight_recorder, judging
from distdebug.foreign.trace import traced

NOW_NS = 1_780_000_000 * 10**9


def call(group: str, line: int, state: str, at: int) -> dict[str, Any]:
    return {
        "record_id": at,
        "pg_id": int(group),
        "process_group": (group, "default_pg" if group == "0" else f"stage{group}"),
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "op_id": 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": NOW_NS + at,
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8]],
        "output_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "/home/user/train.py", "line": line}],
    }


def judged(*orders: str, state: str = "scheduled") -> list[Finding]:
    """The findings on ranks that have issued a call of each of these groups, in this order, after
    one of all that is over."""
    dumps = {}
    members = str(list(range(len(orders))))
    for rank, order in enumerate(orders):
        rows = [call("0", 3, "completed", 0)]
        rows += [call(group, 9, state, at) for at, group in enumerate(order, 1)]
        config = {
            group: {"name": group, "desc": rows[0]["process_group"][1], "ranks": members}
            for group in ("0", "1", "2")
        }
        dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": rows}
        dumps[rank] = flight_recorder.read(pickle.dumps(dump))
    return judging.judge(traced(dumps), 60.0)


@pytest.mark.parametrize("state", ["scheduled", "started"])
def test_who_issued_them_the_other_way_round_is_named(state: str) -> None:
    (found,) = judged("12", "12", "12", "21", state=state)
    assert (found.kind, found.culprits, found.victims) == ("deadlock", (3,), (0, 1, 2))
    assert "in opposite order: ranks 0,1,2 issued" in found.message
    assert found.story[0] == "without_clock.opposed_order"
    assert not found.proven


def test_without_a_majority_all_are_named() -> None:
    (found,) = judged("12", "21", "12", "21")
    assert (found.kind, found.culprits) == ("deadlock", (0, 1, 2, 3))


def test_a_rank_that_has_not_issued_one_of_them_is_another_fault() -> None:
    assert all("opposite order" not in one.message for one in judged("12", "12", "12", "2"))


def test_in_one_order_nothing_is_opposed() -> None:
    assert all("opposite order" not in one.message for one in judged("12", "12", "12", "12"))
