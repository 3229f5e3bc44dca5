"""Nodes of which some speak to the head through another one, as from 65 nodes on; here from three
on, of five: the verdict is the same, and who loses a relay is not lost."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import pytest

from tests.support import runs
from tests.support.nodes import Nodes
from tests.support.on_nodes import Job, Launch, Layout, check_nothing_is_left, needs_one_verdict

from .test_nodes import INTERRUPTED_S, LOST_WITHIN_S, check_lost

pytestmark = [
    pytest.mark.root,
    pytest.mark.long,
    pytest.mark.timeout(480),
    needs_one_verdict,
]
NODES, FAN_IN = 5, 2
LIMIT_S = 180.0
PROGRAM = """
import os, signal, sys, time
import torch, torch.distributed as dist

here = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
open(f"{here}/{rank}", "w").close()
there = torch.zeros(1)
while not there.item():
    there = torch.tensor([float(os.path.exists(f"{here}/go"))])
    dist.all_reduce(there, dist.ReduceOp.MIN)
    time.sleep(0.02)
what, who = open(f"{here}/go").read().split()
if rank == int(who) and what == "mismatch":
    dist.broadcast(there, 0)
if rank == int(who) and what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(there)
dist.destroy_process_group()
if rank != int(who) and what == "early":
    time.sleep(5)
"""


class Grown:
    """A job of five nodes with a rank each, which call until they are told to go on, and whose
    tree is made: `relay` is the node through which the two `leaves` speak, `head` that of all."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.here = nodes.directory / "here"
        self.here.mkdir()
        script = nodes.directory / "train.py"
        script.write_text(PROGRAM)
        launch = Launch(
            Layout((1,) * NODES),
            ("--hang-timeout", "30"),
            extra=(("DISTDEBUG_FAN_IN", str(FAN_IN)),),
        )
        self.job = launch.start(nodes, [str(script), str(self.here)])
        for rank in range(NODES):
            self.job.wait_for(self.here / str(rank))
        until_s = time.monotonic() + LIMIT_S
        while len(via := self._via()) < NODES - 1 - FAN_IN:
            assert time.monotonic() < until_s, f"{via}\n{self.job.said()}"
            time.sleep(0.1)
        self.leaves = sorted(via)
        (self.relay,) = set(via.values())
        (self.head,) = [one for one in range(NODES) if self._events(one, "has joined")]

    def _events(self, number: int, words: str) -> list[str]:
        path = self.job.directories[number] / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        said = [str(json.loads(line).get("message", line)) for line in lines]
        return [one for one in said if words in one]

    def _via(self) -> dict[int, int]:
        """By the number of a node that speaks through another one: that one's."""
        found = {}
        for number in range(NODES):
            said = self._events(number, "the head is spoken to")
            if said and "through" in said[-1]:
                address = said[-1].rpartition(" ")[2].rpartition(":")[0]
                found[number] = int(address.rpartition(".")[2]) - 1
        return found

    def go(self, what: str, who: int) -> None:
        """Have that rank do something."""
        file = self.here / "going"
        file.write_text(f"{what} {who}")
        file.rename(self.here / "go")

    def ends(self, without: int = -1) -> dict[int, runs.Run]:
        here = [number for number in range(NODES) if number != without]
        commands = [self.job.commands[number] for number in here]
        found = Job(commands, [self.job.directories[number] for number in here]).finish(LIMIT_S)
        check_nothing_is_left([self.nodes[number] for number in here])
        return dict(zip(here, found, strict=True))


@pytest.fixture(name="grown")
def _grown(make_nodes: Callable[[int], Nodes]) -> Grown:
    return Grown(make_nodes(NODES))


def test_a_mismatch_below_a_relay(grown: Grown) -> None:
    grown.go("mismatch", grown.leaves[0])
    for done in grown.ends().values():
        assert (done.report["outcome"], done.exit_code) == ("op_mismatch", 91), done.explain()
        assert done.errors[0]["culprits"] == [grown.leaves[0]], done.explain()


def test_a_rank_below_a_relay_is_killed(grown: Grown) -> None:
    grown.go("killed", grown.leaves[1])
    for done in grown.ends().values():
        assert (done.report["outcome"], done.exit_code) == ("rank_died", 94), done.explain()
        assert done.errors[0]["culprits"] == [grown.leaves[1]], done.explain()


@pytest.mark.parametrize("who", ["leaf", "relay"])
def test_nodes_end_well(grown: Grown, who: str) -> None:
    """The twin: and the command of one has ended long before those of the others."""
    grown.go("early", grown.leaves[0] if who == "leaf" else grown.relay)
    for done in grown.ends().values():
        assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
        assert done.report["findings"] == [], done.explain()


@pytest.mark.parametrize("who", ["leaf", "relay"])
def test_a_node_loses_its_power(grown: Grown, who: str) -> None:
    """It alone is lost: those below it have come to the head."""
    lost = grown.leaves[0] if who == "leaf" else grown.relay
    grown.nodes[lost].power_off()
    for done in grown.ends(without=lost).values():
        check_lost(done, {lost}, f"node{lost}")


def test_the_supervisor_of_a_relay_is_killed(grown: Grown) -> None:
    grown.job.commands[grown.relay].send_signal(signal.SIGKILL)
    for done in grown.ends(without=grown.relay).values():
        check_lost(done, {grown.relay}, f"node{grown.relay}")


def test_the_head_loses_its_power(grown: Grown) -> None:
    """All others fall back on what they see, and blame nobody else."""
    grown.nodes[grown.head].power_off()
    for done in grown.ends(without=grown.head).values():
        assert done.exit_code != 0
        assert done.report["outcome"] != "ok", done.explain()
        blamed = {rank for one in done.errors for rank in one["culprits"]}
        assert blamed <= {grown.head}, done.explain()
        assert f"node{grown.head}" in done.stderr


@pytest.mark.parametrize("who", ["leaf", "relay"])
def test_a_short_interruption(grown: Grown, who: str) -> None:
    """The twin: the job goes on until it is told to end."""
    node = grown.nodes[grown.leaves[0] if who == "leaf" else grown.relay]
    node.unplug()
    time.sleep(INTERRUPTED_S)  # its length
    node.plug_in()
    time.sleep(2 * LOST_WITHIN_S)  # in which something might be said
    assert all(command.poll() is None for command in grown.job.commands), grown.job.said()
    grown.go("well", 0)
    for done in grown.ends().values():
        assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
        assert done.report["findings"] == [], done.explain()
