"""Fixtures planned at their own size get the verdict that they declare: kind, culprits and line.

In scope is what the programs alone decide: calls that do not fit, groups, messages, missing calls,
deadlocks, exceptions; and correct programs, of which nothing may be said.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import fixture_table, plan_table
from tests.support.planned import plan
from tests.support.torch_loaded import TorchLoaded

SCALE = plan_table.FIXTURES / "scale"
TELLING = {
    "any_source_server",
    "batched_exchange",
    "exit_uneven_data_loader",
    "op_in_thread",
    "splits_refused_everywhere",
    "thread_for_each_message",
}
SHORT_CORRECT = 3


def _chosen() -> list[Any]:
    """One of each verdict, and what has shown more, in every test run; all are long."""
    seen: Counter[str] = Counter()
    rows = []
    for name in plan_table.in_scope():
        if name in plan_table.BEYOND:
            continue
        outcome = fixture_table.expected(name)["outcome"]
        seen[outcome] += 1
        short = seen[outcome] <= (SHORT_CORRECT if outcome == "ok" else 1) or name in TELLING
        rows.append(pytest.param(name, marks=[] if short else [pytest.mark.long]))
    return rows


@pytest.mark.parametrize("name", _chosen())
def test_a_plan_says_what_the_fixture_declares(
    name: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    done = plan(torch_loaded, plan_table.arguments_of(name), tmp_path)
    assert plan_table.wrong(name, done) == "", done.explain()


def test_a_cycle_that_is_there_from_16_ranks_on(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    script = str(SCALE / "mesh_order.py")
    few, many, twin = (tmp_path / name for name in ("few", "many", "twin"))
    for folder in (few, many, twin):
        folder.mkdir()
    done = plan(torch_loaded, ["-n", "8", script], few)
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    done = plan(torch_loaded, ["-n", "16", script], many)
    assert (done.report["outcome"], done.exit_code) == ("deadlock", 92), done.explain()
    (found,) = done.report["findings"]
    assert len(found["cycle"]) == 4, done.explain()
    waits = {step["rank"]: step["waits_for"] for step in found["cycle"]}
    assert sorted(waits) == sorted(waits.values()) == sorted(found["culprits"])
    groups = ["mesh_row" in step["doing"] for step in found["cycle"]]
    assert groups in ([True, False] * 2, [False, True] * 2), done.explain()
    done = plan(torch_loaded, ["-n", "16", script, "--order", "fixed"], twin)
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()


def test_the_other_readers_read_a_plan_as_a_run_that_stopped_there(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    from distdebug.record.runs.run_directory import RunDirectory
    from distdebug.supervisor.on_the_spot import look_killed

    done = plan(torch_loaded, plan_table.arguments_of("op_subgroup"), tmp_path)
    assert done.report["outcome"] == "op_mismatch", done.explain()
    (look,) = look_killed(RunDirectory(tmp_path / "run")).now
    calls = {number: rank.calls for number, rank in look.ranks.items()}
    assert calls == {int(rank): row["calls"] for rank, row in done.report["ranks"].items()}
    assert (tmp_path / "run" / "report.txt").read_text() == done.stderr
    assert "rank 2" in (tmp_path / "run" / "junit.xml").read_text()
