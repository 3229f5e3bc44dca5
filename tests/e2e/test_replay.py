"""`distdebug replay`: the recorded calls of a run are made again, and end as they ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distdebug.benchmarks.replay import comparison
from fixtures import recorded
from tests.support import runs
from tests.support.replays import Replayed, plan_of, ranks_of, replayed
from tests.support.zygote import Zygote

SCRIPTS = Path(__file__).resolve().parents[2] / "fixtures" / "scripts"
EXPECTED = SCRIPTS.parent / "expected"


def test_a_recorded_training_moves_the_same_bytes_in_each_group(tmp_path: Path) -> None:
    """DistributedDataParallel on four ranks, replayed by the command itself."""
    run = recorded.unpack("finished", tmp_path / "recorded")
    table = tmp_path / "table.json"
    done = runs.run("replay", [str(run.path), "-n", "4", "--json", str(table)], tmp_path)
    assert done.exit_code == 0, done.explain()
    assert done.report["findings"] == []
    assert done.report["command"][:2] == ["distdebug", "replay"]
    ranks = ranks_of(run.path)
    recorded_rows = comparison.figures(ranks, comparison.same_names(ranks))
    total = sum(comparison.by_group(recorded_rows).values())
    assert f"the same {total} bytes, group by group" in done.stdout
    rows = json.loads(table.read_text())["rows"]
    assert len(rows) == len(recorded_rows) > 2
    for row in rows:
        assert [row["recorded"][what] for what in ("calls", "bytes")] == [
            row["replayed"][what] for what in ("calls", "bytes")
        ]
        assert row["recorded"]["calls"] > 0


def test_another_backend_makes_the_same_calls(tmp_path: Path, zygote: Zygote) -> None:
    run = recorded.unpack("finished", tmp_path / "recorded")
    done = replayed(zygote, run.path, tmp_path / "replay", "tcp", "recorded")
    assert done.run.exit_code == 0, done.run.explain()
    assert done.counts(done.replayed) == done.counts(done.recorded)
    groups = ranks_of(done.run.directory)[0].groups.values()
    assert {group.backend for group in groups} == {"tcp"}


@pytest.mark.parametrize("name", ["mismatch", "deadlock", "p2p"])
def test_what_was_found_is_found_again_at_the_same_lines(
    name: str, tmp_path: Path, zygote: Zygote
) -> None:
    run = recorded.unpack(name, tmp_path / "recorded")
    done = replayed(zygote, run.path, tmp_path / "replay")
    before = json.loads((run.path / "report.json").read_text())
    first = before["findings"][0]
    (error,) = done.run.errors
    found = (error["kind"], error["culprits"])
    assert found == (first["kind"], first["culprits"]), done.run.explain()
    assert done.run.exit_code == before["exit_code"]
    for rank, evidence in error["ranks"].items():
        assert evidence["call"] == first["ranks"][rank]["call"]
        assert evidence["location"]["line"] == first["ranks"][rank]["location"]["line"]


def _again(zygote: Zygote, name: str, scratch: Path) -> tuple[runs.Run, Replayed]:
    """Run one of the fixtures, then replay it."""
    expected = json.loads((EXPECTED / f"{name}.json").read_text())
    (scratch / "first").mkdir()
    program = [str(SCRIPTS / expected["script"]), *expected["script_args"]]
    first = zygote.run(expected["nproc"], program, scratch / "first", expected["args"])
    assert first.report["outcome"] == expected["outcome"], first.explain()
    return first, replayed(zygote, first.directory, scratch / "again")


@pytest.mark.parametrize(
    "name",
    [
        "any_source_server",
        "two_threads_two_groups",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in (
                "async_waits_other_order",
                "batched_exchange",
                "caught_on_one_rank",
                "ddp_join_uneven",
                "ddp_no_sync",
                "exit_after_isend",
                "init_destroy_init",
                "local_sync_groups",
                "monitored_barrier",
                "object_collectives",
                "pipelined_two_groups",
                "thread_for_each_message",
                "timeout_tried_again",
                "uneven_splits",
            )
        ),
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in (
                "deadlock_any_source",
                "deadlock_batched",
                "deadlock_two_groups",
                "exit_one_step_fewer",
                "group_order",
                "group_some_only",
                "missing_sleep",
                "op_async_handles",
                "op_in_thread",
                "root_each_its_own",
                "shape_buckets",
                "split_router",
                "unmatched_recv",
                "unmatched_send",
            )
        ),
    ],
)
def test_a_program_of_the_fixtures_ends_in_its_replay_as_it_did(
    name: str, tmp_path: Path, zygote: Zygote
) -> None:
    first, done = _again(zygote, name, tmp_path)
    assert done.run.report["outcome"] == first.report["outcome"], done.run.explain()
    assert done.counts(done.replayed) == done.counts(done.recorded)


WRAPPED = """
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, pair = dist.get_rank(), dist.new_group([0, 1])
for step in range(1500):
    dist.all_reduce(torch.ones(8))
    if rank == 0:
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        dist.recv(torch.ones(2), 0)
    if rank < 2:
        dist.all_reduce(torch.ones(4), group=pair)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_of_a_record_that_has_lost_its_beginning_the_rest_is_made(
    tmp_path: Path, zygote: Zygote
) -> None:
    """Ranks 0 and 1 have made 4,500 calls, rank 2 1,500: all have theirs as of the same call."""
    script = tmp_path / "train.py"
    script.write_text(WRAPPED)
    (tmp_path / "first").mkdir()
    first = zygote.run(3, [str(script)], tmp_path / "first")
    assert first.exit_code == 0, first.explain()
    ranks = ranks_of(first.directory)
    plan = plan_of(first.directory, ranks)
    assert "earlier ones of ranks 0,1 are lost" in plan.notes[0]
    kept = [len(plan.kept[rank]) for rank in range(3)]
    assert kept[0] == kept[1] > 4000
    assert 1300 < kept[2] < 1500
    done = replayed(zygote, first.directory, tmp_path / "again")
    assert done.run.exit_code == 0, done.run.explain()
    assert done.counts(done.replayed) == done.counts(done.recorded)
