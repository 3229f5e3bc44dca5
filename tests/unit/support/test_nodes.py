"""Nodes on this machine are apart from each other and from it, and nothing of them stays."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.nodes import SECOND, Nodes
from tests.support.on_nodes import Layout
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.root
LIMIT_S = 60.0
WHO = """
import os, socket, time
print(socket.gethostname(), socket.getfqdn(), [socket.gethostbyname(f"node{n}") for n in (0, 1)])
open("/dev/shm/mine", "x"); open("/tmp/mine", "x")
print(open("/proc/sys/kernel/random/boot_id").read())
print(os.getcwd(), os.getsid(0) == os.getpid())
print(time.monotonic())
"""
SERVE = """
import socket, sys
listener = socket.create_server((sys.argv[1], 7000))
print("listening", flush=True)
peer, _ = listener.accept()
print("accepted", flush=True)
peer.recv(1)
"""
ASK = """
import socket, sys
socket.setdefaulttimeout(float(sys.argv[2]))
try:
    with socket.create_connection((sys.argv[1], 7000)) as asked:
        asked.sendall(b"x")
        print("connected")
except OSError as error:
    print(type(error).__name__)
"""
LEAVES_A_ZOMBIE = """
import os
if not (child := os.fork()):
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has waited for it
"""


def test_each_is_a_machine_of_its_own(make_nodes: Callable[[int], Nodes]) -> None:
    nodes = make_nodes(2)
    began_s = time.monotonic()
    said = [node.start([sys.executable, "-c", WHO]) for node in nodes]
    boots = set()
    for node, command in zip(nodes, said, strict=True):
        assert command.wait(LIMIT_S) == 0, command.said()
        who, boot, _, where, clock = command.said().splitlines()
        assert who == f"{node.name} {node.name} ['10.213.0.1', '10.213.0.2']"
        assert where == f"{node.directory} True"
        assert 0 < float(clock) - began_s - node.up_before_s < LIMIT_S
        boots.add(boot)
        assert node.processes() == {}
    assert len({*boots, Path("/proc/sys/kernel/random/boot_id").read_text().strip()}) == 3
    assert not Path("/dev/shm/mine").exists()
    assert socket.gethostname() not in ("node0", "node1")


def test_a_cable_that_is_pulled_a_plug_that_is_pulled(make_nodes: Callable[[int], Nodes]) -> None:
    nodes = make_nodes(2)

    def ask(address: str, limit_s: float = LIMIT_S) -> str:
        return nodes[1].python(ASK, address, str(limit_s)).strip()

    def finds(address: str) -> None:
        """Nobody listens there. For a second the kernel may still say that there is no way to it:
        it has asked thrice for the hardware's address while there was none."""
        until(lambda: ask(address) == "ConnectionRefusedError", f"a host at {address}")

    def serve(interface: str) -> None:
        server = nodes[0].start([sys.executable, "-c", SERVE, nodes[0].address_on(interface)])
        while "listening" not in server.said():
            assert server.poll() is None, server.said()

    serve(SECOND)
    nodes[0].unplug()
    # Silence; on the other net all is as before.
    assert ask(nodes[0].address, 0.5) in ("TimeoutError", "OSError")
    assert ask(nodes[0].address_on(SECOND)) == "connected"
    nodes[0].plug_in()
    finds(nodes[0].address)
    nodes[0].power_off()
    assert not nodes[0].is_up
    assert ask(nodes[0].address, 0.5) in ("TimeoutError", "OSError")
    nodes[0].power_on()
    assert nodes[0].processes() == {}
    finds(nodes[0].address)


def test_commands_and_how_they_end(make_nodes: Callable[[int], Nodes]) -> None:
    """By themselves, by a signal that is sent to them alone, and with all of the node."""
    (node,) = make_nodes(1)
    assert node.start(["sh", "-c", "echo no >&2; exit 7"]).wait(LIMIT_S) == 7
    assert node.start([sys.executable, "-c", LEAVES_A_ZOMBIE]).wait(LIMIT_S) == 0
    assert node.processes() == {}
    one, other = node.start(["sleep", "600"]), node.start(["sleep", "700"])
    one.send_signal(signal.SIGTERM)
    assert one.wait(LIMIT_S) == -signal.SIGTERM
    # Until then the other one may still be what enters the node, and be neither of its words.
    until(
        lambda: [line.split(maxsplit=1)[1] for line in node.processes().values()] == ["sleep 700"]
    )
    node.kill_everything()
    assert other.wait(LIMIT_S) == -signal.SIGKILL
    assert node.is_up
    last = node.start(["sleep", "800"])
    node.power_off()
    assert last.wait(LIMIT_S) == -signal.SIGKILL


def test_nothing_stays_when_their_maker_is_killed() -> None:
    words = [sys.executable, "-m", "tests.support.nodes", "2", "--", "sh", "-c"]
    maker = subprocess.Popen(
        [*words, "sleep 900 & setsid sleep 901 & echo here; wait"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert maker.stdout is not None
    with maker.stdout:
        said = {maker.stdout.readline() for _ in range(2)}
        assert said == {"node0: here\n", "node1: here\n"}
        below = psutil.Process(maker.pid).children(recursive=True)
        watched = {one.pid: os.pidfd_open(one.pid) for one in below}
        assert len(watched) >= 2 * 5 + 2  # init, its unshare, the shell, its sleeps; the switch
        maker.kill()
        maker.wait()
    for pid, descriptor in watched.items():
        assert select.select([descriptor], [], [], LIMIT_S)[0], f"process {pid} is still there"
        os.close(descriptor)


def test_ranks_are_spread_evenly_over_nodes() -> None:
    assert Layout.over(2, 4).ranks == (2, 2)
    assert Layout.over(2, 3).ranks == (2, 1)
    assert Layout.over(4, 4).ranks == (1, 1, 1, 1)
    assert [Layout.over(2, 5).node_of(rank) for rank in range(5)] == [0, 0, 0, 1, 1]
