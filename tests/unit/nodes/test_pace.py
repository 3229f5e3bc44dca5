"""How often nodes tell, by how many they are; and of whose calls and stacks a head asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from distdebug.diagnosis.findings import Finding, GroupEvidence
from distdebug.nodes import many_nodes as brief
from distdebug.nodes import many_nodes as questions
from distdebug.nodes.head import Pacing
from distdebug.nodes.listener import Listener
from distdebug.nodes.many_nodes import Pace, pace_for
from distdebug.nodes.messages import unpacked
from distdebug.nodes.mirror import Sampler, process_values
from distdebug.record import steady_clock
from distdebug.record.layout import Activity, GroupState
from distdebug.record.reading.copies import FEW_NODES, far_heartbeat_s
from distdebug.record.snapshot import CallSite, Group, Process, Rank, Wait
from distdebug.reports.stored import received
from tests.unit.record.test_flight import Author

ALIVE = Process(alive=True, state="S")
WORLD = ("0", 0)
TRAIN, EVALUATE = CallSite("/a/train.py", 7, "step"), CallSite("/a/train.py", 9, "evaluate")


def rank(number: int, chain: int = 1, site: CallSite = TRAIN, issued: int = 10) -> Rank:
    """One of 8 on its node, that waits."""
    group = Group(WORLD, "default_pg", (), "gloo", GroupState.READY, issued=issued, chain=chain)
    wait = Wait(1, Activity.IN_CALL, 7, 1, call=issued - 1, site=site)
    node = number // 8 + 1
    return Rank(number, 0, number + 1, ALIVE, groups={WORLD: group}, waits=(wait,), node=node)


@pytest.fixture(autouse=True)
def _as_quick_to_switch_threads_as_ever() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before_s)


def test_few_nodes_tell_as_ever() -> None:
    assert pace_for(1) == pace_for(FEW_NODES) == Pace()
    assert far_heartbeat_s(FEW_NODES) == 30


def test_many_nodes_together_tell_no_more_than_a_head_can_read() -> None:
    for nodes in (65, 128, 500, 2048, 5000):
        pace = pace_for(nodes)
        assert nodes / pace.busy_s <= 64, "that ranks go on calling is mostly asked for"
        assert nodes / pace.idle_s <= 500
        assert nodes / pace.least_s <= 2000
        assert Pace.of(pace.told) == pace
        assert 1.2 * pace.busy_s < far_heartbeat_s(nodes), "nobody is taken for dead meanwhile"
        assert pace.idle_s <= 20, "for who stands still the clock runs"
    assert pace_for(1025) == pace_for(2048), "not each node that joins changes it"


@pytest.mark.parametrize("told", [{}, {"busy_s": "x"}, {**Pace().told, "idle_s": float("inf")}])
def test_what_is_no_pace(told: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        Pace.of(told)


def test_a_node_that_is_asked_tells_at_once_that_its_ranks_go_on(tmp_path: Path) -> None:
    """And that it is no more than that."""
    author = Author(tmp_path / "pid-7.flight")
    sampler = Sampler(tmp_path, lambda _pid, _ticks: ALIVE)
    sampler.pace = Pace(busy_s=60.0, least_s=60.0, idle_s=60.0)
    assert sampler.digests()
    author.writer.finish(*author.call())
    assert sampler.digests() == []
    sampler.hasten()
    author.writer.finish(*author.call())
    (message,) = sampler.digests()
    assert message.data["busy"] is True
    assert list(unpacked(message.blob))
    author.writer.finish(*author.call())
    assert sampler.digests() == [], "once"


@pytest.mark.parametrize(("nodes", "asked"), [(64, False), (65, True), (2048, True)])
def test_a_head_asks_only_those_who_tell_seldom(nodes: int, asked: bool) -> None:
    told: list[str] = []
    listener = SimpleNamespace(
        broadcast=lambda message: told.append(message.kind),
        send=lambda _, message: told.append(message.kind),
    )
    pacing = Pacing(cast(Listener, listener))
    pacing.joined(nodes, nodes)
    assert told == (["pace"] if asked else [])
    pacing.joined(nodes, nodes)
    assert told == (["pace", "pace"] if asked else []), "who has joined after that, too"
    assert pacing.ask() is asked
    assert told[2:] == (["tell"] if asked else [])


def test_a_rank_that_stands_still_waits_its_turn_and_one_that_ended_does_not(
    tmp_path: Path,
) -> None:
    process = [ALIVE]
    author = Author(tmp_path / "pid-7.flight")
    sampler = Sampler(tmp_path, lambda _pid, _ticks: process[0])
    sampler.pace = Pace(busy_s=60.0, least_s=60.0, idle_s=60.0)
    assert sampler.digests()
    author.call()
    assert not sampler.digests(), "it calls"
    assert not sampler.digests(), "it has come to stand still, a moment after the last digest"
    process[0] = Process(alive=False, signal=9)
    (digest,) = sampler.digests()
    assert digest.data["processes"] == [
        [0, *process_values(process[0], None, steady_clock.offset_ns())]
    ]
    sampler.pace = Pace(busy_s=60.0, least_s=0.0, idle_s=60.0)
    author.call()
    assert not sampler.digests()
    assert sampler.digests(), "it stands still, and the pace allows to say so"


def test_all_calls_are_told_of_the_records_that_were_asked_for(tmp_path: Path) -> None:
    authors = [Author(tmp_path / f"pid-{number}.flight") for number in (1, 2)]
    sampler = Sampler(tmp_path, lambda _pid, _ticks: ALIVE)
    sampler.digests()
    for author in authors:
        for _ in range(500):
            author.call()
    sampler.fill(3, [1])
    (digest,) = sampler.digests()
    assert digest.data["filled"] == 3
    told = dict.fromkeys((0, 1), 0)
    for patch in unpacked(digest.blob):
        told[patch.file] += len(patch.data)
    assert told[1] > 500 * 90 > 10 * told[0]
    assert sum(1 for _ in unpacked(digest.blob)) < 40, "neighbours are told as one"


def test_few_ranks_are_all_asked_for_their_calls() -> None:
    ranks = {number: rank(number) for number in range(questions.ALL)}
    finding = Finding("op_mismatch", "", culprits=(3,), group=GroupEvidence("0", "", (0, 1)))
    assert questions.in_question(finding, ranks) is None


def test_of_many_ranks_those_in_question_are_asked_and_one_of_each_class() -> None:
    world = tuple(range(16384))
    ranks = {number: rank(number) for number in world}
    ranks[9000] = rank(9000, chain=2)
    ranks[77] = rank(77, chain=3)
    ranks[78] = rank(78, chain=3)
    group = GroupEvidence("0", "default_pg", world)
    finding = Finding("op_mismatch", "", culprits=(9000,), victims=world[:9000], group=group)
    asked = questions.in_question(finding, ranks)
    assert asked is not None
    assert {9000, 77, 0} <= asked
    assert len(asked) <= questions.MOST


def test_who_comes_to_be_in_question_is_asked_and_a_class_of_which_one_was_asked_is_not() -> None:
    world = tuple(range(16384))
    ranks = {number: rank(number) for number in world}
    ranks[9000] = rank(9000, chain=2)
    group = GroupEvidence("0", "default_pg", world)
    finding = Finding("op_mismatch", "", culprits=(9000,), victims=world[:9000], group=group)
    asked = frozenset({9000, 500})
    assert questions.came_to_it(finding, ranks, asked) == frozenset(), "rank 500 speaks for all"
    ranks[77] = rank(77, chain=3)
    ranks[78] = rank(78, chain=3)
    assert questions.came_to_it(finding, ranks, asked) == {77}
    for number in range(4000, 5000):
        ranks[number] = rank(number, issued=number)
    assert len(questions.came_to_it(finding, ranks, asked)) == questions.MOST, "bounded"


def test_of_many_nodes_some_of_each_sort_are_looked_into() -> None:
    ranks = {number: rank(number) for number in range(16384)}
    ranks[4004] = rank(4004, site=EVALUATE)
    nodes = questions.nodes_to_look_into(ranks)
    assert nodes is not None
    assert ranks[4004].node in nodes
    assert 1 < len(nodes) <= questions.MOST_LOOKED_INTO
    assert questions.nodes_to_look_into({n: ranks[n] for n in range(64 * 8)}) is None


FINDING = {"kind": "op_mismatch", "severity": "error", "proven": True, "message": "they differ"}


def test_the_report_of_many_ranks_in_brief() -> None:
    finding = {**FINDING, "culprits": [9000], "ranks": {"0": {}, "9000": {}}}
    report = {
        "schema": "distdebug.report/1",
        "outcome": "op_mismatch",
        "exit_code": 91,
        "world_size": 16384,
        "duration_s": 1.0,
        "command": [],
        "run_dir": "run",
        "findings": [finding],
        "ranks": {str(number): {} for number in range(16384)},
        "hosts": {f"n{node}": list(range(node * 8, node * 8 + 8)) for node in range(2048)},
        "ddp": [],
        "notes": ["one"],
    }
    told = received(brief.unpacked(brief.packed(report)))
    assert told is not None
    assert told["findings"] == [finding]
    assert list(told["ranks"]) == ["0", "9000"]
    assert list(told["hosts"]) == ["n0", "n1125"]
    assert told["notes"][0] == "one"
    assert "16382 more" in told["notes"][1]
    assert brief.unpacked(b"nonsense") == {}


@pytest.mark.parametrize(("most", "whole"), [(10**9, True), (1000, False)])
def test_the_report_of_few_nodes_is_whole_unless_it_is_too_large(
    most: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 64 nodes with 64 ranks each it would be larger than what a link takes."""
    monkeypatch.setattr(brief, "MOST_WHOLE_BYTES", most)
    report = {
        "schema": "distdebug.report/1",
        "outcome": "rank_died",
        "exit_code": 94,
        "world_size": 100,
        "duration_s": 1.0,
        "command": [],
        "run_dir": "run",
        "findings": [{**FINDING, "culprits": [3], "ranks": {"3": {}}}],
        "ranks": {str(number): {"pid": number} for number in range(100)},
        "hosts": {},
        "ddp": [],
        "notes": [],
    }
    told = received(brief.unpacked(brief.packed(report, few=True)))
    assert told is not None
    assert list(told["ranks"]) == (list(report["ranks"]) if whole else ["3"])
