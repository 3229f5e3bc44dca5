"""The run of all nodes, looked at from one that is not the head: the app in a real terminal there,
and the commands, also before the nodes have met; nothing is sent while nobody looks, and a lost
head is said in one sentence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from distdebug.record.requests.control import ControlError, ask
from distdebug.record.runs.job_view import JobView
from tests.e2e.test_nodes_actions import once_it_is_known
from tests.support import runs
from tests.support.forked_nodes import ForkedNodes
from tests.support.nodes import Node, Nodes
from tests.support.on_nodes import Launch, Layout, check_nothing_is_left, needs_one_verdict
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
    print("rank", rank, "says goodbye", flush=True)
    if (here / "well").exists():
        return
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
    is the head. `extra` is of the environment."""

    def __init__(
        self, nodes: Nodes, forked: ForkedNodes, *flags: str, extra: Mapping[str, str] | None = None
    ) -> None:
        self.nodes = nodes
        self.here = nodes.directory / "here"
        self.here.mkdir()
        script = nodes.directory / "train.py"
        script.write_text(PROGRAM.format(here=str(self.here)))
        layout = Layout((1,) * len(nodes))
        self.commands: list[Command] = forked.start(
            nodes, layout, [str(script)], ("--hang-timeout", "60", *flags), extra
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

    def goes_well(self) -> None:
        (self.here / "well").touch()
        (self.here / "go").touch()

    def finish(self) -> list[runs.Run]:
        return [command.finish(LIMIT_S) for command in self.commands]


def app_on(node: Node, directory: Path) -> Terminal:
    """`distdebug tui` on that node."""
    words = [*node.entered, str(runs.DISTDEBUG), "tui", str(directory)]
    return Terminal(words, node.directory, extra={"TMPDIR": "/tmp"})


def shows_both(terminal: Terminal, going: Going) -> None:
    """The app does, each with the line that it is at."""
    terminal.until("LIVE", "2 ranks")
    going.until(lambda: terminal.text.count("train.py:") == 2, "both ranks have a line")


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
        shows_both(terminal, going)
        terminal.press("S")
        terminal.until("Take the stacks of all ranks now?")
        terminal.press("y")
        terminal.until("took the stacks of 2 of 2 ranks")
        terminal.press("s")
        terminal.until("MainThread of ranks 0,1")
        going.goes_wrong()
        terminal.press("o")
        terminal.until("MISMATCH", "▸ ranks 0,1", "broadcast(src=0, float32[4])")
        terminal.until("ENDED", "exit code 91")
        terminal.press("q")
        terminal.until("CODE 0")
    for done in going.finish():
        assert (done.report["outcome"], done.exit_code) == ("op_mismatch", 91), done.explain()
    assert not (directory / "job").exists()
    check_nothing_is_left(nodes)


def test_commands_on_another_node_show_all_ranks_and_nobody_is_told_afterwards(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    nodes = make_nodes(2)
    going = Going(nodes, forked_nodes)
    directory = going.commands[1].directory
    for rank, command in enumerate(going.commands):
        out = command.directory / "logs" / f"{rank}.out"
        going.until(lambda out=out: out.exists() and out.read_text(), "it is kept")  # type: ignore[misc]
    assert not (directory / "job").exists()  # nobody has looked: nothing was sent
    shown = asked(nodes[1], "stacks", str(directory))
    assert "MainThread of ranks 0,1" in shown, shown
    shown = asked(nodes[1], "report", str(directory))
    assert "RUNNING" in shown, shown
    assert "rank 0 on node0; rank 1 on node1" in shown, shown
    assert "this is what the head (node0) has on record now" in " ".join(shown.split()), shown
    assert f"{directory}/job" not in shown, shown
    shown = asked(nodes[1], "logs", str(directory))
    assert "[rank 0] rank 0 says hello" in shown, shown
    assert "[rank 1] rank 1 says hello" in shown, shown
    going.until(lambda: not (directory / "job").exists(), "nobody looks any more")

    view = JobView(directory)
    view.wait(LIMIT_S)
    assert view.sentence == ""
    said = once_it_is_known(view.path, "break", 0)  # of the head's own rank
    assert "rank 0" in said, said
    while "is at a breakpoint" not in said:
        with pytest.raises(ControlError) as refusal:
            ask(view.path, "break", {"rank": 0})
        said = str(refusal.value)
    assert ask(view.path, "continue", {"rank": 0}) == "rank 0 goes on"
    with pytest.raises(ControlError, match="it can"):
        ask(view.path, "fly", {})
    view.close()
    going.goes_wrong()
    for done in going.finish():
        assert (done.report["outcome"], done.exit_code) == ("op_mismatch", 91), done.explain()
    assert not (directory / "job").exists()
    check_nothing_is_left(nodes)


@needs_tmux
def test_a_head_that_is_lost_is_said_in_the_app_which_shows_what_it_has(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    nodes = make_nodes(2)
    going = Going(nodes, forked_nodes)
    directory = going.commands[1].directory
    with app_on(nodes[1], directory) as terminal:
        shows_both(terminal, going)
        nodes[0].power_off()
        terminal.until("ENDED", "NODE LOST, exit code 94")
        said = "what it had told is shown"  # which the screen breaks into lines
        going.until(lambda: said in " ".join(terminal.text.split()), said)
        rows = [row for row in terminal.text.splitlines() if "ended" in row and "train.py:" in row]
        assert len(rows) == 2, terminal.text
        terminal.press("q")
        terminal.until("CODE 0")
    done = going.commands[1].finish(LIMIT_S)
    assert (done.report["outcome"], done.exit_code) == ("node_lost", 94), done.explain()
    assert not (directory / "job").exists()
    check_nothing_is_left([nodes[1]])


@pytest.mark.long
@pytest.mark.parametrize("outcome", ["ok", "op_mismatch"])
def test_logs_of_all_ranks_are_followed_on_another_node(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes, outcome: str
) -> None:
    nodes = make_nodes(2)
    going = Going(nodes, forked_nodes)
    directory = going.commands[1].directory
    following = nodes[1].start([str(runs.DISTDEBUG), "logs", "-f", str(directory)])
    for rank in (0, 1):
        hello = f"[rank {rank}] rank {rank} says hello"
        going.until(lambda hello=hello: hello in following.stdout.read_text(), hello)  # type: ignore[misc]
    if outcome == "ok":
        going.goes_well()
    else:
        going.goes_wrong()
    for done in going.finish():
        assert done.report["outcome"] == outcome, done.explain()
    assert following.wait(LIMIT_S) == 0, following.said()
    check_followed(following.said())
    assert not (directory / "job").exists()
    check_nothing_is_left(nodes)


def check_followed(said: str) -> None:
    """All that the ranks have printed, each line once."""
    for rank in (0, 1):
        for word in ("hello", "goodbye"):
            assert said.count(f"[rank {rank}] rank {rank} says {word}\n") == 1, said


@pytest.mark.long
def test_logs_are_followed_from_before_the_nodes_have_met(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    """At first there is this node's run alone, and then that of all."""
    nodes = make_nodes(2)
    directory = nodes[1].directory / "run"
    wait = f"until [ -e {directory}/run.json ]; do sleep 0.01; done; exec {runs.DISTDEBUG}"
    following = nodes[1].start(["sh", "-c", f"{wait} logs -f {directory}"])
    going = Going(nodes, forked_nodes)
    for rank in (0, 1):
        hello = f"[rank {rank}] rank {rank} says hello"
        going.until(lambda hello=hello: hello in following.stdout.read_text(), hello)  # type: ignore[misc]
    going.goes_well()
    for done in going.finish():
        assert (done.report["outcome"], done.report["findings"]) == ("ok", []), done.explain()
    assert following.wait(LIMIT_S) == 0, following.said()
    check_followed(following.said())
    check_nothing_is_left(nodes)


@needs_tmux
@pytest.mark.long
def test_a_run_with_the_app_on_a_node_whose_head_is_another_one(
    make_nodes: Callable[[int], Nodes], tmp_path: Path
) -> None:
    """`run --tui` there: the app opens before the nodes have met, and shows all ranks when they
    have; a fault of the head's plan happens at a key."""
    nodes = make_nodes(2)
    here = tmp_path / "here"
    here.mkdir()
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(here=str(here)))
    layout = Layout((1, 1))
    fault = "kill(rank=0) @ all_reduce#99999999"
    head = Launch(layout, ("--inject", fault)).start_on(nodes, 0, [str(script)])
    launch = Launch(layout, ("--tui",))
    words = [*nodes[1].entered, str(runs.DISTDEBUG), *launch.words(nodes, 1, [str(script)])]
    with Terminal(words, nodes[1].directory, extra=launch.environment()) as terminal:
        terminal.until("LIVE", "2 ranks", " 0     ", " 1     ", limit_s=LIMIT_S)
        until_s = time.monotonic() + LIMIT_S
        while terminal.text.count("train.py:") < 2:
            assert time.monotonic() < until_s, terminal.text
        terminal.press("I")
        terminal.until("Which fault of the plan is to happen now?", fault)
        terminal.press("Enter")
        terminal.until("ENDED", "RANK DIED, exit code 94", limit_s=LIMIT_S)
        terminal.press("q")
        terminal.until("CODE 94", limit_s=LIMIT_S)
    assert head.wait(LIMIT_S) == 94, head.said()
    check_nothing_is_left(nodes)
