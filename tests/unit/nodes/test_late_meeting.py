"""A node whose ranks have ended before they met the other nodes looks for these, and when it does
not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distdebug.nodes.job import Job
from distdebug.nodes.missing import LateMeeting
from distdebug.nodes.presence import Role
from distdebug.nodes.several import Several, perhaps
from distdebug.record.layout import Phase
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import Process, Rank
from tests.support.ports import unclaimed_port

LOOKED_FOR = "these are told of it"
TWO = Several(2, 2)


@dataclass
class Node:
    """A supervisor that is alone, and what it has said."""

    job: Job
    late: LateMeeting
    said: list[str] = field(default_factory=list)

    def looks(self, ranks: Mapping[int, Rank]) -> bool:
        began = self.late.goes_on(ranks)
        assert began == any(LOOKED_FOR in one for one in self.said), self.said
        return began


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> Iterator[Node]:
    said: list[str] = []
    directory = RunDirectory.create(tmp_path)

    job = Job(TWO, directory, lambda *_: Process(), said.append)
    late = LateMeeting(job, directory.path, said.append)
    yield Node(job, late, said)
    late.close()
    job.close()


def rank(number: int, place: str, alive: bool = False, phase: Phase = Phase.RUNNING) -> Rank:
    """Of a rank here that was to meet the others there."""
    process = Process(alive=alive, exit_code=None if alive else 1)
    return Rank(number, 2, 100 + number, process, job=place, phase=phase)


def nobody() -> str:
    """A place where nobody listens."""
    return f"127.0.0.1:{unclaimed_port()}"


def test_the_others_are_looked_for_and_not_for_ever(node: Node) -> None:
    """Rank 0, which would serve the store, has ended itself: one try is enough."""
    ranks = {0: rank(0, nobody())}
    assert node.looks(ranks)
    until_s = time.monotonic() + 60
    while node.late.goes_on(ranks):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert "of this node alone" in node.said[-1]
    assert not node.late.goes_on(ranks), "it is done once"
    assert len(node.said) == 2


def test_a_node_that_has_joined_leaves_it_to_the_head(node: Node) -> None:
    """And judges again by itself, without a second try, where that is lost."""
    ranks = {1: rank(1, nobody())}
    assert node.looks(ranks)
    member: Any = SimpleNamespace(lost="", close=lambda: None)
    node.job.member, node.job.role = member, Role.MEMBER
    assert node.late.goes_on(ranks)
    member.lost = "it is silent"
    assert not node.late.goes_on(ranks)
    assert len(node.said) == 1


def test_not_where_a_rank_may_still_meet_them(node: Node) -> None:
    assert not node.looks({0: rank(0, nobody()), 1: rank(1, nobody(), alive=True)})


def test_one_that_has_failed_and_is_about_to_end_meets_nobody(node: Node) -> None:
    """It says so before its process is gone."""
    assert node.looks({0: rank(0, nobody(), alive=True, phase=Phase.EXITING)})


def test_not_where_they_have_met_already(node: Node) -> None:
    node.job.actions()["meet"]({"host": "127.0.0.1"})
    assert not node.looks({1: rank(1, nobody())})


@pytest.mark.parametrize("place", ["", ":", "host:", "host:port", "host:0", "host:70000"])
def test_not_where_nobody_knows_the_place(place: str, node: Node) -> None:
    assert not node.looks({1: rank(1, place)})


def test_not_where_ranks_name_several_places(node: Node) -> None:
    assert not node.looks({0: rank(0, nobody()), 1: rank(1, "elsewhere:29500")})


@pytest.mark.parametrize("several", [None, perhaps("")])
def test_not_where_all_ranks_are_here(several: Several | None, node: Node) -> None:
    """Nobody has said that there are other nodes, and the store is on this one."""
    node.job.several = several
    assert not node.looks({1: rank(1, nobody())})


def test_ranks_that_no_look_has_seen_are_looked_for_once_more(node: Node) -> None:
    """A command may have failed since the last look, with all that it had started."""
    assert node.late.goes_on({})
    assert node.said == []
    assert node.looks({0: rank(0, nobody())})


def test_a_command_that_fails_without_ranks_is_over_with_the_next_look(node: Node) -> None:
    assert node.late.goes_on({})
    assert not node.late.goes_on({})
    assert node.said == []


@pytest.mark.parametrize(("task", "expected"), [("RANK=0", True), ("", False)])
def test_a_rank_that_left_no_record_was_to_meet_where_its_variables_say(
    task: str, expected: bool, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been killed while it was starting. Of a command that is no rank nobody knows."""
    host, _, port = nobody().rpartition(":")
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("MASTER_PORT", port)
    node.job.several = Several(2, 2, task=task)
    assert node.late.goes_on({}), "with the next look they may be there"
    assert node.looks({}) is expected
