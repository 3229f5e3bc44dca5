"""Several nodes under each of torchelastic's ways to bring them together: a static rendezvous, c10d
with restarts, and a node that joins a job that runs already; also where one speaks to the head
through another one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.nodes import Nodes
from tests.support.on_nodes import (
    Launch,
    Layout,
    check_nothing_is_left,
    check_who_was_where,
    directory_on,
    needs_one_verdict,
)

pytestmark = [pytest.mark.root, pytest.mark.long, pytest.mark.timeout(300)]
GOING_ON = str(Path(__file__).parents[1] / "ranks" / "scripts" / "going_on.py")
TWO_AND_TWO = Layout((2, 2))
STEPS = ["--steps", "20"]
LATE_IS_FINE = ("--rdzv-conf", "last_call_timeout=2")
"""With fewer nodes than could be, begin after so many seconds."""
OWN_STORE = (("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),)
"""In torch 2.13 ranks that share their agents' store do not come together a second time, without
distdebug neither: who joins later waits for an address that nobody tells anew, and gloo takes those
of the first attempt."""
LIMIT_S = 200.0
ONE_EACH = Layout((1, 1, 1, 1))
"""The third node that comes to the head speaks to it through the first."""


def check_same(ended: list[runs.Run], outcome: str, exit_code: int, culprits: set[int]) -> None:
    for done in ended:
        assert (done.report["outcome"], done.exit_code) == (outcome, exit_code), done.explain()
        assert set(done.errors[0]["culprits"]) == culprits, done.explain()


@needs_one_verdict
def test_static(make_nodes: Callable[[int], Nodes]) -> None:
    nodes = make_nodes(2)
    launch = Launch(TWO_AND_TWO, rendezvous="static")
    ended = launch.start(nodes, [GOING_ON, "--wrong", "2"]).finish(LIMIT_S)
    check_same(ended, "op_mismatch", 91, {2})
    check_who_was_where(TWO_AND_TWO, ended)
    check_nothing_is_left(nodes)


@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_without_a_fault(make_nodes: Callable[[int], Nodes], rendezvous: str) -> None:
    nodes = make_nodes(2)
    launch = Launch(TWO_AND_TWO, rendezvous=rendezvous)
    for done in launch.start(nodes, [GOING_ON, *STEPS]).finish(LIMIT_S):
        assert (done.report["findings"], done.exit_code) == ([], 0), done.explain()
    check_nothing_is_left(nodes)


@needs_one_verdict
def test_a_restart_that_helps(make_nodes: Callable[[int], Nodes]) -> None:
    """The first attempt fails, the second does not: a warning, on both nodes, of the same rank."""
    nodes = make_nodes(2)
    launch = Launch(TWO_AND_TWO, restarts=2, extra=OWN_STORE)
    program = [GOING_ON, *STEPS, "--fails", "2", "--fails-until-attempt", "1"]
    ended = launch.start(nodes, program).finish(LIMIT_S)
    for done in ended:
        assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
        assert done.errors == [], done.explain()
        first = done.report["findings"][0]
        assert (first["kind"], first["culprits"]) == ("rank_exception", [2]), done.explain()
    check_who_was_where(TWO_AND_TWO, ended)
    check_nothing_is_left(nodes)


@needs_one_verdict
def test_restarts_that_do_not_help(make_nodes: Callable[[int], Nodes]) -> None:
    """The verdict is of the last attempt."""
    nodes = make_nodes(2)
    launch = Launch(TWO_AND_TWO, restarts=1, extra=OWN_STORE)
    ended = launch.start(nodes, [GOING_ON, *STEPS, "--fails", "2"]).finish(LIMIT_S)
    check_same(ended, "rank_exception", 1, {2})
    check_nothing_is_left(nodes)


@needs_one_verdict
def test_a_node_that_joins_late(make_nodes: Callable[[int], Nodes]) -> None:
    """torchelastic begins anew with it, as a world of its own; the bug is in that one alone."""
    nodes = make_nodes(2)
    here = nodes.directory / "here"
    here.mkdir()
    launch = Launch(TWO_AND_TWO, LATE_IS_FINE, nnodes="1:2", restarts=3, extra=OWN_STORE)
    program = [GOING_ON, "--here", str(here), "--wrong", "3"]
    job = Launch(Layout((2,)), LATE_IS_FINE, nnodes="1:2", restarts=3, extra=OWN_STORE).start(
        nodes, program
    )
    for rank in (0, 1):
        job.wait_for(here / str(rank))
    assert [(here / str(rank)).read_text() for rank in (0, 1)] == ["2", "2"]
    job.add(launch.start_on(nodes, 1, program), directory_on(nodes[1]))
    ended = job.finish(LIMIT_S)
    check_same(ended, "op_mismatch", 91, {3})
    assert [(here / str(rank)).read_text() for rank in range(4)] == ["4"] * 4
    check_nothing_is_left(nodes)


@needs_one_verdict
def test_a_node_that_joins_late_and_nothing_is_wrong(make_nodes: Callable[[int], Nodes]) -> None:
    """The twin: of the ranks that were ended for the new world nothing is said."""
    nodes = make_nodes(2)
    here = nodes.directory / "here"
    here.mkdir()
    launch = Launch(TWO_AND_TWO, LATE_IS_FINE, nnodes="1:2", restarts=3, extra=OWN_STORE)
    program = [GOING_ON, "--here", str(here)]
    job = Launch(Layout((2,)), LATE_IS_FINE, nnodes="1:2", restarts=3, extra=OWN_STORE).start(
        nodes, program
    )
    job.wait_for(here / "1")
    job.add(launch.start_on(nodes, 1, program), directory_on(nodes[1]))
    for rank in (2, 3):
        job.wait_for(here / str(rank), LIMIT_S)
    job.commands[0].send_signal(signal.SIGTERM)
    for done in job.finish(LIMIT_S):
        assert done.report["outcome"] == "interrupted", done.explain()
        assert done.report["findings"] == [], done.explain()
    check_nothing_is_left(nodes)
