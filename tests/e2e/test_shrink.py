"""`distdebug shrink`: a small program is written from the record of a run, and fails as it did."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fixtures import recorded
from tests.support import runs
from tests.support.zygote import Zygote

from .test_fixtures import FIXTURES

EXPECTED = FIXTURES / "expected"
MOST_LINES = 60
NAMES = (
    *("op_after_500_steps", "op_async_handles", "op_object_mixed", "shape_skipped_batch"),
    *("dtype_int_mask", "reduce_op_sum_max", "root_reduce_dst", "split_router", "group_order"),
    *("deadlock_ring", "deadlock_two_groups", "deadlock_recv_recv", "deadlock_collective_p2p"),
    *("missing_in_subgroup", "missing_stopped", "exit_one_step_fewer", "unmatched_recv"),
    *("p2p_tag", "died_os_exit", "exception_train_step"),
)


def shrink(run: Path, small: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(runs.DISTDEBUG), "shrink", str(run), "-o", str(small)],
        capture_output=True,
        text=True,
        timeout=2 * runs.LIMIT_S,
        cwd=small.parent,
        env=runs.environment(),
        stdin=subprocess.DEVNULL,
    )


def test_a_recorded_mismatch_becomes_three_calls(tmp_path: Path) -> None:
    """By the command itself, which starts three ranks for real."""
    run, small = recorded.unpack("mismatch", tmp_path).path, tmp_path / "small.py"
    done = shrink(run, small)
    assert done.returncode == 0, done.stderr
    assert "to 3 ranks, 3 calls in " in done.stdout
    assert "same verdict under distdebug run: op_mismatch of rank " in done.stdout
    assert len(small.read_text().splitlines()) < MOST_LINES


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_small_program_ends_as_the_fixture_did(name: str, tmp_path: Path, zygote: Zygote) -> None:
    about = json.loads((EXPECTED / f"{name}.json").read_text())
    script = str(FIXTURES / "scripts" / about["script"])
    for folder in ("first", "again"):
        (tmp_path / folder).mkdir()
    first = zygote.run(about["nproc"], [script], tmp_path / "first", about["args"])
    small = tmp_path / "small.py"
    done = shrink(first.directory, small)
    assert done.returncode == 0, done.stdout + done.stderr
    size = int(small.read_text().partition("distdebug run -n ")[2].split()[0])
    again = zygote.run(size, [str(small)], tmp_path / "again", ["--hang-timeout", "10"])
    assert size <= 4
    assert len(small.read_text().splitlines()) <= MOST_LINES
    assert again.report["outcome"] == about["outcome"] == first.report["outcome"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("finished", "nothing was found in this run"),
        ("divergence", "divergence, whose cause is no call"),
    ],
)
def test_without_a_fault_of_calls_there_is_nothing_to_write(
    name: str, words: str, tmp_path: Path
) -> None:
    small = tmp_path / "small.py"
    done = shrink(recorded.unpack(name, tmp_path).path, small)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert not small.exists()


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    small = tmp_path / "small.py"
    small.write_text("print('mine')\n")
    done = shrink(recorded.unpack("mismatch", tmp_path).path, small)
    assert (done.returncode, "was not made by shrink" in done.stderr) == (2, True), done.stderr
    assert small.read_text() == "print('mine')\n"
