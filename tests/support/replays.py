"""Replays recorded runs on forked ranks: what `distdebug replay` does, but for its launcher."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distdebug.benchmarks import replay
from distdebug.benchmarks.replay import comparison, plan
from distdebug.benchmarks.replay.comparison import Figures, Row
from distdebug.benchmarks.replay.plan import ReplayPlan, planned
from distdebug.record.reading.records import Records, newest_ranks
from distdebug.record.snapshot import Rank
from tests.support.runs import Run
from tests.support.zygote import Zygote

PROGRAM = Path(replay.__file__).with_name("program.py")


def ranks_of(directory: Path) -> Mapping[int, Rank]:
    """What a run directory has of its newest world."""
    records = Records(directory / "ranks")
    records.look()
    return newest_ranks(records.snapshots()[-1:])


def plan_of(directory: Path, ranks: Mapping[int, Rank]) -> ReplayPlan:
    """As the command makes it."""
    report, events = directory / "report.json", directory / "events.jsonl"
    lines = events.read_text().splitlines() if events.exists() else []
    found = json.loads(report.read_text()) if report.exists() else {}
    return planned(ranks, plan.ending(found, map(json.loads, lines)))


@dataclass(frozen=True)
class Replayed:
    """A recorded run and its replay, by group and op."""

    plan: ReplayPlan
    run: Run
    recorded: Mapping[Row, Figures]
    replayed: Mapping[Row, Figures]

    def counts(self, which: Mapping[Row, Figures]) -> dict[Row, tuple[int, int]]:
        """Calls and bytes."""
        return {row: (one.calls, one.size_bytes) for row, one in which.items()}


def replayed(
    zygote: Zygote,
    directory: Path,
    scratch: Path,
    backend: str = "gloo",
    pace: str = "fast",
    hang_timeout_s: float = 20.0,
) -> Replayed:
    """Make the calls of the run in `directory` again; `scratch` is a new folder."""
    ranks = ranks_of(directory)
    plan = plan_of(directory, ranks)
    scratch.mkdir()
    for rank, its in plan.ranks.items():
        (scratch / f"{rank}.json").write_text(json.dumps(its))
    program = [str(PROGRAM), str(scratch), backend, pace]
    flags = ["--hang-timeout", str(hang_timeout_s)]
    run = zygote.run(plan.world_size, program, scratch, flags)
    again = ranks_of(run.directory)
    return Replayed(
        plan,
        run,
        comparison.figures(ranks, comparison.same_names(ranks), plan.kept),
        comparison.figures(again, comparison.recorded_names(ranks, again)),
    )
