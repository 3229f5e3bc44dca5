"""The faults of the matrix on ranks that are spread over two nodes: found as what they are on each,
at the line that one node's run names, with the hosts on which the ranks are.

What becomes of a job when a node or its network fails is in `tests/e2e/test_nodes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.forked_nodes import ForkedNodes
from tests.support.nodes import Nodes
from tests.support.on_nodes import Layout, check_nothing_is_left, needs_one_verdict
from tests.support.zygote import Zygote

from . import running
from .cases import CASES, Case
from .running import LIMIT_S, PROGRAMS, about_verdict, flags_of, matrix, program_of, twins

SHORT = {"killed-gloo-2", "asleep-tcp-4"}
ANYWHERE = {
    *("partition, 2", "partition, 4"),
    *("two processes with one rank",),
}
"""The moment of the fault is one of the clock, or there is no place of it: the line is not always
the same."""
WITHOUT_A_RANK = {"two processes with one rank"}
"""One rank of the world is never there."""


def rows(found: Iterable[tuple[Case, str, int]], prefix: str = "") -> list[Any]:
    """All but those whose ranks have a network each, which nodes give them anyway."""
    made = []
    for case, backend, size in found:
        if case.own_network:
            continue
        name = f"{prefix}{case.name.replace(' ', '_')}-{backend}-{size}"
        marks = [pytest.mark.root, needs_one_verdict, pytest.mark.timeout(180)]
        if name not in SHORT:
            marks.append(pytest.mark.long)
        made.append(pytest.param(case, backend, size, id=name, marks=marks))
    return made


def check(case: Case, backend: str, size: int, nodes: Nodes, forked: ForkedNodes) -> list[runs.Run]:
    program, flags, layout = program_of(case, backend), flags_of(case), Layout.over(2, size)
    ended = forked.run(nodes, layout, program, flags, limit_s=LIMIT_S)
    for node, done in zip(nodes, ended, strict=True):
        found = about_verdict(case, size, done)
        assert not found, f"{node.name}: {found}\n{done.explain()}"
        hosts = {int(rank): one["host"] for rank, one in done.report["ranks"].items()}
        assert hosts == {rank: f"node{layout.node_of(rank)}" for rank in hosts}, done.explain()
        assert len(hosts) == size or case.name in WITHOUT_A_RANK, done.explain()
    check_nothing_is_left(nodes)
    return ended


def places(done: runs.Run) -> dict[str, tuple[str, int, str]]:
    """Where the culprits of the verdict stand, in their program."""
    (finding, *_) = done.errors
    found = {}
    for rank in map(str, finding["culprits"]):
        place = finding["ranks"][rank]["location"]
        found[rank] = (Path(place["file"]).name, place["line"], place["function"])
    return found


@pytest.mark.parametrize(("case", "backend", "size"), [*rows(matrix()), *rows(twins(), "without_")])
def test_verdict(
    case: Case,
    backend: str,
    size: int,
    make_nodes: Callable[[int], Nodes],
    forked_nodes: ForkedNodes,
    zygote: Zygote,
    tmp_path: Path,
) -> None:
    ended = check(case, backend, size, make_nodes(2), forked_nodes)
    if not case.exit_code or case.name in ANYWHERE or len(case.specs) > 1:
        return
    expected = places(running.run(zygote, case, backend, size, tmp_path))
    for done in ended:
        assert places(done) == expected, done.explain()


@pytest.mark.root
@needs_one_verdict
@pytest.mark.timeout(180)
def test_a_fault_that_cannot_be_made_ends_all_nodes(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    """Only the ranks know that their backend is not the one that it needs."""
    nodes, spec = make_nodes(2), "link(0->1, drop) @ frame 10"
    program = [str(PROGRAMS / "loop.py"), "gloo", "--steps", "100000"]
    for done in forked_nodes.run(nodes, Layout((1, 1)), program, ("--inject", spec)):
        assert (done.report["outcome"], done.exit_code) == ("failed", 2), done.explain()
        (row,) = done.report["injected"]
        assert "faults of links need the backend tcp" in row["refused"], row
    check_nothing_is_left(nodes)


@pytest.mark.root
@needs_one_verdict
@pytest.mark.timeout(180)
def test_the_head_alone_is_asked_for_a_fault_of_another_node(
    make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    """Its plan is there before the other node's ranks make their group."""
    nodes, spec = make_nodes(2), "kill(rank=1) @ all_reduce#5"
    program = [str(PROGRAMS / "loop.py"), "gloo"]
    flags = {0: ("--inject", spec)}
    for done in forked_nodes.run(nodes, Layout((1, 1)), program, flags_on=flags):
        assert (done.report["outcome"], done.exit_code) == ("rank_died", 94), done.explain()
        assert done.errors[0]["culprits"] == [1], done.explain()
        assert done.errors[0]["injected"] == spec, done.explain()
    check_nothing_is_left(nodes)


def test_the_named_cases_exist() -> None:
    names = {f"{case.name.replace(' ', '_')}-{backend}-{size}" for case, backend, size in matrix()}
    assert names >= SHORT
    assert any(not case.own_network for case in CASES)
