"""Over nodes under a real mpiexec, which starts the ranks of all of them: with a `distdebug exec`
for each rank, or below one `distdebug run --launcher mpi`. The nodes share no working directory."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fixture_table, runs
from tests.support.mpi_on_nodes import MpiNodes, over
from tests.support.nodes import Command, Nodes
from tests.support.on_nodes import Layout, check_nothing_is_left, needs_one_verdict

from .test_fixtures import EXPECTED, FIXTURES, check_verdict, chosen
from .test_fixtures_on_mpi import EXTRA, NOT_RUN, UNLIKE
from .test_nodes_fixtures import EVERY, ON_ONE_NODE, SHARED_FILES, WITHIN_A_NODE

pytestmark = [pytest.mark.root, pytest.mark.long, pytest.mark.timeout(240)]
GOING_ON = Path(__file__).parents[1] / "ranks" / "scripts" / "going_on.py"
LIMIT_S = 150.0
AS_TORCHRUN_SAYS = """
export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
export LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK MASTER_ADDR=node0 MASTER_PORT=29400
"""
"""For programs that read it, which mpiexec does not set."""
READS = re.compile(r'environ.*"(?:RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)"')
LEFT_TO_A_MESH = {"op_branch_in_each_row"}
"""It leaves it to its mesh to call init_process_group, which does so by these variables."""
BLOCKING_SENDS = {"deadlock_send_first", "deadlock_ring", "unmatched_send"}
AS_IN_SHARED_MEMORY = {"OMPI_MCA_btl_tcp_eager_limit": "4096"}
"""Over TCP Open MPI takes 64 KiB without a receiver: there these programs come to their end."""
TOLD_WHERE_TO_MEET = {"exception_before_torch", "join_never_calls_init"}
"""There is no store before all have called MPI_Init, which one of them never does."""
OVER_AT_ONCE = {"exception_before_torch"}
"""The verdict is there before the other ranks have loaded torch, and can be seen."""
JOB_KEY = {"DISTDEBUG_JOB_KEY": "0123456789abcdef" * 4}
TWO_AND_TWO = Layout((2, 2))


@pytest.fixture
def mpi_nodes(make_nodes: Callable[[int], Nodes]) -> Iterator[MpiNodes]:
    with over(make_nodes(2)) as made:
        yield made


def programs(without: Iterable[str] = (), every: int = 1) -> list[Any]:
    without = {*without, *UNLIKE, *NOT_RUN, *ON_ONE_NODE, *SHARED_FILES}
    names = [name for name in EXPECTED if name not in without]
    return [chosen(name, set()) for name in names[::every]]


def exec_each(*flags: str) -> list[str]:
    """A supervisor for each rank."""
    return [str(runs.DISTDEBUG), "exec", *flags, "--", sys.executable]


def ended(command: Command) -> int:
    try:
        return command.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"not over\n{command.said()}") from None


@needs_one_verdict
@pytest.mark.parametrize("name", programs())
def test_verdict(name: str, mpi_nodes: MpiNodes) -> None:
    check(name, mpi_nodes)


@needs_one_verdict
@pytest.mark.parametrize("name", programs(WITHIN_A_NODE, EVERY))
def test_a_node_for_each_rank(name: str, make_nodes: Callable[[int], Nodes]) -> None:
    with over(make_nodes(fixture_table.expected(name)["nproc"])) as mpi_nodes:
        check(name, mpi_nodes)


def check(name: str, mpi_nodes: MpiNodes) -> None:
    expected = fixture_table.expected(name)
    layout = Layout.over(len(mpi_nodes.nodes), expected["nproc"])
    script = FIXTURES / "scripts" / expected["script"]
    words = [*exec_each(*expected["args"]), str(script), *expected["script_args"]]
    given = EXTRA | (AS_IN_SHARED_MEMORY if name in BLOCKING_SENDS else {})
    if name in TOLD_WHERE_TO_MEET:
        words[2:2] = ["--head", "node0:29600"]
        given |= JOB_KEY
    reads = name in LEFT_TO_A_MESH or READS.search(script.read_text())
    command = mpi_nodes.mpiexec(layout, words, given, AS_TORCHRUN_SAYS if reads else "")
    ended(command)
    found = mpi_nodes.ended(command)
    assert len(found) == layout.size, command.said()
    for done in found:
        check_verdict(expected, done)
        assert done.report["exit_code"] == expected["exit_code"], done.explain()
    if name not in OVER_AT_ONCE:
        check_hosts(layout, [done.report for done in found])
    check_nothing_is_left(mpi_nodes.nodes)


def test_the_chosen_ones_exist() -> None:
    assert set(EXPECTED) >= BLOCKING_SENDS | LEFT_TO_A_MESH | TOLD_WHERE_TO_MEET | OVER_AT_ONCE


def check_hosts(layout: Layout, found: list[dict[str, Any]]) -> None:
    """Who has the ranks of all knows where they are."""
    heads = [one for one in found if len(one["ranks"]) == layout.size]
    assert heads, [sorted(one["ranks"]) for one in found]
    hosts = {int(rank): one["host"] for rank, one in heads[0]["ranks"].items()}
    assert hosts == {rank: f"node{layout.node_of(rank)}" for rank in range(layout.size)}


@needs_one_verdict
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_below_one_run(mpi_nodes: MpiNodes, backend: str) -> None:
    """`distdebug run --launcher mpi --hostfile`: no more is typed than on one node."""
    hosts = str(mpi_nodes.hosts(TWO_AND_TWO))
    words = [str(runs.DISTDEBUG), "run", "--launcher", "mpi", "--hostfile", hosts, "-n", "4"]
    program = [str(GOING_ON), "--backend", backend, "--wrong", "2"]
    command = mpi_nodes.start([*words, *program])
    assert ended(command) == 91, command.said()
    report = next(one for one in mpi_nodes.reports() if len(one["ranks"]) == 4)
    assert report["findings"][0]["culprits"] == [2]
    check_hosts(TWO_AND_TWO, [report])
    check_nothing_is_left(mpi_nodes.nodes)


@needs_one_verdict
def test_below_one_run_where_all_were_told_to_meet(mpi_nodes: MpiNodes) -> None:
    """`--head`: the key is in a variable, and goes to each rank's supervisor."""
    hosts = str(mpi_nodes.hosts(TWO_AND_TWO))
    words = [str(runs.DISTDEBUG), "run", "--launcher", "mpi", "--hostfile", hosts, "-n", "4"]
    program = [str(GOING_ON), "--backend", "gloo", "--wrong", "2"]
    command = mpi_nodes.start([*words, "--head", "node0:29600", *program], JOB_KEY)
    assert ended(command) == 91, command.said()
    report = next(one for one in mpi_nodes.reports() if len(one["ranks"]) == 4)
    assert report["findings"][0]["culprits"] == [2]
    check_hosts(TWO_AND_TWO, [report])
    check_nothing_is_left(mpi_nodes.nodes)


