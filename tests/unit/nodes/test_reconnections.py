"""A connection between a node and its head breaks, as something in between resets it, and comes
again: whatever was on its way is told once more, and neither waits for the other for ever."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distdebug.nodes.connection import Connection
from distdebug.nodes.head import Head
from distdebug.nodes.interfaces import LOOPBACK
from distdebug.nodes.keys import Offer
from distdebug.nodes.listener import Listener
from distdebug.nodes.member import Member
from distdebug.nodes.messages import Message
from distdebug.record.exits import ExitStatus
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import Process
from distdebug.record.values import ValueWriter, read_values
from tests.support.waiting import until

VERSION = "1"
VERDICT = {"kind": "deadlock", "message": "they wait for each other", "culprits": [1]}


class Between:
    """Hands on what goes over one connection at a time, until it is `cut`; again when `open`."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = int(self._listener.getsockname()[1])
        self.open = True
        self._cut = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self.open = False
        self._cut.set()

    def close(self) -> None:
        self._ended.set()
        self._cut.set()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            ready, _, _ = select.select([self._listener], [], [], 0.02)
            if not ready:
                continue
            with contextlib.suppress(OSError):
                here, _ = self._listener.accept()
                with here:
                    if self.open:
                        self._cut.clear()
                        with socket.create_connection((LOOPBACK, self._to)) as there:
                            self._hand_on(here, there)

    def _hand_on(self, here: socket.socket, there: socket.socket) -> None:
        while not self._cut.is_set():
            for one in select.select([here, there], [], [], 0.02)[0]:
                data = one.recv(1 << 16)
                if not data:
                    return
                (there if one is here else here).sendall(data)


class Telling(Connection):
    """Of which it is known what it was given to tell, whether that arrives or not."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(say)
        self.told: list[str] = []

    def send(self, message: Message) -> None:
        self.told.append(message.kind)
        super().send(message)


class Two:
    """A head and a node, and what is between them."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.listener = Listener(LOOPBACK, "node0", self.said.append)
        self.listener.welcome = {"version": VERSION}
        self.between = Between(self.listener.port)
        self.head_directory = RunDirectory.create(folder / "head" / ".distdebug")
        self.head = Head(self.listener, self.head_directory, self.said.append)
        connection = Telling(self.said.append)
        self.listener.allow(connection.key)
        offer = Offer(LOOPBACK, self.between.port, self.listener.key, "node0")
        connection.connect(offer, Member.hello(VERSION, "", 0))

        self.node_directory = RunDirectory.create(folder / "node" / ".distdebug")
        self.node = Member(connection, self.node_directory, lambda *_: Process(), self.said.append)
        self.connection = connection
        self.until(lambda: self.node.welcomed and self.head.nodes, "they never met")

    def until(self, condition: Callable[[], object], what: str) -> None:
        def both() -> object:
            self.head.take()
            self.node.take()
            return condition()

        until(both, what)

    def breaks(self) -> None:
        """Nothing of what is said from now on arrives."""
        self.between.cut()
        self.until(lambda: not self.connection.connected, "the node has not noticed")

    def close(self) -> None:
        self.connection.close()
        self.listener.close()
        self.between.close()


@pytest.fixture(name="two")
def _two(tmp_path: Path) -> Iterator[Two]:
    made = Two(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("broken", [True, False], ids=["broken", "twin"])
def test_the_end_and_the_verdict_arrive(two: Two, broken: bool) -> None:
    if broken:
        two.breaks()
    two.node.tell_end(ExitStatus(3, None), True)
    two.head.tell(VERDICT)
    two.head.stop(15)
    two.between.open = True
    two.until(lambda: two.head.all_over, "the head waits for the node's end for ever")
    two.until(lambda: two.node.finding, "the node waits for the verdict for ever")
    assert two.node.finding is not None
    assert (two.node.finding.kind, two.node.finding.culprits) == ("deadlock", (1,))
    assert two.head.worst is not None
    assert two.head.worst.code == 3
    assert two.said == []
    assert not two.node.lost


def test_values_come_to_the_head(two: Two) -> None:
    """Two ranks of one pid, on two nodes; a file that is full is replaced while the run goes on."""
    first = {"rank": 0, "world_size": 2, "started_ns": 1, "every": 1}
    mine, theirs = two.head_directory.ranks, two.node_directory.ranks
    ValueWriter(mine, 7, first).append(1, [], {})
    writer = ValueWriter(theirs, 7, first | {"rank": 1})
    writer.append(1, [], {})
    copy = mine / "node1-pid-7.values"
    two.until(copy.exists, "nothing of the values has come")
    os.replace(theirs / "pid-7.values", theirs / "pid-7.values.1")
    ValueWriter(theirs, 7, first | {"rank": 1}).append(2, [], {})
    two.node.tell_end(ExitStatus(0, None), True)

    def steps() -> list[int]:
        found, _ = read_values(mine)
        return sorted(found[1].steps) if 1 in found else []

    two.until(lambda: steps() == [1, 2], "not all of the values has come")
    found, faults = read_values(mine)
    assert (sorted(found), faults, found[1].is_cut) == ([0, 1], [], True)
    assert two.said == []


@pytest.mark.parametrize("over", [True, False], ids=["over", "running"])
@pytest.mark.parametrize("broken", [True, False], ids=["broken", "twin"])
def test_logs_have_no_holes(two: Two, broken: bool, over: bool) -> None:
    """A rank prints before, while and after the connection is broken."""
    theirs, ours = two.node_directory.logs / "1.out", two.head_directory.logs / "1.out"

    def prints(line: str) -> None:
        with theirs.open("a") as file:
            file.write(line)

    def copied() -> str:
        return ours.read_text() if ours.exists() else ""

    prints("first\n")
    two.until(copied, "nothing of the log has come")
    if broken:
        two.breaks()
    prints("second\n")
    told = two.connection.told.count("files")
    two.until(lambda: two.connection.told.count("files") > told, "it was not told")
    if over:
        two.node.tell_end(ExitStatus(0, None), True)
    two.between.open = True
    two.until(lambda: two.connection.connected, "they do not meet again")
    if not over:
        prints("third\n")
    two.until(lambda: copied() == theirs.read_text(), "the log has a hole")
    assert two.said == []


def test_who_comes_again_gets_the_plan_that_it_may_have_missed(two: Two) -> None:
    two.until(lambda: two.node.planned, "no plan has come")
    two.node.planned = False
    two.breaks()
    two.between.open = True
    two.until(lambda: two.node.planned, "no plan has come again")


@pytest.mark.parametrize("broken", [True, False], ids=["broken", "twin"])
def test_ctrl_c_and_the_report_arrive(two: Two, broken: bool) -> None:
    if broken:
        two.breaks()
    two.node.interrupted(2)
    report = {
        "schema": "distdebug.report/1",
        "outcome": "interrupted",
        "exit_code": 130,
        "world_size": 0,
        "duration_s": 1.0,
        "command": [],
        "run_dir": "run",
        "findings": [],
        "ranks": {},
    }
    two.head.report(report)
    two.between.open = True
    two.until(lambda: two.head.interrupted, "the head never hears of it")
    assert two.head.interrupted == (2, f"node 1 ({socket.gethostname()})")
    two.until(lambda: two.node.document, "the node has no report")
    assert two.node.document is not None
    assert two.node.document["exit_code"] == 130
    assert two.said == []
