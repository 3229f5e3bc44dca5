"""What a rank knows of the other nodes of its job, and what its supervisor makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from distdebug.nodes.job import Job
from distdebug.nodes.several import Several, perhaps
from distdebug.rank.process import meeting
from distdebug.rank.process.meeting import NodesMeeting, meet_nodes, nodes_of_environment
from distdebug.rank.torch_private import rendezvous
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import Process

ELSEWHERE = "192.0.2.7"
"""It is nobody's (RFC 5737)."""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"GROUP_WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "24"}, (3, 3)),
        ({"GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "8"}, (1, 1)),
        ({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4"}, (1, 1)),
        ({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "16"}, (2, 13)),
        ({"WORLD_SIZE": "16"}, None),
        ({"LOCAL_WORLD_SIZE": "many", "WORLD_SIZE": "16"}, None),
        ({}, None),
    ],
)
def test_nodes_by_what_the_launcher_has_told_a_rank(
    environment: Mapping[str, str], expected: tuple[int, int] | None
) -> None:
    assert nodes_of_environment(environment) == expected


@pytest.mark.parametrize(
    ("by_launcher", "reached", "expected"),
    [("True", True, "launcher's"), ("True", False, "its own"), ("False", True, "its own")],
)
def test_ranks_that_make_a_store_of_their_own_meet_in_the_launchers(
    by_launcher: str, reached: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, so that those meet that have come to theirs and those that have not, yet. Where
    no launcher serves one, the variables name a store that a rank may serve, or nobody."""
    told = {"DISTDEBUG_MEET": "1", "MASTER_ADDR": "launcher", "MASTER_PORT": "29400"}
    told |= {"TORCHELASTIC_USE_AGENT_STORE": by_launcher, "DISTDEBUG_LAUNCHER": ""}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    begun: list[tuple[str, str]] = []

    def connected(host: str, _port: int, _until_s: float) -> str:
        if not reached:
            raise OSError("nobody listens")
        return f"{host}'s"

    monkeypatch.setattr(rendezvous, "connected", connected)
    monkeypatch.setattr(rendezvous, "on_rank_store", lambda heard: heard(lambda: "its own", "", ""))
    monkeypatch.setattr(NodesMeeting, "begin_early", lambda *_: None)
    monkeypatch.setattr(NodesMeeting, "wait", lambda _: None)
    monkeypatch.setattr(
        NodesMeeting, "begin", lambda _, opened, host, __: begun.append((opened(), host))
    )
    meet_nodes(Path("unused"))
    assert begun == [(expected, "launcher" if by_launcher == "True" else "")]


@pytest.fixture(name="job")
def _job(tmp_path: Path) -> Iterator[Job]:

    job = Job(perhaps(""), RunDirectory.create(tmp_path), lambda *_: Process(), lambda _: None)
    yield job
    job.close()


def meets(job: Job, **request: Any) -> bool:
    """Whether the supervisor offers to be the head."""
    return bool(json.loads(job.actions()["meet"](request))["offer"])


def test_ranks_that_join_at_loopback_are_all_here(job: Job) -> None:
    assert not meets(job, host="localhost", nodes=None)
    assert not meets(job, host="127.0.0.1", nodes=None)
    assert not meets(job, host="", nodes=None), "a file"
    assert job.several is not None
    assert job.several.guessed


def test_a_rank_knows_how_many_nodes_there_are(job: Job) -> None:
    """Also after ranks that did not: a helper may have had a group of its own."""
    assert not meets(job, host="localhost", nodes=None)
    assert meets(job, host="127.0.0.1", nodes=[2, 2])
    assert job.several == Several(2, 2)
    assert not meets(job, host="127.0.0.1", nodes=[2, 2]), "another rank has asked"


def test_a_store_on_another_host_says_that_there_are_others(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    towards = "distdebug.nodes.job.address_towards"
    monkeypatch.setattr(towards, lambda *_: "127.0.0.1")
    assert meets(job, host=ELSEWHERE, nodes=None)
    assert job.several is not None
    assert (job.several.fewest, job.several.guessed) == (2, False)


@pytest.mark.parametrize("nodes", [[2], ["2", 2], [2.5, 3], "22", {"0": 2, "1": 2}])
def test_what_is_no_number_of_nodes(job: Job, nodes: object) -> None:
    assert not meets(job, host="localhost", nodes=nodes)


class Store:
    """What of torch's a meeting uses."""

    def __init__(self, **values: str) -> None:
        self.values = {f"distdebug/{name}": value for name, value in values.items()}

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key].encode() for key in keys]

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def add(self, key: str, amount: int) -> int:
        self.values[key] = str(int(self.values.get(key, 0)) + amount)
        return int(self.values[key])


@pytest.mark.parametrize("there", [True, False])
def test_who_comes_when_its_ranks_have_ended_joins_a_head_and_is_none(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Mapping[str, Any]]] = []

    def ask(_: Path, what: str, request: Mapping[str, Any]) -> str:
        asked.append((what, request))
        return json.dumps({"offer": "ours", "key": "our key"})

    monkeypatch.setattr(meeting, "ask", ask)
    store = Store(head="the head's", nodes="1") if there else Store()
    NodesMeeting(Path("unused")).join(store, "host", "distdebug", 0.1)
    if there:
        assert asked == [
            ("meet", {"host": "host", "nodes": None}),
            ("join", {"offer": "the head's"}),
        ]
        assert store.values["distdebug/node/2"] == "our key"
    else:
        assert asked == []
        assert store.values == {}, "others may still come, and be the head"
