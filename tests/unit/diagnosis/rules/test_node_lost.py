"""A node of the job that has fallen silent, and what the ranks of the others say of it."""

from __future__ import annotations

from dataclasses import replace

from distdebug.diagnosis.diagnose import diagnose
from distdebug.diagnosis.limits import UNKNOWN_NS
from distdebug.record.snapshot import LostNode, Process, Snapshot
from tests.unit.diagnosis.builder import Run, all_reduce

SECOND_NS = 1_000_000_000
CLOSED = "RuntimeError: Connection closed by peer [10.0.0.2]:4000"


def trained() -> Run:
    """Four ranks in a call, of which two see their connections close."""
    run = Run(4)
    for rank in range(4):
        run[rank].calls(all_reduce(8), waits=True)
    return run


def lost(run: Run, *ranks: int, heard_ns: int) -> Snapshot:
    snapshot = run.snapshot()
    gone = {
        number: replace(rank, process=Process(alive=False, ended_ns=heard_ns))
        if number in ranks
        else rank
        for number, rank in snapshot.ranks.items()
    }
    node = LostNode("node1", heard_ns, ranks)
    return replace(snapshot, ranks=gone, lost=(node,), taken_ns=heard_ns + 3 * SECOND_NS)


def test_its_ranks_are_the_culprits_and_the_others_victims() -> None:
    run = trained()
    heard_ns = run.now_ns
    run.now_ns += SECOND_NS // 10
    for rank in (0, 1):
        run[rank].notes_down("exception", CLOSED, type="RuntimeError")
    (found,) = diagnose(lost(run, 2, 3, heard_ns=heard_ns)).findings
    assert (found.kind, found.exit_code) == ("node_lost", 94)
    assert (found.culprits, found.victims) == ((2, 3), (0, 1))
    assert found.observable_ns == heard_ns
    assert "node1 has fallen silent" in found.message
    assert "ranks 2,3 are on it" in found.message


def test_a_node_whose_ranks_have_finished_is_not_missed() -> None:
    run = trained()
    snapshot = lost(run, 2, 3, heard_ns=run.now_ns)
    ended = {
        number: replace(rank, process=replace(rank.process, exit_code=0), waits=())
        if number in (2, 3)
        else replace(rank, waits=())
        for number, rank in snapshot.ranks.items()
    }
    assert not [
        one for one in diagnose(replace(snapshot, ranks=ended)).findings if one.kind == "node_lost"
    ]


def test_a_fault_before_it_is_the_verdict() -> None:
    run = trained()
    run[0].notes_down("exception", "ValueError: bad batch", type="ValueError")
    run.now_ns += SECOND_NS
    first, *_ = diagnose(lost(run, 2, 3, heard_ns=run.now_ns)).findings
    assert (first.kind, first.culprits) == ("rank_exception", (0,))


def test_all_supervisors_of_a_host_are_one_finding() -> None:
    """Under mpiexec each rank has a supervisor, and with the host all are lost."""
    run = trained()
    snapshot = lost(run, 2, 3, heard_ns=run.now_ns)
    first, second = run.now_ns, run.now_ns + SECOND_NS // 10
    apart = (LostNode("node1", second, (2,)), LostNode("node1", first, (3,)))
    (found,) = diagnose(replace(snapshot, lost=apart)).findings
    assert (found.culprits, found.observable_ns) == ((2, 3), first)
    assert "ranks 2,3 are on it" in found.message


def test_hosts_are_told_apart() -> None:
    run = trained()
    snapshot = lost(run, 2, 3, heard_ns=run.now_ns)
    apart = (LostNode("node1", run.now_ns, (2,)), LostNode("node2", run.now_ns + 1, (3,)))
    first = diagnose(replace(snapshot, lost=apart)).findings[0]
    assert (first.kind, first.culprits) == ("node_lost", (2,))


def test_ranks_that_were_never_seen_are_its_culprits_all_the_same() -> None:
    """It was lost before it had told of them, and the others wait for them."""
    run = trained()
    snapshot = lost(run, 2, 3, heard_ns=run.now_ns)
    seen = {number: rank for number, rank in snapshot.ranks.items() if number < 2}
    first, *_ = diagnose(replace(snapshot, ranks=seen)).findings
    assert (first.kind, first.culprits, first.victims) == ("node_lost", (2, 3), (0, 1))
    assert first.ranks[2].state == "never seen"


def test_two_nodes_that_have_some_ranks_together_are_one_finding() -> None:
    run = trained()
    snapshot = lost(run, 2, 3, heard_ns=run.now_ns)
    both = LostNode("node1", run.now_ns, (2, 3), ("node2",))
    (found,) = diagnose(replace(snapshot, lost=(both,))).findings
    assert found.culprits == (2, 3)
    assert "node1, node2 have fallen silent" in found.message
    assert "ranks 2,3 are on them" in found.message


def test_a_node_whose_ranks_nobody_knows_is_said_a_little_later() -> None:
    """Others may tell of theirs meanwhile, and those that are left are the node's."""
    run = trained()
    snapshot = lost(run, 2, 3, heard_ns=run.now_ns)
    seen = {number: rank for number, rank in snapshot.ranks.items() if number < 2}
    snapshot = replace(snapshot, ranks=seen, lost=(LostNode("node1", run.now_ns, ()),))
    assert diagnose(snapshot).findings == ()
    later = replace(snapshot, taken_ns=run.now_ns + UNKNOWN_NS)
    first, *_ = diagnose(later).findings
    assert (first.kind, first.culprits, first.exit_code) == ("node_lost", (), 94)
    assert "which ranks are on it is not known" in first.message