@pytest.mark.parametrize("backend", ["gloo", "tcp", "mpi"])
def test_without_a_fault(mpi_nodes: MpiNodes, backend: str) -> None:
    master = {"MASTER_ADDR": "node0", "MASTER_PORT": "29400"}
    words = [*exec_each(), str(GOING_ON), "--backend", backend, "--steps", "20"]
    command = mpi_nodes.mpiexec(TWO_AND_TWO, words, master)
    assert ended(command) == 0, command.said()
    found = mpi_nodes.reports()
    assert len(found) == 4
    for report in found:
        assert (report["outcome"], report["findings"]) == ("ok", []), command.said()
    check_nothing_is_left(mpi_nodes.nodes)


def test_ended_from_outside(mpi_nodes: MpiNodes) -> None:
    """mpiexec is told to end: nobody is to blame, and nothing stays on any node."""
    here = mpi_nodes.nodes.directory / "here"
    here.mkdir()
    words = [*exec_each(), str(GOING_ON), "--backend", "mpi", "--here", str(here)]
    command = mpi_nodes.mpiexec(TWO_AND_TWO, words)
    until_s = time.monotonic() + LIMIT_S
    while len(list(here.iterdir())) < 4:
        assert command.poll() is None, command.said()
        assert time.monotonic() < until_s, command.said()
        time.sleep(0.05)
    command.send_signal(signal.SIGTERM)
    assert ended(command) != 0
    check_nothing_is_left(mpi_nodes.nodes)
    for report in mpi_nodes.reports():
        assert report["outcome"] == "interrupted", (report["findings"], command.said())
