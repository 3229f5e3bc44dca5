"""The run of all nodes, looked at from one that is not the head: the app in a real terminal there,
and the commands; nothing is sent while nobody looks, and a lost head is said in one sentence."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.forked_nodes import ForkedNodes
from tests.support.nodes import Node, Nodes
from tests.support.on_nodes import Layout, check_nothing_is_left, needs_one_verdict
from tests.support.tmux import Terminal, needs_tmux
from tests.support.zygote import Command

pytestmark = [pytest.mark.root, pytest.mark.timeout(300), needs_one_verdict]
PROGRAM = """
import pathlib, time
import torch
import torch.distributed as dist

def step(tensor):
    dist.all_reduce(tensor)

def main():
    dist.init_process_group("gloo")
    tensor, here = torch.ones(4), pathlib.Path({here!r})
    rank, stop, number = dist.get_rank(), torch.zeros(1), 0
    print("rank", rank, "says hello", flush=True)
    while not stop:
        step(tensor)
        stop.fill_((here / "go").exists())
        dist.broadcast(stop, 0)
        time.sleep(0.01)
        number += 1
        if number == 5:
            (here / f"{{rank}}").touch()
    if rank == 0:
        dist.broadcast(tensor, 0)
    else:
        step(tensor)

if __name__ == "__main__":
    main()
"""
LIMIT_S = 90.0


class Going:
    """A job of so many nodes with a rank each, that calls until it is let go wrong; the first node
    is the head."""

    def __init__(self, nodes: Nodes, forked: ForkedNodes, *flags: str) -> None:
        self.nodes = nodes
        self.here = nodes.directory / "here"
        self.here.mkdir()
        script = nodes.directory / "train.py"
        script.write_text(PROGRAM.format(here=str(self.here)))
        layout = Layout((1,) * len(nodes))
        self.commands: list[Command] = forked.start(
            nodes, layout, [str(script)], ("--hang-timeout", "60", *flags)
        )
        for rank in range(len(nodes)):
            self.until((self.here / str(rank)).exists, f"rank {rank} calls")
        for command in self.commands[1:]:
            self.until((command.directory / "head.json").exists, "it has met its head")

    def until(self, condition: Callable[[], object], what: str) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until_s, f"{what}\n{self.commands[0].stderr.read_text()}"
            time.sleep(0.02)

    def goes_wrong(self) -> None:
        (self.here / "go").touch()

    def finish(self) -> list[runs.Run]:
        return [command.finish(LIMIT_S) for command in self.commands]


def app_on(node: Node, directory: Path) -> Terminal:
    """`distdebug tui` on that node."""
    words = [*node.entered, str(runs.DISTDEBUG), "tui", str(directory)]
    return Terminal(words, node.directory, extra={"TMPDIR": "/tmp"})


def asked(node: Node, *words: str) -> str:
    """What `distdebug` prints there."""
    return node.run(str(runs.DISTDEBUG), *words)


@needs_tmux
def test_the_app_on_another_node_shows_all_ranks(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    nodes = make_nodes(2)
    going = Going(nodes, forked_nodes)
    directory = going.commands[1].directory
    with app_on(nodes[1], directory) as terminal:
        terminal.until("LIVE", "2 ranks", "train.py:")
        terminal.press("S")
        terminal.until("Take the stacks of all ranks now?")
        terminal.press("y")
        terminal.until("took the stacks of 2 of 2 ranks")
        terminal.press("s")
        terminal.until("MainThread of ranks 0,1")
        going.goes_wrong()
        terminal.press("o")
        terminal.until("op_mismatch", "▸ rank 0", "broadcast(src=0")
        terminal.until("ENDED", "exit code 91")
        terminal.press("q")
        terminal.until("CODE 0")
    for done in going.finish():
        assert (done.report["outcome"], done.exit_code) == ("op_mismatch", 91), done.explain()
    assert not (directory / "job").exists()
    check_nothing_is_left(nodes)
