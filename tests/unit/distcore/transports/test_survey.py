"""When a call's time runs out, all ranks name the one that stands at the chains' ends."""

from __future__ import annotations

import time

import pytest
import torch

from distcore import errors
from distcore.algorithms import collectives
from distcore.algorithms.choice import choice_from
from distcore.base.deadline import Deadline
from distcore.base.reduction import reduction_for
from distcore.transports import survey
from distcore.transports.base import Receive, Send
from distcore.transports.mesh import Mesh
from distcore.transports.survey import Answers, answers_within_s
from tests.support.gate import Gate
from tests.support.meshes import on_meshes

TIME_S = 0.5
ANSWERS_S = 1.5
"""So long a rank may take to answer on a crowded machine."""
SUM = torch.distributed.ReduceOp.SUM


@pytest.fixture(autouse=True)
def _answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "LEAST_S", ANSWERS_S)


def all_reduce(mesh: Mesh, wish: str, elements: int, time_s: float, gate: Gate) -> None:
    data = torch.ones(elements)
    mesh.begin("all_reduce(sum)", Deadline.after(time_s))
    gate.come()
    collectives.all_reduce(mesh, data, reduction_for(SUM, data.dtype), choice_from(wish))
    mesh.end()


@pytest.mark.parametrize(("kind", "elements"), [("tcp", 4), ("shm", 300_000)])
@pytest.mark.parametrize("wish", ["ring", "doubling", "halving", "direct", "two_step"])
def test_all_name_the_one_that_does_not_come(wish: str, kind: str, elements: int) -> None:
    """Most ranks wait for others that wait as well; the times do not run out all at once."""
    absent = 2

    def body(mesh: Mesh) -> None:
        if mesh.rank != absent:
            all_reduce(mesh, wish, elements, TIME_S + 0.05 * mesh.rank, gate)

    with Gate(3) as gate:
        found = on_meshes(4, kind, body)
    assert found.pop(absent) is None
    for error in found:
        assert isinstance(error, errors.DeadlineExceeded), error
        assert error.culprit == 10 * absent, error
        assert f"rank {10 * absent}" in str(error)
        assert "does not answer" in str(error)


def test_nobody_is_named_where_all_come() -> None:
    gate = Gate(4)
    assert on_meshes(4, "tcp", lambda mesh: all_reduce(mesh, "ring", 9, 30.0, gate)) == [None] * 4


def test_who_had_long_may_take_longer_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert answers_within_s(Deadline.after(0.1)) == answers_within_s(7.0) == 0.5
    assert answers_within_s(Deadline.after(8)) == 2
    assert answers_within_s(Deadline.after(1800)) == 5


CHAINS: dict[str, tuple[dict[int, tuple[int, ...]], list[int], str]] = {
    "itself": ({0: (1,)}, [1], "rank 10 does not answer"),
    "one between": ({0: (1,), 1: (2,)}, [2], "rank 10 waits for rank 20, which does not answer"),
    "two between": (
        {0: (3,), 3: (2,), 2: (1,)},
        [1],
        "rank 30 waits for rank 20, rank 20 waits for rank 10, which does not answer",
    ),
    "two chains, one end": (
        {0: (1, 2), 1: (3,), 2: (3,)},
        [3],
        "rank 10 waits for rank 30, which does not answer",
    ),
    "two ends": (
        {0: (1, 2)},
        [1, 2],
        "rank 10 does not answer; rank 20 does not answer",
    ),
    "a circle": ({0: (1,), 1: (2,), 2: (1,)}, [], "every rank in turn waits for another"),
    "a circle and an end": ({0: (1,), 1: (0, 2)}, [2], "rank 10 waits for rank 20, which does"),
    "of others": ({0: (1,), 2: (3,)}, [1], "rank 10 does not answer"),
}


@pytest.mark.parametrize("name", CHAINS)
def test_what_follows_from_the_answers(name: str) -> None:
    answers, silent, text = CHAINS[name]
    found = Answers(0, answers)
    assert found.silent == silent
    assert found.explained([0, 10, 20, 30]).startswith(text)


def test_the_chain_is_told() -> None:
    """3 waits for 2, 2 for 1, 1 for 0, which sends nothing; only 3's time runs out, and it tells
    the others that it asks."""

    def body(mesh: Mesh) -> None:
        if mesh.rank:
            mesh.begin("chain()", Deadline.after(TIME_S if mesh.rank == 3 else 60))
            gate.come()
            mesh.exchange([], [Receive(mesh.rank - 1, memoryview(bytearray(8)))])

    began = time.monotonic()
    with Gate(3) as gate:
        _absent, *others = on_meshes(4, "tcp", body)
    assert time.monotonic() - began < 40
    for error in others:
        assert isinstance(error, errors.DeadlineExceeded)
        assert error.culprit == 0
        assert "does not answer" in str(error)


def test_a_circle_blames_nobody_else() -> None:
    """A message was lost: both wait, and each only knows the other."""

    def body(mesh: Mesh) -> None:
        mesh.begin("circle()", Deadline.after(TIME_S))
        gate.come()
        mesh.exchange([], [Receive(1 - mesh.rank, memoryview(bytearray(8)))])

    with Gate(2) as gate:
        found = on_meshes(2, "tcp", body)
    for rank, error in enumerate(found):
        assert isinstance(error, errors.DeadlineExceeded)
        assert error.culprit in (0, 10), rank
        assert "every rank in turn waits for another" in str(error)


def test_data_in_the_way_is_read_past() -> None:
    """Rank 0's question lies behind data that rank 1, which waits for rank 2, does not take yet."""

    def body(mesh: Mesh) -> None:
        if mesh.rank == 2:
            return
        peer = 1 - mesh.rank
        data = memoryview(bytearray(5000))
        mesh.begin("two()", Deadline.after(TIME_S))
        gate.come()
        if mesh.rank == 1:
            mesh.exchange([], [Receive(2, memoryview(bytearray(8)))])
        mesh.exchange([Send(peer, data)], [Receive(peer, memoryview(bytearray(8)))])

    with Gate(2) as gate:
        zero, one, _absent = on_meshes(3, "tcp", body)
    for error in (zero, one):
        assert isinstance(error, errors.DeadlineExceeded)
        assert error.culprit == 20
