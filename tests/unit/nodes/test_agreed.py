"""Nodes that were told where to meet: by one key, at one address, each task of the job once."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from distdebug.nodes import job as jobs
from distdebug.nodes.connection import Connection
from distdebug.nodes.interfaces import LOOPBACK
from distdebug.nodes.job import Job
from distdebug.nodes.keys import head_pair, node_pair
from distdebug.nodes.listener import Listener
from distdebug.nodes.messages import Message
from distdebug.nodes.presence import Role
from distdebug.nodes.several import VARIABLE, Agreed, AgreedError, Several, job_key, place
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import Process
from tests.support.ports import unclaimed_port
from tests.support.waiting import until
from tests.unit.nodes.test_links import HELLO

KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture(name="port")
def _port() -> int:
    return unclaimed_port()


class Supervisors:
    """On one host, each with what it has said."""

    def __init__(self, folder: Path, closing: ExitStack, port: int) -> None:
        self._folder, self._closing, self._port = folder, closing, port
        self._made = 0

    def begins(
        self, key: bytes = KEY, host: str = LOOPBACK, task: str = ""
    ) -> tuple[Job, list[str]]:
        said: list[str] = []
        self._made += 1
        directory = RunDirectory.create(self._folder / str(self._made))
        several = Several(1, 8, task=task, agreed=Agreed(host, self._port, key))

        job = Job(several, directory, lambda *_: Process(), said.append)
        self._closing.callback(job.close)
        ended = threading.Event()
        beside = threading.Thread(target=self._serve, args=(ended,))
        beside.start()
        try:
            job.begin(lambda: False)
        finally:
            ended.set()
            beside.join()
        return job, said

    heads: Job | None = None

    def _serve(self, ended: threading.Event) -> None:
        """The head's loop."""
        while not ended.wait(0.01):
            if self.heads is not None:
                self.heads.take()


@pytest.fixture(name="supervisors")
def _supervisors(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Supervisors]:
    monkeypatch.setattr("distdebug.nodes.head.ANSWERS_S", 0.5)  # nobody says it here
    with ExitStack() as closing:
        yield Supervisors(tmp_path, closing, port)


def test_the_first_on_the_heads_host_listens_and_the_next_comes_to_it(
    supervisors: Supervisors, port: int
) -> None:
    head, said = supervisors.begins(task="RANK=0")
    assert (head.role, said) == (Role.HEAD, [])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)
    supervisors.heads = head
    other, others = supervisors.begins(task="RANK=1")
    assert (other.role, others) == (Role.MEMBER, [])
    assert other.judged_elsewhere
    assert other.member is not None
    assert other.member.planned
    assert head.head is not None
    assert len(head.head.nodes) == 1
    assert said == []


def test_another_job_key(supervisors: Supervisors, port: int) -> None:
    """Both are told, at once, and the node goes on alone."""
    head, said = supervisors.begins()
    supervisors.heads = head
    node, others = supervisors.begins(OTHER)
    assert not node.judged_elsewhere
    (sentence,) = others
    assert f"port {port} of this host is taken" in sentence
    assert "has another job key" in sentence
    assert "judged by what is seen here" in sentence
    until(lambda: said, "the head has not said it")
    assert "made with another key" in said[0]


@pytest.mark.parametrize("says", [b"220 mail.example ready\r\n", b""], ids=["speaks", "hangs up"])
def test_the_heads_port_is_taken_by_a_stranger(
    supervisors: Supervisors, port: int, says: bytes
) -> None:
    """Two programs were given one port."""
    over = threading.Event()
    with socket.create_server((LOOPBACK, port)) as server:

        def greet() -> None:
            while not over.is_set():
                connection, _ = server.accept()
                with connection:
                    connection.sendall(says)

        greeting = threading.Thread(target=greet)
        greeting.start()
        try:
            job, said = supervisors.begins()
        finally:
            over.set()
            socket.create_connection((LOOPBACK, port)).close()
            greeting.join()
    assert not job.judged_elsewhere
    (sentence,) = said
    assert "is taken, by what is no head of this job" in sentence
    assert "give --head another port" in sentence


def test_a_task_that_was_started_twice(supervisors: Supervisors) -> None:
    """Its second supervisor is refused; after the first has left, it may come again."""
    head, said = supervisors.begins(task="RANK=0")
    supervisors.heads = head
    first, _ = supervisors.begins(task="RANK=1")
    _, again = supervisors.begins(task="RANK=1")
    (sentence,) = again
    assert "it is RANK=1, and so is node 1" in sentence
    assert "start distdebug once for each task" in sentence
    until(lambda: said, "the head has not said it")
    assert "it is RANK=1, and so is node 1" in said[0]
    _, heads = supervisors.begins(task="RANK=0")
    assert "it is RANK=0, and so is the head" in heads[0]
    first.close()
    until(lambda: head.head is not None and (head.take() or head.head.nodes[1].left), "no bye")
    third, others = supervisors.begins(task="RANK=1")
    assert third.judged_elsewhere, others


