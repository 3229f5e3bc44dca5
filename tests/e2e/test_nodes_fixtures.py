"""Every program below fixtures/scripts whose ranks a launcher starts, spread over nodes: on each of
them the verdict is the one that fixtures/expected says for one node."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support import fixture_table, runs
from tests.support.forked_nodes import ForkedNodes
from tests.support.nodes import Nodes
from tests.support.on_nodes import (
    ON_TCP,
    Layout,
    check_nothing_is_left,
    check_who_was_where,
    needs_one_verdict,
    run_on_nodes,
)

from .test_fixtures import (
    EXPECTED,
    FIXTURES,
    UNLIKE_ON_TCP,
    check_verdict,
    chosen,
)

MARKS = (pytest.mark.root, needs_one_verdict, pytest.mark.timeout(180))

BACKENDS: dict[str, Mapping[str, str]] = {
    "gloo": {},
    "tcp": {"PYTHONPATH": str(ON_TCP), "ON_TCP_EVERYWHERE": "1"},
}
SHORT = {
    "died_sigkill",
    "exit_os_exit_zero",
    "init_destroy_init",
    "object_collectives",
    "op_rank0_broadcast",
}
SHORT_ON_TCP = {"deadlock_two_groups"}
BY_COMMAND = {
    "ddp_transformer",
    "deadlock_recv_recv",
    "died_segv",
    "dtype_autocast",
    "exception_train_step",
    "exit_one_step_fewer",
    "join_never_calls_init",
    "missing_gil",
    "missing_stopped",
    "nan_one_rank",
    "op_rank0_broadcast",
    "p2p_size",
}
"""Also as a user would start them, by torchrun's flags on each node: some of each exit code."""
BELOW_EXEC = {"ddp_no_sync", "op_rank0_broadcast"}
ON_ONE_NODE = {
    "exit_dropped_isend": "its ranks look for each other's process",
    "exit_store_host": "its ranks look for each other's process",
    "join_exits_before": "it is for who is second on its node",
    "stalled_nobody_serves": "its ranks meet at the loopback address",
    "stalled_not": "its ranks meet at the loopback address",
}
WITHIN_A_NODE = {
    "worlds_of_their_own": "two ranks meet at the loopback address",
}
"""Not with each rank on a node of its own."""
ENDS_IN_WORLDS_OF_ONE = {"worlds_of_their_own"}
"""The report is of the newest world, which has one rank."""
SHARED_FILES = {"missing_file_lock", "op_save_barrier_rank0", "rank0_io_between_barriers"}
"""Their ranks share files, which on nodes are on a file system that all have."""
EVERY = 3
"""So many programs for one that also runs with each rank on a node of its own."""


def programs(short: set[str], without: Mapping[str, str], every: int = 1) -> list[Any]:
    names = [name for name in EXPECTED if fixture_table.expected(name)["command"] == "run"]
    names = [
        name for name in names if name not in without and fixture_table.expected(name)["nproc"] > 1
    ]
    return [on_nodes(name, short) for name in names[::every]]


def on_nodes(name: str, short: set[str]) -> Any:
    """Long if not `short`."""
    return pytest.param(name, marks=[*MARKS, *chosen(name, short).marks])


@pytest.mark.parametrize("name", programs(SHORT, ON_ONE_NODE))
def test_two_nodes(
    name: str, make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    check(name, make_nodes(2), forked_nodes, "gloo")


@pytest.mark.parametrize("name", programs(SHORT_ON_TCP, ON_ONE_NODE | UNLIKE_ON_TCP))
def test_two_nodes_on_tcp(
    name: str, make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    check(name, make_nodes(2), forked_nodes, "tcp")


@pytest.mark.parametrize("name", programs(set(), ON_ONE_NODE | WITHIN_A_NODE, EVERY))
def test_a_node_for_each_rank(
    name: str, make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    check(name, make_nodes(fixture_table.expected(name)["nproc"]), forked_nodes, "gloo")


@pytest.mark.parametrize(
    "name", programs(set(), ON_ONE_NODE | WITHIN_A_NODE | UNLIKE_ON_TCP, EVERY)
)
def test_a_node_for_each_rank_on_tcp(
    name: str, make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    check(name, make_nodes(fixture_table.expected(name)["nproc"]), forked_nodes, "tcp")


@pytest.mark.parametrize("name", [on_nodes(name, set()) for name in sorted(BY_COMMAND)])
def test_by_command(name: str, make_nodes: Callable[[int], Nodes]) -> None:
    nodes = make_nodes(2)
    check_all(
        name,
        nodes,
        Layout.over(2, fixture_table.expected(name)["nproc"]),
        run_on_nodes(nodes, name),
    )


@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
@pytest.mark.parametrize("name", [on_nodes(name, set()) for name in sorted(BELOW_EXEC)])
def test_torchrun_below_exec(
    name: str, rendezvous: str, make_nodes: Callable[[int], Nodes]
) -> None:
    """The launcher is the program's own, and not ours: the supervisors meet all the same."""
    nodes = make_nodes(2)
    ended = run_on_nodes(nodes, name, rendezvous=rendezvous, below_exec=True)
    check_all(name, nodes, Layout.over(2, fixture_table.expected(name)["nproc"]), ended)


def check(name: str, nodes: Nodes, forked: ForkedNodes, backend: str) -> None:
    expected = fixture_table.expected(name)
    layout = Layout.over(len(nodes), expected["nproc"])
    program = [str(FIXTURES / "scripts" / expected["script"]), *expected["script_args"]]
    extra = dict(BACKENDS[backend])
    if name in SHARED_FILES:
        extra["TMPDIR"] = str(nodes.directory)
    check_all(name, nodes, layout, forked.run(nodes, layout, program, expected["args"], extra))


def check_all(name: str, nodes: Nodes, layout: Layout, ended: list[runs.Run]) -> None:
    """On every node the same verdict, and nothing is left on any."""
    for run in ended:
        check_verdict(fixture_table.expected(name), run)
    if name not in ENDS_IN_WORLDS_OF_ONE:
        check_who_was_where(layout, ended)
    check_nothing_is_left(nodes)


def test_the_chosen_ones_exist() -> None:
    named = SHORT | SHORT_ON_TCP | BY_COMMAND | BELOW_EXEC | SHARED_FILES | ENDS_IN_WORLDS_OF_ONE
    assert set(EXPECTED) >= named | ON_ONE_NODE.keys() | WITHIN_A_NODE.keys()
    assert os.path.exists(ON_TCP / "sitecustomize.py")
