"""Prompts of ranks that stand on other nodes: three run directories, and what their supervisors say
to each other, handed on one by one."""

from __future__ import annotations

import os
import queue
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distdebug.nodes.messages import Message
from distdebug.nodes.prompts import Prompts
from distdebug.record.requests.breakpoints import (
    BREAKPOINT,
    Line,
    Stop,
    announce,
    connect,
    listen,
    stops,
    withdraw,
)
from distdebug.record.requests.supervision import any_asked, any_stop
from distdebug.supervisor.guarded_watch import Pauses
from tests.support.waiting import until

HEAD = 0


class Job:
    """The head, and two other nodes."""

    def __init__(self, folder: Path) -> None:
        self.directories = [folder / str(number) for number in range(3)]
        for one in self.directories:
            one.mkdir()
        self._said: queue.Queue[tuple[int, int, Message]] = queue.Queue()
        self.head = Prompts(self.directories[HEAD], self._to_node)
        self.nodes = {number: self._node(number) for number in (1, 2)}

    def _to_node(self, number: int, message: Message) -> None:
        self._said.put((HEAD, number, message))

    def _node(self, number: int) -> Prompts:
        def to_head(_head: int, message: Message) -> None:
            self._said.put((number, HEAD, message))

        return Prompts(self.directories[number], to_head)

    def pump(self) -> None:
        """What each says is heard."""
        for node in self.nodes.values():
            node.tell(lambda: (HEAD,))
        self.head.tell(lambda: self.nodes)
        while not self._said.empty():
            here, there, message = self._said.get()
            if there != HEAD and message.kind == "stops":
                self.nodes[there].stand(HEAD, message.data)
            elif there != HEAD:
                self.nodes[there].heard(HEAD, message.data, message.blob)
            elif message.kind == "stops":
                self.head.stand(here, message.data)
            else:
                self.head.heard(here, message.data, message.blob)

    def where(self, number: int) -> list[tuple[int | None, str]]:
        """Who stands, as that node's run directory has it."""
        return [(one.rank, one.place) for one in stops(self.directories[number])]

    def everywhere(self, wanted: list[tuple[int | None, str]]) -> Callable[[], bool]:
        def told() -> bool:
            self.pump()
            return all(self.where(number) == wanted for number in range(3))

        return told

    def close(self) -> None:
        self.head.close()
        for one in self.nodes.values():
            one.close()


@pytest.fixture(name="job")
def _job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


def standing(rank: int, line: int = 7) -> Stop:
    """Its process is one that is alive, and no supervisor here."""
    return Stop(rank, os.getppid(), "/a/train.py", line, "step", BREAKPOINT, "")


@pytest.mark.parametrize("at", range(3))
def test_who_stands_is_seen_on_every_node(job: Job, at: int) -> None:
    """So a rank that waits for it elsewhere does not run into its timeout."""
    here, stop = job.directories[at], standing(3)
    announce(here, stop)
    until(job.everywhere([(3, "train.py:7 in step")]), "it is not told")
    announce(here, standing(3, line=9))
    until(job.everywhere([(3, "train.py:9 in step")]), "it is not told that it went on")
    assert all(map(any_stop, job.directories))
    withdraw(here, stop)
    until(job.everywhere([]), "it is not told that it left")
    assert not any(map(any_stop, job.directories))


def test_several_that_stand_are_told_apart(job: Job) -> None:
    for rank, directory in enumerate(job.directories):
        announce(directory, standing(rank, line=rank + 1))
    wanted = [(rank, f"train.py:{rank + 1} in step") for rank in range(3)]
    until(job.everywhere(list(wanted)), "somebody is not told")


