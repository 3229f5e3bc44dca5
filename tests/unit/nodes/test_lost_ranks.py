"""Which ranks are on nodes that have fallen silent, be it that one was lost before it told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from distdebug.nodes.files import InjectedCopies
from distdebug.nodes.head import Head, RemoteNode
from distdebug.nodes.mirror import Mirror
from distdebug.nodes.missing import Lost, Unwatched, lost_nodes, unseen
from distdebug.nodes.several import MOST, Several
from distdebug.record.layout import GroupState
from distdebug.record.snapshot import Group, LostNode, Process, Rank, Snapshot

THREE, ELASTIC = Several(3, 3), Several(1, 3)


def node(
    number: int, *, starts: int = 0, lost: bool = False, over: bool = False, left: bool = False
) -> RemoteNode:
    """`node1` and so on; a lost one was heard last at so many seconds."""
    nothing = cast(Mirror, None), cast(InjectedCopies, None)
    heard_ns = number * 10**9 if lost else 0
    return RemoteNode(
        number, f"node{number}", *nothing, starts, over=over, left=left, lost_ns=heard_ns
    )


def found(
    several: Several, told: Mapping[int, Sequence[int]], missing: Sequence[int], *nodes: RemoteNode
) -> Lost:
    head = SimpleNamespace(nodes={one.number: one for one in nodes}, given_up_ns=0)
    return lost_nodes(cast(Head, head), several, told, missing)


def lost(number: int, *ranks: int) -> LostNode:
    return LostNode(f"node{number}", number * 10**9, ranks)


@pytest.mark.parametrize("starts", [0, 1])
def test_who_is_unseen_is_on_the_node_that_was_lost_before_it_told(starts: int) -> None:
    nodes = node(1, starts=starts), node(2, starts=starts, lost=True)
    assert found(THREE, {0: [0], 1: [1]}, [2], *nodes) == Lost((lost(2, 2),))


def test_a_node_that_has_told_of_some_of_its_ranks_has_the_others() -> None:
    nodes = node(1, starts=2), node(2, starts=2, lost=True)
    told = {0: [0, 1], 1: [2, 3], 2: [4]}
    assert found(THREE, told, [5], *nodes) == Lost((lost(2, 4, 5),))


def test_two_lost_nodes_have_them_together() -> None:
    nodes = node(1, starts=1, lost=True), node(2, starts=1, lost=True)
    together = LostNode("node1", 10**9, (1, 2), ("node2",))
    assert found(THREE, {0: [0]}, [1, 2], *nodes) == Lost((together,))


def test_a_lost_node_that_has_told_is_apart_from_one_that_has_not() -> None:
    nodes = node(1, starts=1, lost=True), node(2, starts=1, lost=True)
    assert found(THREE, {0: [0], 1: [1]}, [2], *nodes) == Lost((lost(1, 1), lost(2, 2)))


def test_while_others_may_have_them_nobody_knows_which() -> None:
    nodes = node(1, starts=1), node(2, starts=1, lost=True)
    assert found(THREE, {0: [0]}, [1, 2], *nodes) == Lost((lost(2),))
    assert found(Several(3, 3, ranks=2), {0: [0], 1: [2]}, [1, 3], *nodes) == Lost((lost(2),))


def test_a_node_without_distdebug_may_have_them() -> None:
    """Two of three have met; and where the lost one has all that are unseen, no other has any."""
    assert found(THREE, {0: [0]}, [1, 2], node(1, lost=True)) == Lost((lost(1),))
    assert found(THREE, {0: [0]}, [1], node(1, starts=1, lost=True)) == Lost((lost(1, 1),))


def test_of_an_elastic_job_a_node_may_be_in_no_world() -> None:
    nodes = node(1, starts=2), node(2, starts=2, lost=True)
    told = {0: [0, 1], 1: [2, 3]}
    several = Several(1, 4, ranks=2)
    assert found(several, told, [], *nodes) == Lost(), "it came too late"
    assert found(several, told, [4, 5], *nodes) == Lost((lost(2, 4, 5),))
    assert found(several, told, [4, 5, 6, 7], *nodes) == Lost((), ("node2",))
    assert found(ELASTIC, {0: [0]}, [1], node(1, lost=True)) == Lost((), ("node1",))
    assert found(Several(1, MOST), {0: [0]}, [1], node(1, lost=True)) == Lost((), ("node1",))


def test_who_has_told_of_all_its_ranks_has_no_more_of_them() -> None:
    """Those of a node without distdebug are unseen, and no lost node's."""
    nodes = node(1), node(2, lost=True)
    assert found(Several(4, 4), {0: [0], 1: [1], 2: [2]}, [3], *nodes) == Lost((lost(2, 2),))


def test_a_node_whose_command_has_ended_has_none() -> None:
    """The twin: it may fall silent, or have left, and who is unseen is on a node that is watched by
    nobody."""
    assert found(THREE, {0: [0]}, [1], node(1, over=True, lost=True)) == Lost()
    assert found(THREE, {0: [0]}, [1], node(1, over=True, left=True)) == Lost()


def rank(number: int, node: int, world: int, grouped: bool) -> Rank:
    ranks = tuple(range(world))
    group = Group(("0", 0), "default_pg", ranks, "gloo", GroupState.READY)
    groups = {group.key: group} if grouped else {}
    return Rank(number, world, 1, Process(True), groups=groups, node=node)


def test_who_is_unseen_is_known_before_there_is_a_group() -> None:
    for grouped in (False, True):
        ranks = {0: rank(0, 0, 4, grouped), 2: rank(2, 1, 4, grouped)}
        assert unseen(Snapshot(0, 0, ranks)) == (1, 3)
    assert unseen(Snapshot(0, 0, {0: rank(0, 0, 0, False)})) == ()


def test_who_is_on_a_lost_node_is_not_called_unwatched() -> None:
    said: list[str] = []
    world = Snapshot(0, 4, {0: rank(0, 0, 4, True), 1: rank(1, 1, 4, True)})
    unwatched = Unwatched(said.append)
    unwatched.look(world, lost={2, 3})
    unwatched.tell()
    assert said == []
    unwatched.look(world, lost={2})
    unwatched.tell()
    (sentence,) = said
    assert sentence.startswith("rank 3 is not watched")
