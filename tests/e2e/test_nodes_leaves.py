"""What can be done to ranks whose node speaks to the head through another one, and from there: as
on any node. Of five nodes some do from three on; see `test_nodes_tree` for what befalls nodes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from distdebug.record.requests.breakpoints import any_stop
from distdebug.record.requests.control import ask
from distdebug.record.runs.job_view import JobView
from tests.e2e.test_nodes_actions import stands
from tests.e2e.test_nodes_app import LIMIT_S, Going, app_on, asked
from tests.support import runs
from tests.support.forked_nodes import ForkedNodes
from tests.support.nodes import Node, Nodes
from tests.support.on_nodes import check_nothing_is_left, needs_one_verdict
from tests.support.tmux import needs_tmux

pytestmark = [
    pytest.mark.root,
    pytest.mark.long,
    pytest.mark.timeout(300),
    needs_one_verdict,
]
NODES, FAN_IN = 5, 2


class Grown(Going):
    """A job of five nodes with a rank each, whose tree is made: `leaves` speak to the head through
    others."""

    def __init__(self, nodes: Nodes, forked: ForkedNodes, *flags: str) -> None:
        super().__init__(nodes, forked, *flags, extra={"DISTDEBUG_FAN_IN": str(FAN_IN)})
        self.until(lambda: len(self._below()) == NODES - 1 - FAN_IN, "the tree is made")
        self.leaves = self._below()
        self.head = self.commands[0].directory

    def _below(self) -> list[int]:
        return [
            number
            for number, command in enumerate(self.commands)
            if (events := command.directory / "events.jsonl").exists()
            and "is spoken to through" in events.read_text()
        ]

    def ends_as(self, outcome: str, code: int) -> list[runs.Run]:
        ended = self.finish()
        for done in ended:
            assert (done.report["outcome"], done.exit_code) == (outcome, code), done.explain()
        check_nothing_is_left(self.nodes)
        return ended


def typed(node: Node, lines: str, *words: str) -> str:
    """What `distdebug` prints there that is given these lines."""
    command = " ".join([str(runs.DISTDEBUG), *words])
    return node.run("sh", "-c", f"printf '{lines}' | {command}")


def test_a_rank_of_a_leaf_is_asked_of_the_head(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    nodes = make_nodes(NODES)
    grown = Grown(nodes, forked_nodes)
    head, rank = grown.head, grown.leaves[0]
    stands(head, rank)
    assert ask(head, "stacks", {}) == f"took the stacks of {NODES} of {NODES} ranks"
    stacks = json.loads((head / "stacks" / "stacks.json").read_text())
    (main,) = [one for one in stacks["threads"] if one["name"] == "MainThread"]
    assert main["ranks"] == list(range(NODES))
    said = typed(nodes[0], "p 40 + 2\\n", "attach", str(head), "--rank", str(rank))
    assert "42" in said, said
    stands(head, rank)
    assert ask(head, "continue", {"rank": rank}) == f"rank {rank} goes on"
    shown = asked(nodes[0], "logs", str(head))
    for one in range(NODES):
        assert f"[rank {one}] rank {one} says hello" in shown, shown
    grown.goes_wrong()
    grown.ends_as("op_mismatch", 91)


@needs_tmux
def test_the_run_of_all_is_seen_and_acted_on_from_a_leaf(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    nodes = make_nodes(NODES)
    grown = Grown(nodes, forked_nodes)
    leaf, other = grown.leaves
    directory = grown.commands[leaf].directory
    with app_on(nodes[leaf], directory) as terminal:
        grown.until(lambda: terminal.text.count("train.py:") == NODES, "all ranks have a line")
        terminal.press("S")
        terminal.until("Take the stacks of all ranks now?")
        terminal.press("y")
        terminal.until(f"took the stacks of {NODES} of {NODES} ranks")
        view = JobView(directory)
        view.wait(LIMIT_S)
        assert view.sentence == ""
        for rank in (other, 0):
            stands(view.path, rank)
            assert ask(view.path, "continue", {"rank": rank}) == f"rank {rank} goes on"
        view.close()
        stands(grown.head, other)
        grown.until(lambda: any_stop(directory), "it is not told who stands elsewhere")
        said = typed(
            nodes[leaf], "p 40 + 2\\n", "attach", str(directory / "job"), "--rank", str(other)
        )
        assert "42" in said, said
        shown = asked(nodes[leaf], "logs", str(directory))
        for one in range(NODES):
            assert f"[rank {one}] rank {one} says hello" in shown, shown
        grown.goes_wrong()
        terminal.press("o")
        terminal.until("op_mismatch", "ENDED", "exit code 91")
        terminal.press("q")
        terminal.until("CODE 0")
    grown.ends_as("op_mismatch", 91)
    assert not (directory / "job").exists()


def test_a_fault_of_the_heads_plan_in_a_rank_of_a_leaf(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    nodes = make_nodes(NODES)
    rank = NODES - 1
    text = f"kill(rank={rank}) @ 9999s"
    grown = Grown(nodes, forked_nodes, "--inject", text)
    assert "asked for now" in ask(grown.head, "inject", {"fault": 0})
    for done in grown.ends_as("rank_died", 94):
        assert done.errors[0]["culprits"] == [rank], done.explain()
        assert done.errors[0]["injected"] == text, done.explain()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_on_a_leaf_ends_all(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes, number: signal.Signals
) -> None:
    nodes = make_nodes(NODES)
    grown = Grown(nodes, forked_nodes)
    grown.commands[grown.leaves[1]].process.send_signal(number)
    for done in grown.ends_as("interrupted", 128 + number):
        assert done.errors == [], done.explain()
