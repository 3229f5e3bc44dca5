"""What one does to a run works on ranks that mpiexec started: stop them, look at them, have them
agree before each call."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from distdebug.record.requests.breakpoints import stops
from tests.ranks.debugger.test_breakpoints import RESULT, attach
from tests.support import fixture_table, mpi, runs

from .test_fixtures import check_verdict
from .test_fixtures_on_mpi import EXTRA, run_on_mpi

SCRIPTS = mpi.SCRIPTS
STOPPING = str(SCRIPTS / "stopping.py")
HANGING = """
import time
import torch, torch.distributed as dist, distcore
dist.init_process_group("mpi")
tensor = torch.ones(4)
dist.all_reduce(tensor)
if dist.get_rank() == 1:
    time.sleep(600)  # here
dist.all_reduce(tensor)
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(150)]


class Started:
    """A run of two ranks in the background."""

    def __init__(self, folder: Path, way: str, *words: str, flags: tuple[str, ...] = ()) -> None:
        mpi.python("openmpi")
        self.folder = folder
        self.directory = folder / "run"
        extra = dict(EXTRA)
        command, how = "run", ["--launcher", "mpi", "-n", "2"]
        if way == "exec":
            command, how = "exec", ["--", *mpi.command("openmpi", 2), str(mpi.python("openmpi"))]
            extra |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.process = runs.start(command, [*flags, *how, *words], self.directory, folder, extra)

    def stopped(self, rank: int) -> None:
        until = time.monotonic() + 60
        while not any(stop.rank == rank for stop in stops(self.directory)):
            if self.process.poll() is not None or time.monotonic() > until:
                raise AssertionError(self.finish().explain())
            time.sleep(0.05)

    def finish(self) -> runs.Run:
        return runs.finish(self.process, self.directory)


@pytest.mark.parametrize("way", ["run", "exec"])
@pytest.mark.parametrize("mode", ["plain", "none"])
def test_a_rank_stops_and_talks(way: str, mode: str, tmp_path: Path) -> None:
    """At `breakpoint()`, or where `--break` says; and nobody is late meanwhile."""
    flags = ("--hang-timeout", "2", *(() if mode == "plain" else ("--break", "all_reduce#1@1")))
    run = Started(tmp_path, way, STOPPING, mode, "5", flags=flags)
    run.stopped(1)
    time.sleep(6)  # this is what is tested: longer than the hang timeout and the group's
    with attach(tmp_path, run.directory, 1) as terminal:
        at = r"breakpoint\(\)" if mode == "plain" else r"dist\.all_reduce\(y\)"
        terminal.expect(rf"-> {at}\n\(rank 1\) $")
        terminal.type("p number")
        terminal.expect(r"\n1\n\(rank 1\) $")
        terminal.type("c")
        terminal.expect("rank 1 has ended")
    ended = run.finish()
    assert ended.exit_code == 0, ended.explain()
    assert not ended.errors
    assert ended.stdout.count(RESULT) == 2


@pytest.mark.parametrize("way", ["run", "exec"])
def test_stacks_of_a_run_that_hangs(way: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HANGING)
    line = next(n for n, text in enumerate(HANGING.splitlines(), 1) if text.endswith("# here"))
    run = Started(tmp_path, way, str(script), flags=("--hang-timeout", "20"))
    shown, until = "", time.monotonic() + 60
    while f"(train.py:{line})    <- rank 1" not in shown or "<- rank 0" not in shown:
        assert run.process.poll() is None, run.finish().explain()
        assert time.monotonic() < until, shown
        shown = subprocess.run(
            [str(runs.DISTDEBUG), "stacks", str(run.directory)],
            capture_output=True,
            text=True,
            check=False,
            env=runs.environment(EXTRA),
        ).stdout
    ended = run.finish()
    assert ended.exit_code == 93, ended.explain()
    (found,) = ended.errors
    assert (found["kind"], found["culprits"], found["cause"]) == ("missing_rank", [1], "user_code")
    assert found["ranks"]["1"]["location"]["line"] == line


@pytest.mark.parametrize(
    "name",
    [
        "deadlock_two_groups",
        "dtype_autocast",
        "op_after_500_steps",
        "op_reduce_vs_all_reduce",
        "other_code_path_same_calls",
        "p2p_size",
        "reduce_op_sum_max",
        "root_each_its_own",
        "shape_buckets",
        "split_replay",
    ],
)
def test_ranks_agree_first_at_detail(name: str, tmp_path: Path) -> None:
    expected = fixture_table.expected(name)
    expected["args"] = [*expected["args"], "--debug-level", "DETAIL"]
    check_verdict(expected, run_on_mpi(expected, tmp_path))


def test_another_shape_at_detail(tmp_path: Path) -> None:
    expected = fixture_table.expected("reshaped_view")
    expected["args"] = [*expected["args"], "--debug-level", "DETAIL"]
    done = run_on_mpi(expected, tmp_path)
    assert (done.report["outcome"], done.exit_code) == ("shape_mismatch", 91), done.explain()
    assert done.errors[0]["culprits"] == [1], done.explain()
