"""What becomes of a job of several nodes when one of them, or the network between them, fails; and
of nothing in particular when they do not. Started as a user does, by torchrun's flags on each."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support import runs
from tests.support.nodes import SECOND, Nodes
from tests.support.on_nodes import (
    PORT,
    Job,
    Launch,
    Layout,
    check_nothing_is_left,
    check_who_was_where,
    needs_one_verdict,
)

pytestmark = [pytest.mark.root, pytest.mark.long, pytest.mark.timeout(480)]
GOING_ON = Path(__file__).parents[1] / "ranks" / "scripts" / "going_on.py"
TWO_AND_TWO = Layout((2, 2))
LOST_WITHIN_S = 3.0
INTERRUPTED_S = 1.8
BUSY_S = 6.0
"""What a busy machine may take longer."""
ENDED_WITHIN_S = 60.0
"""torchrun takes up to half of it to end ranks that wait in a call."""


class Going:
    """A job of which all ranks make calls."""

    def __init__(self, nodes: Nodes, layout: Layout = TWO_AND_TWO, **how: object) -> None:
        self.nodes, self.layout = nodes, layout
        self.here = nodes.directory / "here"
        self.here.mkdir()
        launch = Launch(layout, ("--hang-timeout", "30"), **how)  # type: ignore[arg-type]
        self.job = launch.start(nodes, [str(GOING_ON), "--here", str(self.here)])
        for rank in range(layout.size):
            self.job.wait_for(self.here / str(rank))

    def ends(self, *, without: int = -1) -> dict[int, runs.Run]:
        """How each node's `distdebug` ended, but for that of a node that is gone."""
        here = [number for number in range(len(self.layout.ranks)) if number != without]
        commands = [self.job.commands[number] for number in here]
        directories = [self.job.directories[number] for number in here]
        found = Job(commands, directories).finish(ENDED_WITHIN_S)
        return dict(zip(here, found, strict=True))


def check_lost(done: runs.Run, culprits: set[int], node: str) -> None:
    """This node says so of the other."""
    assert (done.report["outcome"], done.exit_code) == ("node_lost", 94), done.explain()
    (finding,) = done.errors
    assert set(finding["culprits"]) == culprits, done.explain()
    assert node in finding["message"], finding
    assert finding["detected_after_s"] < LOST_WITHIN_S + BUSY_S, finding


@needs_one_verdict
def test_a_node_loses_its_power(make_nodes: Callable[[int], Nodes]) -> None:
    nodes = make_nodes(2)
    going = Going(nodes)
    began_s = time.monotonic()
    nodes[1].power_off()
    check_lost(going.ends(without=1)[0], {2, 3}, "node1")
    assert time.monotonic() - began_s < ENDED_WITHIN_S
    check_nothing_is_left([nodes[0]])


@needs_one_verdict
def test_a_supervisor_is_killed(make_nodes: Callable[[int], Nodes]) -> None:
    """Its warden ends its ranks: who sees their connections go is a victim."""
    nodes = make_nodes(2)
    going = Going(nodes)
    going.job.commands[1].send_signal(signal.SIGKILL)
    check_lost(going.ends(without=1)[0], {2, 3}, "node1")
    check_nothing_is_left(nodes)


@needs_one_verdict
def test_a_host_with_a_supervisor_for_each_rank_loses_its_power(
    make_nodes: Callable[[int], Nodes],
) -> None:
    """As under mpiexec, or of Slurm's tasks: all its ranks are the culprits, on each node."""
    nodes = make_nodes(2)
    here = nodes.directory / "here"
    here.mkdir()
    commands, directories = [], []
    for rank in range(4):
        node = nodes[rank // 2]
        directories.append(node.directory / f"run{rank}")
        given = {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2)}
        given |= {"MASTER_ADDR": "node0", "MASTER_PORT": str(PORT), "OMP_NUM_THREADS": "1"}
        words = [str(runs.DISTDEBUG), "exec", "--run-dir", str(directories[-1]), "--"]
        words += [sys.executable, str(GOING_ON), "--here", str(here)]
        commands.append(node.start(words, runs.environment({"TMPDIR": "/tmp", **given})))
    job = Job(commands, directories)
    for rank in range(4):
        job.wait_for(here / str(rank))
    nodes[1].power_off()
    for done in Job(commands[:2], directories[:2]).finish(ENDED_WITHIN_S):
        check_lost(done, {2, 3}, "node1")
    check_nothing_is_left([nodes[0]])


