"""A dump without a call: of a rank that has made none, or of one whose calls are not in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from distdebug.foreign.flight_recorder import read


def dump(**more: Any) -> bytes:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return json.dumps({"version": "2.10", "pg_config": groups, "entries": [], **more}).encode()


def status(last: int) -> dict[str, Any]:
    return {"0": {"last_enqueued_collective": last, "last_completed_collective": last}}


@pytest.mark.parametrize("counts", [status(-1), {}])
def test_a_rank_that_has_made_no_call_is_known_to_have_made_none(counts: object) -> None:
    found = read(dump(pg_status=counts))
    assert found.whole
    assert not found.active_only


@pytest.mark.parametrize(
    "more", [{}, {"pg_status": {}, "pg_config": {}}, {"pg_status": status(17)}]
)
def test_calls_that_are_left_out_are_not_taken_for_none(more: dict[str, Any]) -> None:
    found = read(dump(**more))
    assert not found.whole
    assert found.active_only
