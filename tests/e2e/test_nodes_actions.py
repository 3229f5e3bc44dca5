"""What can be done to the ranks of all nodes from where the head is, over its control socket."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distdebug.record.requests.control import ControlError, ask
from tests.support import runs
from tests.support.forked_nodes import ForkedNodes
from tests.support.nodes import Nodes
from tests.support.on_nodes import Layout, check_nothing_is_left, needs_one_verdict

pytestmark = [pytest.mark.root, pytest.mark.timeout(240), needs_one_verdict]
GOING_ON = Path(__file__).parents[1] / "ranks" / "scripts" / "going_on.py"
LIMIT_S = 90.0


def once_it_is_known(directory: Path, action: str, rank: int) -> str:
    """What the supervisor says to that, which may not have looked at the rank yet."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        try:
            return ask(directory, action, {"rank": rank})
        except ControlError as refusal:
            if f"there is no rank {rank} yet" not in str(refusal) or time.monotonic() > until_s:
                raise
        time.sleep(0.05)


def stands(directory: Path, rank: int) -> None:
    """Have a rank stop at a breakpoint, and wait until it has."""
    until_s = time.monotonic() + LIMIT_S
    said = once_it_is_known(directory, "break", rank)
    while "is at a breakpoint" not in said:
        assert time.monotonic() < until_s, said
        with pytest.raises(ControlError) as refusal:
            ask(directory, "break", {"rank": rank})
        said = str(refusal.value)


def test_a_rank_of_another_node_stops_goes_on_and_shows_its_stack(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    nodes = make_nodes(2)
    here = nodes.directory / "here"
    here.mkdir()
    fault = ("--inject", "kill(rank=1) @ 9999s")
    program = [str(GOING_ON), "--here", str(here)]
    commands = forked_nodes.start(nodes, Layout((1, 1)), program, ("--hang-timeout", "6", *fault))
    until_s = time.monotonic() + LIMIT_S
    while len(list(here.iterdir())) < 2:
        assert time.monotonic() < until_s, commands[0].stderr.read_text()
        time.sleep(0.05)
    head, other = (command.directory for command in commands)

    said = once_it_is_known(head, "break", 1)
    assert "rank 1" in said, said
    assert "breakpoint" in said or "will stop" in said, said
    with pytest.raises(ControlError, match="node0"):
        ask(other, "break", {"rank": 0})
    while "is at a breakpoint" not in said:
        assert time.monotonic() < until_s, said
        with pytest.raises(ControlError) as refusal:
            ask(head, "break", {"rank": 1})
        said = str(refusal.value)
    time.sleep(9)  # longer than the hang timeout: who waits for a rank at a breakpoint is not late
    assert ask(head, "stacks", {}) == "took the stacks of 2 of 2 ranks"
    stacks = json.loads((head / "stacks" / "stacks.json").read_text())
    assert "going_on.py" in json.dumps(stacks)
    shown = nodes[0].run(str(runs.DISTDEBUG), "stacks", str(head))
    assert "going_on.py" in shown
    said = nodes[0].run(
        "sh", "-c", f"printf 'p 40 + 2\\n' | {runs.DISTDEBUG} attach {head} --rank 1"
    )
    assert "42" in said, said
    stands(head, 1)
    assert ask(head, "continue", {"rank": 1}) == "rank 1 goes on"
    with pytest.raises(ControlError, match="no rank is at a breakpoint"):
        ask(head, "continue", {})
    assert "asked for now" in ask(head, "inject", {"fault": 0})
    for done in (command.finish(LIMIT_S) for command in commands):
        assert (done.report["outcome"], done.exit_code) == ("rank_died", 94), done.explain()
        assert done.errors[0]["culprits"] == [1], done.explain()
        assert done.errors[0]["injected"] == fault[1], done.explain()
    check_nothing_is_left(nodes)


@pytest.mark.parametrize("number", [0, 1])
def test_stop_asked_of_one_node_ends_all(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes, number: int
) -> None:
    nodes = make_nodes(2)
    here = nodes.directory / "here"
    here.mkdir()
    commands = forked_nodes.start(nodes, Layout((1, 1)), [str(GOING_ON), "--here", str(here)])
    until_s = time.monotonic() + LIMIT_S
    while len(list(here.iterdir())) < 2:
        assert time.monotonic() < until_s, commands[0].stderr.read_text()
        time.sleep(0.05)
    ask(commands[number].directory, "stop", {})
    for done in (command.finish(LIMIT_S) for command in commands):
        assert (done.report["outcome"], done.errors) == ("interrupted", []), done.explain()
    check_nothing_is_left(nodes)


WAITS = """
import pathlib, sys, time
from datetime import timedelta
import torch, torch.distributed as dist

here = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo", timeout=timedelta(seconds={timeout_s}))
values, stop = torch.ones(4), torch.zeros(1)
while not stop.item():
    dist.all_reduce(values)
    (here / str(dist.get_rank())).touch()
    stop.fill_((here / "go").exists())
    dist.broadcast(stop, 0)
dist.destroy_process_group()
"""
TIMEOUT_S = 10


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_waits_for_one_that_stands_on_another_node(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes, rank: int
) -> None:
    """It does not run into the timeout of its group, wherever the two of them are."""
    nodes = make_nodes(3)
    here = nodes.directory / "here"
    here.mkdir()
    script = nodes.directory / "train.py"
    script.write_text(WAITS.format(timeout_s=TIMEOUT_S))
    program = [str(script), str(here)]
    commands = forked_nodes.start(nodes, Layout((1, 1, 1)), program, ("--hang-timeout", "60"))
    until_s = time.monotonic() + LIMIT_S
    while len(list(here.iterdir())) < 3:
        assert time.monotonic() < until_s, commands[0].stderr.read_text()
        time.sleep(0.05)
    head = commands[0].directory
    stands(head, rank)
    time.sleep(1.5 * TIMEOUT_S)  # for which it stands
    assert ask(head, "continue", {"rank": rank}) == f"rank {rank} goes on"
    (here / "go").touch()
    for done in (command.finish(LIMIT_S) for command in commands):
        assert (done.report["outcome"], done.report["findings"]) == ("ok", []), done.explain()
    check_nothing_is_left(nodes)
