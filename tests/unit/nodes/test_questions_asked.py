"""What the head's reader asks of the nodes before a finding is believed, and how long it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from distdebug.diagnosis.findings import Finding, GroupEvidence
from distdebug.nodes.head import Head
from distdebug.nodes.job import Job
from distdebug.nodes.limits import TAKE_EVERY_S
from distdebug.nodes.missing import LateMeeting
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import Process, Rank, Snapshot
from distdebug.supervisor.several_nodes import JobReader

from .test_pace import rank

WORLD = tuple(range(1024))
FINDING = Finding("op_mismatch", "", culprits=(900,), group=GroupEvidence("0", "default_pg", WORLD))


class Nodes:
    """The other nodes, as `Head` gives them. `owe`: what they were asked for and have not told."""

    def __init__(self) -> None:
        self.nodes: dict[int, object] = {}
        self.asked: list[int | None] = []
        self.taken = 0
        self.owe = False
        self.given_up_ns = self.news = 0
        self._since_ns = 0

    def clock_errors_ns(self) -> dict[int, int]:
        return {}

    def settled(self, since_ns: int, wanted: Iterable[Path] | None = None) -> bool:
        if since_ns != self._since_ns:
            self._since_ns = since_ns
            self._ask(wanted)
        return not self.owe

    def ask_more(self, wanted: Iterable[Path]) -> None:
        self._ask(wanted)

    def _ask(self, wanted: Iterable[Path] | None) -> None:
        self.asked.append(None if wanted is None else len(list(wanted)))
        self.owe = True

    def take(self) -> None:
        self.taken += 1


class Local:
    """The records and the processes, as `LocalReader` reads them."""

    def __init__(self, ranks: Mapping[int, Rank]) -> None:
        self.ranks = dict(ranks)
        self.own = 0
        self.at_rest = False

    def here(self, _observe: object) -> tuple[object, ...]:
        return (self.own,)

    def refresh(self) -> None: ...

    def observe(self) -> None: ...

    def look(self) -> None: ...

    def snapshots(self, *_args: object, finished: bool) -> Sequence[Snapshot]:
        del finished
        return [Snapshot(0, len(self.ranks), dict(self.ranks))]


def head_of(tmp_path: Path, nodes: Nodes) -> Job:
    directory = RunDirectory.create(tmp_path / ".distdebug")
    say: Callable[[str], None] = lambda _: None  # noqa: E731
    job = Job(None, directory, lambda *_: Process(), say)
    job.head = cast(Head, nodes)
    return job


def asked_of_many(tmp_path: Path) -> tuple[Nodes, Local, JobReader]:
    """More ranks than are all asked, of which 900 alone called something else, looked at once."""
    nodes, local = Nodes(), Local({number: rank(number) for number in WORLD})
    local.ranks[900] = rank(900, chain=2)
    job = head_of(tmp_path, nodes)
    late = LateMeeting(job, tmp_path, job.say)
    reader = JobReader(cast(Any, local), cast(Any, local), None, job, late)
    reader.look()
    return nodes, local, reader


def test_who_comes_to_be_in_question_after_the_first_look_is_asked_once_more(
    tmp_path: Path,
) -> None:
    nodes, local, reader = asked_of_many(tmp_path)
    since_s = time.monotonic()
    assert not reader.settled(since_s, FINDING)
    assert nodes.asked == [2]
    assert not reader.settled(since_s, FINDING), "that they owe it"
    local.ranks[77] = rank(77, chain=3)  # another cause, it may be: its node had not told of it
    reader.look()
    nodes.owe = False
    assert not reader.settled(since_s, FINDING)
    assert nodes.asked == [2, 1]
    for number in range(100, 200):
        local.ranks[number] = rank(number, issued=number)
    reader.look()
    assert not reader.settled(since_s, FINDING)
    nodes.owe = False
    assert reader.settled(since_s, FINDING), "ranks that go on calling do not put it off for ever"
    assert nodes.asked == [2, 1]
    assert not reader.settled(since_s + 1, FINDING), "a later candidate asks anew"


def test_where_nobody_new_is_in_question_none_is_asked_twice(tmp_path: Path) -> None:
    nodes, _, reader = asked_of_many(tmp_path)
    since_s = time.monotonic()
    assert not reader.settled(since_s, FINDING)
    reader.look()
    nodes.owe = False
    assert reader.settled(since_s, FINDING)
    assert nodes.asked == [2]


@pytest.mark.parametrize("nodes_there", [64, 65])
def test_of_many_nodes_it_is_known_that_their_ranks_only_go_on_calling(
    tmp_path: Path, nodes_there: int
) -> None:
    nodes, local, reader = asked_of_many(tmp_path)
    assert not reader.only_calling()
    far = SimpleNamespace(lost_ns=0)
    nodes.nodes = dict.fromkeys(range(nodes_there), far)
    reader.look()
    assert reader.only_calling() is (nodes_there > 64)
    reader.look()
    assert local.at_rest is (nodes_there > 64)
    nodes.news += 1
    assert not reader.only_calling()
    reader.look()
    assert reader.only_calling() is (nodes_there > 64)
    local.own += 1
    assert not reader.only_calling(), "a rank of the head's own host has come to stand still"


def test_while_a_head_pauses_it_takes_in_what_comes(tmp_path: Path) -> None:
    nodes: Any = Nodes()
    job = head_of(tmp_path, nodes)
    job.pause(TAKE_EVERY_S)
    assert nodes.taken == 0, "the look that follows does it"
    began_s = time.monotonic()
    job.pause(3.5 * TAKE_EVERY_S)
    assert time.monotonic() - began_s >= 3.5 * TAKE_EVERY_S
    assert 1 <= nodes.taken <= 3
    job.head = None
    job.pause(1.5 * TAKE_EVERY_S)
    assert nodes.taken <= 3, "where there are no others there is nothing to take in"