@contextmanager
def opened(job: Job, at: int, terminal: int) -> Iterator[tuple[Line, Line]]:
    """A rank stands on node `at`, and its prompt is opened on node `terminal`: the ends of both."""
    stop = standing(3)
    announce(job.directories[at], stop)
    with listen(job.directories[at], stop) as listener:
        until(job.everywhere([(3, "train.py:7 in step")]), "it is not told")
        (seen,) = stops(job.directories[terminal])
        ours = Line(connect(job.directories[terminal], seen))
        rank = Line(_accepted(job, listener))
        yield ours, rank
        rank.close()
        ours.close()


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("terminal", range(3))
def test_a_prompt_is_opened_from_any_node(job: Job, at: int, terminal: int) -> None:
    with opened(job, at, terminal) as (ours, rank):
        assert rank.send(prompt="(rank 3) ")
        assert _next(job, ours) == [{"prompt": "(rank 3) "}]
        assert ours.send(line="p 1")
        assert _next(job, rank) == [{"line": "p 1"}]
        rank.close()
        assert _next(job, ours) is None


def test_a_terminal_that_goes_is_told_to_the_rank(job: Job) -> None:
    with opened(job, 1, 2) as (ours, rank):
        ours.close()
        assert _next(job, rank) is None


def test_a_rank_that_has_gone_on_meanwhile(job: Job) -> None:
    """Whoever comes too late hears that, and does not wait."""
    stop = standing(3)
    announce(job.directories[1], stop)
    until(job.everywhere([(3, "train.py:7 in step")]), "it is not told")
    (seen,) = stops(job.directories[2])
    withdraw(job.directories[1], stop)
    ours = Line(connect(job.directories[2], seen))
    assert _next(job, ours) is None
    ours.close()


def test_ranks_of_all_nodes_are_ready_when_one_is_asked_to_stand(job: Job) -> None:
    job.head.expect(job.nodes)
    job.pump()
    assert all(map(any_asked, job.directories))
    job.close()
    assert not any(map(any_asked, job.directories))


def test_a_connection_that_broke_and_came_again(job: Job) -> None:
    """Who has gone on meanwhile stands nowhere, and who stands is told once more."""
    for rank, directory in ((0, job.directories[HEAD]), (1, job.directories[1])):
        announce(directory, standing(rank))
    place = "train.py:7 in step"
    until(job.everywhere([(0, place), (1, place)]), "it is not told")
    withdraw(job.directories[HEAD], standing(0))
    job.nodes[2].gone(HEAD)
    job.head.anew(2)
    until(job.everywhere([(1, place)]), "it is not told")


def test_a_head_that_is_lost_and_a_node_that_is(job: Job) -> None:
    """Those who stood there stand nowhere: nobody could open their prompts."""
    announce(job.directories[HEAD], standing(0))
    announce(job.directories[1], standing(1))
    place = "train.py:7 in step"
    until(job.everywhere([(0, place), (1, place)]), "it is not told")
    job.nodes[2].close()
    assert job.where(2) == []
    job.head.gone(1)
    del job.nodes[2]
    assert job.where(HEAD) == [(0, place)]


def test_notice_is_given_where_the_rank_is_and_on_the_head(job: Job) -> None:
    announce(job.directories[1], standing(3))
    until(job.everywhere([(3, "train.py:7 in step")]), "it is not told")
    far = {HEAD: frozenset[str](), 1: job.nodes[1].far, 2: job.nodes[2].far}
    told = [Pauses(job.directories[one], "").look(far[one]) for one in range(3)]
    assert [len(notices) for notices, _ in told] == [1, 1, 0]
    assert [paused for _, paused in told] == [True, True, True]


def _accepted(job: Job, listener: socket.socket) -> socket.socket:
    found: list[socket.socket] = []
    listener.setblocking(False)

    def came() -> bool:
        job.pump()
        try:
            found.append(listener.accept()[0])
        except BlockingIOError:
            return False
        return True

    until(came, "nobody comes")
    return found[0]


def _next(job: Job, line: Line) -> list[dict[str, object]] | None:
    found: list[list[dict[str, object]] | None] = []
    line.connection.setblocking(False)

    def came() -> bool:
        job.pump()
        try:
            if not line.connection.recv(1, socket.MSG_PEEK):
                found.append(None)
                return True
        except BlockingIOError:
            return False
        found.append(line.receive())
        return True

    until(came, "nothing is said")
    return found[0]
