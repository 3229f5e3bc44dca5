"""Jobs of which not all nodes come: those that did say who is missed, each of them, and end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.nodes import Nodes
from tests.support.on_nodes import (
    Job,
    Launch,
    Layout,
    check_nothing_is_left,
    directory_on,
    needs_one_verdict,
)

pytestmark = [pytest.mark.root, pytest.mark.timeout(240), needs_one_verdict]
GOING_ON = Path(__file__).parents[1] / "ranks" / "scripts" / "going_on.py"
PROGRAM = [str(GOING_ON), "--steps", "5"]
LIMIT_S = 120.0


def start(nodes: Nodes, launch: Launch, *numbers: int) -> Job:
    commands = [launch.start_on(nodes, number, PROGRAM) for number in numbers]
    return Job(commands, [directory_on(nodes[number]) for number in numbers])


def test_one_of_three_nodes_never_comes(make_nodes: Callable[[int], Nodes]) -> None:
    """Its name nobody knows; those of the others are said, on each of them."""
    nodes = make_nodes(3)
    launch = Launch(Layout((1, 1, 1)), ("--hang-timeout", "12", "--notice-after", "2"))
    ended = start(nodes, launch, 0, 1).finish(LIMIT_S)
    for done in ended:
        assert (done.report["outcome"], done.exit_code) == ("join_timeout", 93), done.explain()
        message = done.errors[0]["message"]
        assert "2 of 3 nodes have come (node0, node1), and 1 more has not" in message, message
        assert not done.errors[0]["proven"]
        assert done.errors[0]["culprits"] == []
    check_nothing_is_left(nodes)


@pytest.mark.long
def test_the_node_of_the_store_never_comes(make_nodes: Callable[[int], Nodes]) -> None:
    nodes = make_nodes(2)
    launch = Launch(Layout((1, 1)), ("--hang-timeout", "6"))
    (done,) = start(nodes, launch, 1).finish(LIMIT_S)
    assert (done.report["outcome"], done.exit_code) == ("join_timeout", 93), done.explain()
    message = done.errors[0]["message"]
    assert "1 of 2 nodes has come (node1), and 1 more has not" in message, message
    assert "this node has met nobody" in message, message
    check_nothing_is_left(nodes)


@pytest.mark.long
def test_a_node_that_comes_late(make_nodes: Callable[[int], Nodes]) -> None:
    """The twin: it is missed, that is said, and it comes."""
    nodes = make_nodes(2)
    launch = Launch(Layout((1, 1)), ("--hang-timeout", "60", "--notice-after", "2"))
    job = start(nodes, launch, 0)
    until_s = time.monotonic() + LIMIT_S
    while "1 of 2 nodes has come (node0); no rank starts" not in job.said():
        assert time.monotonic() < until_s, job.said()
        time.sleep(0.1)
    job.add(launch.start_on(nodes, 1, PROGRAM), directory_on(nodes[1]))
    for done in job.finish(LIMIT_S):
        assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
        assert done.report["findings"] == [], done.explain()
    check_nothing_is_left(nodes)
