"""The ranks' own network carries what they send, with the faults, and leaves nothing behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distdebug.errors import DistdebugError, UsageError
from distdebug.faults import injected
from distdebug.faults.plan import Plan
from distdebug.faults.spec import parse
from distdebug.record.network import INTERFACE, VARIABLE
from distdebug.supervisor.command.launch import Launch
from distdebug.supervisor.injection import Network

pytestmark = pytest.mark.root
ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 30
SIZE = 200_000
PROGRAM = f"""
import socket, sys
from distdebug.record.network import enter
rank = int(sys.argv[1])
enter(rank)
if rank:
    listener = socket.create_server(("10.213.0.2", 5000))
    print("ready", flush=True)
    connection, peer = listener.accept()
    print(peer[0], flush=True)
    received = b""
    try:
        while len(received) < {SIZE} and (data := connection.recv(1 << 20)):
            received += data
    except ConnectionError as error:
        received = type(error).__name__.encode()
    print(received.hex()[:40] + ":" + str(sum(byte != 7 for byte in received)), flush=True)
else:
    sys.stdin.readline()
    connection = socket.create_connection(("10.213.0.2", 5000), 20)
    try:
        connection.sendall(bytes([7]) * {SIZE})
        connection.recv(1)
    except ConnectionError as error:
        print(type(error).__name__, flush=True)
    print(*sorted(name for _, name in socket.if_nameindex()), flush=True)
"""


class Pair:
    """Ranks 0 and 1, of whom one sends to the other, with these faults."""

    def __init__(self, directory: Path, *specs: str) -> None:
        plan = Plan(tuple(parse(spec, number) for number, spec in enumerate(specs)), 0, True)
        self.directory = directory
        self.network = Network(2, plan, directory)
        environment = {**os.environ, VARIABLE: self.network.entrances.text, "PYTHONPATH": str(ROOT)}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in (0, 1)
        ]

    def lines(self) -> tuple[list[str], list[str]]:
        """What the two have printed in the end."""
        sender, receiver = self.ranks
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        said = sender.communicate("go\n", timeout=LIMIT_S)[0].splitlines()
        return said, receiver.communicate(timeout=LIMIT_S)[0].splitlines()

    def close(self) -> None:
        self.network.close()
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            for stream in (rank.stdin, rank.stdout):
                assert stream is not None
                stream.close()


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[list[Pair]]:
    made: list[Pair] = []
    yield made
    for pair in made:
        pair.close()


def pair(pairs: list[Pair], directory: Path, *specs: str) -> Pair:
    try:
        pairs.append(Pair(directory, *specs))
    except UsageError as reason:
        pytest.skip(str(reason))
    return pairs[-1]


WHOLE = ["10.213.0.1", f"{'07' * 20}:0"]


def test_what_is_sent_arrives(pairs: list[Pair], tmp_path: Path) -> None:
    """The twin of all that follow."""
    before = os.readlink("/proc/self/ns/net")
    one = pair(pairs, tmp_path)
    sent, came = one.lines()
    assert came == WHOLE
    assert sent == ["distdebug0 lo"]
    assert os.readlink("/proc/self/ns/net") == before
    assert INTERFACE not in [name for _, name in socket.if_nameindex()]
    assert not injected.FaultWatch(tmp_path).look()


@pytest.mark.parametrize("what", ["drop", "duplicate", "delay=20ms", "rate=2M"])
def test_what_tcp_repairs(what: str, pairs: list[Pair], tmp_path: Path) -> None:
    one = pair(pairs, tmp_path, f"link(0->1, {what}) @ frame 1")
    assert one.lines()[1] == WHOLE
    (entry,) = injected.FaultWatch(tmp_path).look()
    name = what.partition("=")[0]
    assert entry.where == f"{name} of frame 1 from rank 0 to rank 1"
    assert (entry.fault, entry.rank) == (0, 0)


def test_what_is_damaged_on_the_way_is_received(pairs: list[Pair], tmp_path: Path) -> None:
    assert pair(pairs, tmp_path, "link(0->1, corrupt) @ frame 1").lines()[1][1].endswith(":1")


def test_a_reset_is_seen_at_both_ends(pairs: list[Pair], tmp_path: Path) -> None:
    sent, came = pair(pairs, tmp_path, "link(0->1, reset) @ frame 1").lines()
    assert sent[0] in ("ConnectionResetError", "BrokenPipeError")
    assert came[1] == b"ConnectionResetError".hex() + ":20"


def test_the_switch_ends_with_the_supervisor(tmp_path: Path) -> None:
    """Killed, it leaves no process, no interface and no namespace."""
    program = (
        "import sys, time, pathlib\n"
        "from distdebug.supervisor.injection import Network\n"
        "from distdebug.faults.plan import Plan\n"
        "made = Network(2, Plan(()), pathlib.Path(sys.argv[1]))\n"
        "print(made.entrances.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert supervisor.stdout is not None
    with supervisor.stdout:
        pid = int(supervisor.stdout.readline())
        switch = os.pidfd_open(pid)
        assert not select.select([switch], [], [], 0)[0]
        supervisor.kill()
        supervisor.wait(LIMIT_S)
    assert select.select([switch], [], [], LIMIT_S)[0], "the switch is still there"
    os.close(switch)


def test_a_switch_that_has_ended_is_found_out(pairs: list[Pair], tmp_path: Path) -> None:
    one = pair(pairs, tmp_path)
    one.network.check()
    watched = os.pidfd_open(one.network.entrances.pid)
    os.kill(one.network.entrances.pid, signal.SIGKILL)
    assert select.select([watched], [], [], LIMIT_S)[0]
    os.close(watched)
    with pytest.raises(DistdebugError, match="network between the ranks has ended"):
        one.network.check()


def test_the_command_is_in_the_launchers_namespace(pairs: list[Pair], tmp_path: Path) -> None:
    one = pair(pairs, tmp_path)
    out = tmp_path / "out"
    with Launch() as launch:
        line = f"readlink /proc/self/ns/net > {out}"
        entrance = one.network.entrances.of_launcher
        launch.start(["sh", "-c", line], network=entrance)
        status = launch.wait(LIMIT_S)
        assert status is not None
        assert status.shell_code == 0
        inside = out.read_text().strip()
        assert inside == os.readlink(entrance)
        assert inside != os.readlink("/proc/self/ns/net")


def test_no_namespaces_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distdebug.supervisor.injection.command", lambda *_, **__: ["false"])
    with pytest.raises(UsageError, match="gives no network namespaces: the process that makes"):
        Network(2, Plan(()), tmp_path)