@needs_one_verdict
def test_all_of_a_node_is_killed(make_nodes: Callable[[int], Nodes]) -> None:
    """Its kernel still tells the others that its connections are closed."""
    nodes = make_nodes(2)
    going = Going(nodes)
    nodes[1].kill_everything()
    check_lost(going.ends(without=1)[0], {2, 3}, "node1")
    check_nothing_is_left(nodes)


@needs_one_verdict
@pytest.mark.parametrize("how", ["unplugged", "link down"])
def test_the_network_between_nodes_fails(make_nodes: Callable[[int], Nodes], how: str) -> None:
    """One side has lost a node, the other its head: it says so, and nothing waits for ever."""
    nodes = make_nodes(2)
    going = Going(nodes)
    if how == "unplugged":
        nodes[1].unplug()
    else:
        nodes[1].take_down()
    ends = going.ends()
    check_lost(ends[0], {2, 3}, "node1")
    assert ends[1].exit_code != 0
    assert ends[1].report["outcome"] != "ok", ends[1].explain()
    assert "node0" in ends[1].stderr
    check_nothing_is_left(nodes)


def test_a_short_interruption(make_nodes: Callable[[int], Nodes]) -> None:
    """The twin: shorter than what makes a node lost. The job goes on until it is told to end."""
    nodes = make_nodes(2)
    going = Going(nodes)
    nodes[1].unplug()
    time.sleep(INTERRUPTED_S)  # its length
    nodes[1].plug_in()
    time.sleep(LOST_WITHIN_S)  # in which something might be said
    assert all(command.poll() is None for command in going.job.commands), going.job.said()
    for command in going.job.commands:
        command.send_signal(signal.SIGTERM)
    for done in going.ends().values():
        assert done.report["outcome"] == "interrupted", done.explain()
        assert done.errors == [], done.explain()
    check_nothing_is_left(nodes)


@needs_one_verdict
def test_the_head_is_cut_off_from_all(make_nodes: Callable[[int], Nodes]) -> None:
    """The head has lost all others. Each of those has lost the head, and blames nobody else: two of
    them still reach each other, but not who judges."""
    nodes = make_nodes(3)
    going = Going(nodes, Layout((1, 1, 1)))
    nodes[0].unplug()
    ends = going.ends()
    head = ends.pop(0)
    assert (head.report["outcome"], head.exit_code) == ("node_lost", 94), head.explain()
    blamed = {rank for one in head.errors for rank in one["culprits"]}
    assert blamed in ({1}, {2}, {1, 2}), head.explain()
    for done in ends.values():
        assert (done.report["outcome"], done.exit_code) == ("node_lost", 94), done.explain()
        assert {rank for one in done.errors for rank in one["culprits"]} == {0}, done.explain()
        assert "node0" in done.stderr
    check_nothing_is_left(nodes)


@needs_one_verdict
def test_the_head_loses_its_power(make_nodes: Callable[[int], Nodes]) -> None:
    """The other node falls back on what it sees, says so, and ends its ranks."""
    nodes = make_nodes(2)
    going = Going(nodes)
    nodes[0].power_off()
    done = going.ends(without=0)[1]
    assert done.exit_code != 0
    assert done.report["outcome"] != "ok", done.explain()
    assert "node0" in done.stderr
    blamed = {rank for one in done.errors for rank in one["culprits"]}
    assert not blamed & {2, 3}, done.explain()
    check_nothing_is_left([nodes[1]])


@needs_one_verdict
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_one_node_ends_all(
    make_nodes: Callable[[int], Nodes], number: int, signal_number: int
) -> None:
    nodes = make_nodes(2)
    going = Going(nodes)
    going.job.commands[number].send_signal(signal_number)
    ends = going.ends()
    for done in ends.values():
        assert (done.report["outcome"], done.errors) == ("interrupted", []), done.explain()
    assert ends[0].exit_code == ends[1].exit_code
    check_nothing_is_left(nodes)