def test_a_head_that_never_answers(
    supervisors: Supervisors, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks start all the same, and in the end they are judged here."""
    monkeypatch.setattr(jobs, "is_here", lambda _host: False)
    monkeypatch.setattr(jobs, "COMES_S", 1.0)
    monkeypatch.setattr(jobs, "HEAD_FIRST_S", 0.2)
    job, said = supervisors.begins()
    assert "does not answer yet: the ranks start" in said[0]
    until(lambda: job.take() or not job.judged_elsewhere, "it waits for ever")
    assert f"the head at {LOOPBACK}:{port} does not answer within 1 s" in said[1]
    assert "judged by what is seen here" in said[1]


def test_a_head_of_which_nobody_knows_the_way(supervisors: Supervisors) -> None:
    _, said = supervisors.begins(host="no-such-host.invalid")
    (sentence,) = said
    assert "no verdict over all nodes: --head: this host knows no way to no-such-host" in sentence


@pytest.fixture(name="listening")
def _listening() -> Iterator[tuple[Listener, list[str]]]:
    said: list[str] = []
    listener = Listener(LOOPBACK, "node0", said.append, 0, head_pair(KEY))
    listener.welcome = {"version": "1"}
    listener.allow(node_pair(KEY).public.decode())
    yield listener, said
    listener.close()


@pytest.fixture(name="node")
def _node() -> Iterator[Callable[[], Connection]]:
    with ExitStack() as made:

        def make() -> Connection:
            connection = Connection(lambda _: None, node_pair(KEY))
            made.callback(connection.close)
            return connection

        yield make


def test_nodes_with_one_key_are_told_apart(
    listening: tuple[Listener, list[str]], node: Callable[[], Connection]
) -> None:
    head, _ = listening
    connections = [node(), node()]
    for number, one in enumerate(connections):
        one.connect(head.offer, HELLO | {"id": str(number)})
    until(lambda: all(one.welcome for one in connections), "not both were welcomed")
    assert sorted(head.nodes) == [1, 2]
    for one in connections:
        assert one.welcome is not None
        one.send(Message("digest", {"id": one.welcome["node"]}))
    heard: dict[int, object] = {}

    def listen() -> bool:
        heard.update((n, m.data["id"]) for n, m in head.received() if m.kind == "digest")
        return len(heard) == 2

    until(listen, "nothing came")
    assert heard == {1: 1, 2: 2}


def test_another_version_is_told_to_both(
    listening: tuple[Listener, list[str]], node: Callable[[], Connection]
) -> None:
    head, said = listening
    one = node()
    one.connect(head.offer, HELLO | {"schema": "distdebug.nodes/1", "id": "1"})
    until(lambda: one.lost, "it was never told")
    assert "it speaks 'distdebug.nodes/1', this is" in one.lost
    assert "install one version on all nodes" in said[0]


def test_who_knows_only_what_is_public_is_refused(
    listening: tuple[Listener, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head's public key is no way in without the nodes' secret one."""
    monkeypatch.setattr("distdebug.nodes.keys.HEAD_ANSWERS_S", 0.2)
    head, said = listening
    stranger = Connection(lambda _: None)
    stranger.connect(head.offer, HELLO)
    try:
        until(lambda: said, "nobody said that it was refused")
        assert "its key is none of this job's nodes" in said[0]
        assert not head.nodes
    finally:
        stranger.close()


def test_keys_follow_from_the_job_key_alone() -> None:
    pairs = [head_pair(KEY), node_pair(KEY), head_pair(OTHER), node_pair(OTHER)]
    assert len({pair.secret for pair in pairs} | {pair.public for pair in pairs}) == 8
    assert head_pair(KEY) == head_pair(KEY)
    assert "secret" not in repr(pairs[0])
    assert repr(KEY) not in repr(Agreed("host", 1, KEY))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("node0:29600", ("node0", 29600)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[fd00::1]:65535", ("fd00::1", 65535)),
    ],
)
def test_a_place_to_meet(text: str, found: tuple[str, int]) -> None:
    assert place(text) == found


@pytest.mark.parametrize(
    "text", ["", "node0", ":29600", "node0:", "node0:0", "node0:65536", "a b:1", "fd00::1:29600"]
)
def test_no_place_to_meet(text: str) -> None:
    with pytest.raises(AgreedError, match=r"^--head"):
        place(text)


def test_where_the_job_key_is(tmp_path: Path) -> None:
    file = tmp_path / "job.key"
    file.write_bytes(KEY + b"\n")
    file.chmod(0o600)
    environment = {VARIABLE: "v" * 40}
    assert job_key(file, environment) == KEY
    assert environment == {}, "ranks have no use for it"
    assert job_key(None, {VARIABLE: "v" * 40}) == b"v" * 40


def test_where_there_is_no_job_key(tmp_path: Path) -> None:
    with pytest.raises(AgreedError, match="needs a key that all nodes share: make one with"):
        job_key(None, {})
    with pytest.raises(AgreedError, match="32 to 4096 characters"):
        job_key(None, {VARIABLE: "secret"})
    file = tmp_path / "job.key"
    with pytest.raises(AgreedError, match="No such file"):
        job_key(file, {})
    file.write_bytes(KEY)
    file.chmod(0o640)
    with pytest.raises(AgreedError, match="chmod 600"):
        job_key(file, {})
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(AgreedError, match="it is no file"):
        job_key(tmp_path / "pipe", {})
