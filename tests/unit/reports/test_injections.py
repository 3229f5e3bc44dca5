"""Faults in the report: what is explained by one, what did not happen and why."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Any

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.faults.injected import Injected
from distdebug.faults.plan import Plan
from distdebug.faults.spec import parse
from distdebug.reports import injections, junit, text
from distdebug.reports.stored import Document
from tests.unit.diagnosis.builder import Run, all_reduce, broadcast

from .documents import report

S = 1_000_000_000
SEEN_NS = 100 * S


def plan(*specs: str) -> Plan:
    return Plan(tuple(parse(spec, number, 4) for number, spec in enumerate(specs)))


def fired(fault: int, rank: int, at_s: float, where: str = "", refused: str = "") -> Injected:
    return Injected(fault, rank, 1000 + rank, round(at_s * S), where, refused=refused)


def finding(kind: str, *culprits: int, victims: Sequence[int] = (), **more: Any) -> Finding:
    return Finding(kind, "words", culprits, tuple(victims), observable_ns=SEEN_NS, **more)


def told(faults: Plan, entries: list[Injected], found: list[Finding], run: Run) -> Document:
    """The report of a run with these faults."""
    ranks = run.snapshot().ranks
    made = report(found, ranks=ranks)
    injections.add(made, [(one, 0.1) for one in found], faults, entries, ranks)
    return made


def four_ranks() -> Run:
    run = Run(4)
    for _ in range(12):
        run.each(all_reduce(8))
    return run


KILLS = plan("kill(rank=1)", "kill(rank=2)")
DELAY_AND_SKIP = plan("skip(rank=1)", "delay(rank=1, 1ms)")
INF = plan("inf(rank=1)", "skip(rank=1)")
LINK = plan("link(0->1, drop)")


@pytest.mark.parametrize(
    ("faults", "entries", "found", "explained_by"),
    [
        # In the culprit, before it was observable.
        (KILLS, [fired(0, 1, 99)], finding("rank_died", 1), 0),
        (KILLS, [fired(0, 1, 100)], finding("rank_died", 1), 0),
        # Of a victim alone: a report that names the wrong rank is not made to look right.
        (KILLS, [fired(1, 2, 99)], finding("rank_died", 1, victims=[0, 2, 3]), None),
        (KILLS, [], finding("rank_died", 1), None),
        (KILLS, [fired(7, 1, 99)], finding("rank_died", 1), None),
        (KILLS, [fired(0, 1, 99, refused="not here")], finding("rank_died", 1), None),
        # After it was detected it explains nothing; in between it does.
        (KILLS, [fired(0, 1, 100.2)], finding("rank_died", 1), None),
        (KILLS, [fired(0, 1, 100.05)], finding("rank_died", 1), 0),
        # Without a majority all are culprits: the last one that fits.
        (KILLS, [fired(0, 1, 98), fired(1, 2, 99)], finding("op_mismatch", 1, 2), 1),
        (KILLS, [fired(1, 2, 97), fired(0, 1, 98)], finding("rank_died", 1, 2), 0),
        # A delay explains what is late, and no call that differs.
        (DELAY_AND_SKIP, [fired(0, 1, 98), fired(1, 1, 99)], finding("op_mismatch", 1), 0),
        (DELAY_AND_SKIP, [fired(0, 1, 98), fired(1, 1, 99)], finding("missing_rank", 1), 1),
        (DELAY_AND_SKIP, [fired(1, 1, 99)], finding("op_mismatch", 1), 1),
        # What makes nobody slow explains no straggler.
        (DELAY_AND_SKIP, [fired(0, 1, 99)], finding("straggler", 1, severity="warning"), None),
        (DELAY_AND_SKIP, [fired(1, 1, 99)], finding("straggler", 1, severity="warning"), 1),
        # A link has two ends, and either may be named.
        (LINK, [fired(0, 0, 99)], finding("missing_rank", 1, victims=[0, 2]), 0),
        (LINK, [fired(0, 0, 99)], finding("missing_rank", 2, victims=[3]), None),
        # An Inf that is passed on may be in the sum of another rank; a call is not.
        (INF, [fired(0, 1, 98), fired(1, 1, 99)], finding("nan", 0, victims=[1]), 0),
        (INF, [fired(1, 1, 99)], finding("nan", 0, victims=[1]), None),
    ],
)
def test_which_fault_explains_a_finding(
    faults: Plan, entries: list[Injected], found: Finding, explained_by: int | None
) -> None:
    fault = injections.explanation(found, 0.1, faults, entries)
    assert (None if fault is None else fault.number) == explained_by


def test_a_finding_whose_time_is_not_known_may_be_explained() -> None:
    found = Finding("join_timeout", "words", (1,))
    fault = injections.explanation(found, None, KILLS, [fired(0, 1, 99)])
    assert fault is not None
    assert fault.number == 0


def test_a_fault_that_happened() -> None:
    run = four_ranks()
    entries = [fired(0, 1, 98, "all_reduce #5"), fired(0, 1, 99, "all_reduce #6")]
    made = told(plan("kill(rank=1)"), entries, [finding("rank_died", 1)], run)
    (one,) = made["injected"]
    assert one["fired"]
    assert (one["fault"], one["number"], one["action"], one["rank"], one["times"]) == (
        "kill(rank=1)",
        0,
        "kill",
        1,
        2,
    )
    assert (one["time_ns"], one["where"], one["not_in"]) == (98 * S, "all_reduce #5", [])
    assert made["findings"][0]["injected"] == "kill(rank=1)"
    assert (made["outcome"], made["exit_code"]) == ("rank_died", 94)
    shown = text.render(made)
    assert "  injected: kill(rank=1)\n" in shown
    assert "never" not in shown
    assert "injected: kill(rank=1)" in junit.render(made)


def test_without_a_plan_the_report_has_nothing_of_it() -> None:
    made = report([finding("rank_died", 1)])
    assert made["injected"] == []
    assert "injected" not in made["findings"][0]
    assert "inject" not in text.render(made) + junit.render(made)


def test_a_fault_that_never_happened_fails_a_run_without_findings() -> None:
    made = told(plan("kill(rank=1) @ all_reduce#50", "skip(rank=2) @ step 3"), [], [], four_ranks())
    assert (made["outcome"], made["exit_code"]) == ("failed", 2)
    first, second = made["injected"]
    assert (first["fired"], first["times"], first["not_in"]) == (False, 0, [1])
    assert first["why"] == "rank 1 made 12 all_reduce calls"
    sentence = "kill(rank=1) @ all_reduce#50 never happened: rank 1 made 12 all_reduce calls"
    shown = text.render(made)
    assert shown.startswith(f"NOT INJECTED  {sentence}\n")
    assert "not injected: skip(rank=2) @ step 3 never happened: rank 2 did not come to" in shown
    assert "exit code 2" in shown
    case = ElementTree.fromstring(junit.render(made).encode()).find(".//testcase[@name='run']")
    assert case is not None
    failure = case.find("failure")
    assert failure is not None
    assert failure.attrib == {"type": "failed", "message": sentence}
    assert second["rank"] == 2


def test_a_fault_that_never_happened_is_told_beside_a_finding() -> None:
    found = finding("rank_died", 1)
    faults = plan("kill(rank=1)", "kill(rank=2) @ call 99")
    made = told(faults, [fired(0, 1, 99)], [found], four_ranks())
    assert (made["outcome"], made["exit_code"]) == ("rank_died", 94)
    shown = text.render(made)
    assert shown.startswith("RANK DIED")
    assert "not injected: kill(rank=2) @ call 99 never happened: rank 2 made 12 calls" in shown


def test_a_warning_does_not_stand_in_for_a_fault() -> None:
    warning = finding("straggler", 1, severity="warning")
    ranks = four_ranks().snapshot().ranks
    made = report([warning], ranks=ranks, outcome="ok", exit_code=0)
    faults = plan("delay(rank=1, 1ms)", "skip(rank=1) @ call 99")
    injections.add(made, [(warning, 0.1)], faults, [fired(0, 1, 99)], ranks)
    assert (made["outcome"], made["exit_code"]) == ("failed", 2)
    shown = text.render(made)
    assert shown.startswith("NOT INJECTED  skip(rank=1)")
    assert "warning: STRAGGLER  words   (injected: delay(rank=1, 1ms))" in shown


def test_it_must_happen_in_every_rank_that_is_named() -> None:
    faults = plan("skip(rank=[0,1,3])")
    made = told(faults, [fired(0, 1, 99)], [], four_ranks())
    (one,) = made["injected"]
    assert (one["fired"], one["not_in"], made["exit_code"]) == (True, [0, 3], 2)
    assert "skip(rank=[0,1,3]) never happened in ranks 0, 3: " in text.render(made)
    all_of_them = [fired(0, rank, 99) for rank in (0, 1, 3)]
    assert told(faults, all_of_them, [], four_ranks())["exit_code"] == 0


def test_of_a_link_one_end_is_enough() -> None:
    faults = plan("partition({0,1}|{2,3})")
    assert told(faults, [fired(0, 2, 99)], [], four_ranks())["exit_code"] == 0
    assert told(faults, [], [], four_ranks())["exit_code"] == 2


def test_a_fault_that_cannot_happen_decides_the_run() -> None:
    found = finding("rank_exception", 0)
    refusal = fired(0, 0, 99, refused="links of gloo are its own; use tcp")
    made = told(plan("link(0->1, drop)"), [refusal], [found], four_ranks())
    assert (made["outcome"], made["exit_code"]) == ("failed", 2)
    shown = text.render(made)
    assert shown.startswith("NOT INJECTED  link(0->1, drop): links of gloo are its own; use tcp\n")
    assert "also: EXCEPTION" in shown
    assert "never" not in shown


def test_while_the_run_goes_on_nothing_is_missing() -> None:
    ranks = four_ranks().snapshot().ranks
    made = report(ranks=ranks, outcome="running", exit_code=0)
    injections.add(made, [], plan("kill(rank=1) @ call 99"), [], ranks)
    assert (made["outcome"], made["exit_code"]) == ("running", 0)
    assert "never" not in text.render(made)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("kill(rank=1) @ all_reduce#50", "rank 1 made 12 all_reduce calls"),
        ("kill(rank=1) @ broadcast#50", "rank 1 made 1 broadcast call"),
        ("kill(rank=1) @ barrier", "rank 1 made no barrier call"),
        (
            "kill(rank=1) @ all_reduce#3",
            "rank 1 made 12 all_reduce calls, and none that it could happen to",
        ),
        ("kill(rank=1) @ call 13", "rank 1 made 13 calls"),
        ("kill(rank=1) @ seq 40", 'rank 1 made 13 collectives in group "default_pg"'),
        ("kill(rank=1) @ seq 40 of default_pg", 'rank 1 made 13 collectives in group "default_pg"'),
        ("kill(rank=1) @ seq 40 of mesh", "rank 1 was in no group mesh"),
        ("kill(rank=1) @ step 3", "rank 1 did not come to step 3"),
        ("kill(rank=1) @ 30s", "rank 1 had ended by then, or did nothing more"),
        ("kill(rank=5)", "no rank 5 was seen"),
        ("link(0->1, drop)", "it works on tcp, and rank 0 used gloo"),
    ],
)
def test_why_it_did_not_happen(spec: str, why: str) -> None:
    run = four_ranks()
    run.each(broadcast(8))
    (one,) = injections.fates(Plan((parse(spec),)), [], run.snapshot().ranks)
    assert one["why"].startswith(why)
    assert not one["fired"]


def test_in_a_network_of_the_ranks_own_no_backend_is_the_reason() -> None:
    run = four_ranks()
    run.each(broadcast(8))
    plan = Plan((parse("link(0->1, drop) @ frame 900"),), namespaces=True)
    (one,) = injections.fates(plan, [], run.snapshot().ranks)
    assert one["why"] == "rank 0 sent no frame 900 on that link"


def test_what_a_rank_says_is_harmless() -> None:
    entries = [fired(0, 1, 98, "all_reduce\x1b[2J\nOK")]
    (one,) = injections.fates(plan("kill(rank=1)"), entries, {})
    assert one["where"] == "all_reduce\\x1b[2J\\x0aOK"