@needs_one_verdict
@pytest.mark.parametrize("number", [0, 1])
def test_a_supervisor_is_suspended(make_nodes: Callable[[int], Nodes], number: int) -> None:
    """For longer than a node may be silent, as with Ctrl-Z, and then it goes on: the others have
    given it up, it learns that, and nobody accuses anybody else."""
    nodes = make_nodes(2)
    going = Going(nodes)
    command = going.job.commands[number]
    above = psutil.Process(command.pid).parents()
    command.send_signal(signal.SIGSTOP)
    time.sleep(LOST_WITHIN_S + 1.5)  # its length
    command.send_signal(signal.SIGCONT)
    for one in above:
        if one.name() in ("nsenter", "unshare"):
            one.resume()  # they stop with what they wait for
    for done in going.ends().values():
        check_lost(done, {2 * number, 2 * number + 1}, f"node{number}")
    check_nothing_is_left(nodes)


@needs_one_verdict
@pytest.mark.parametrize("number", [0, 1])
def test_a_launcher_is_killed(make_nodes: Callable[[int], Nodes], number: int) -> None:
    """By the kernel for want of memory, say. Its ranks would go on for ever, and the SIGTERM that
    the other launcher sends is no fault of a rank: as on one node, the command has failed."""
    nodes = make_nodes(2)
    going = Going(nodes)
    below = psutil.Process(going.job.commands[number].pid).children(recursive=True)
    (launcher,) = [one for one in below if "torch.distributed.run" in one.cmdline()]
    launcher.kill()
    for done in going.ends().values():
        assert (done.report["outcome"], done.exit_code) == ("failed", 137), done.explain()
        assert done.errors == [], done.explain()
    check_nothing_is_left(nodes)


@needs_one_verdict
def test_nodes_that_leave_in_good_order(make_nodes: Callable[[int], Nodes]) -> None:
    """Two nodes end long before the third: their silence then is no loss."""
    nodes = make_nodes(2)
    launch = Launch(TWO_AND_TWO, ("--hang-timeout", "30"))
    script = nodes.directory / "early.py"
    script.write_text(
        "import os, time\n"
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(1))\n"
        "dist.destroy_process_group()\n"
        "time.sleep(6 if os.environ['GROUP_RANK'] == '0' else 0)\n"
    )
    ended = launch.start(nodes, [str(script)]).finish()
    for done in ended:
        assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
        assert done.report["findings"] == [], done.explain()
    check_who_was_where(TWO_AND_TWO, ended)


def test_nobody_listens_elsewhere(make_nodes: Callable[[int], Nodes]) -> None:
    """Of the tool's own listeners none is at another address than the one that leads to the peers.
    torchrun's store listens everywhere, at its port, and gloo at the address of the host's name."""
    nodes = make_nodes(2)
    going = Going(nodes)
    for node in nodes:
        strangers = {
            (address, port)
            for address, port in node.listening()
            if port != PORT and address not in (node.address, "127.0.0.1", "[::1]")
        }
        assert all(address == "*" for address, _ in strangers), strangers
        assert len(strangers) <= 1, strangers  # the ranks' own store
        assert not any(address == node.address_on(SECOND) for address, _ in strangers)
    for command in going.job.commands:
        command.send_signal(signal.SIGTERM)
    going.ends()


@needs_one_verdict
def test_a_node_with_a_plain_torchrun(make_nodes: Callable[[int], Nodes]) -> None:
    """It is said once, and its ranks are not to blame for being unseen: the bug is on node 0."""
    nodes = make_nodes(2)
    launch = Launch(TWO_AND_TWO, ("--hang-timeout", "5"))
    program = [str(GOING_ON), "--fails", "1"]
    words = launch.words(nodes, 1, program)
    plain = words[words.index("--nnodes") :]
    torchrun = str(runs.DISTDEBUG.with_name("torchrun"))
    first = launch.start_on(nodes, 0, program)
    nodes[1].start([torchrun, *plain], launch.environment())
    (done,) = Job([first], [nodes[0].directory / "run"]).finish()
    assert (done.report["outcome"], done.exit_code) == ("rank_exception", 1), done.explain()
    assert done.errors[0]["culprits"] == [1], done.explain()
    assert done.stderr.count("not watched") >= 1, done.explain()
