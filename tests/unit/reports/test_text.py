"""How a report reads, to the letter: verdict first, ranks by where they stand, evidence last."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.record.kinds import KINDS
from distdebug.reports import text
from tests.unit.diagnosis.builder import Run, all_reduce, barrier, broadcast, recv, send

from .documents import at, of_run, report

EVIDENCE = "  evidence: .distdebug/20260310-141502-7f3a/   exit code {}\n"


def ends(kind: str) -> str:
    """The last lines below a finding of this kind."""
    return f"  distdebug explain {kind}\n" + EVIDENCE.format(KINDS[kind].exit_code)


def mismatch(size: int = 4) -> Run:
    run = Run(size)
    for _ in range(17):
        run.each(all_reduce(1024))
    run[tuple(rank for rank in range(size) if rank != 2)].calls(
        all_reduce(1024), waits=True, line=88
    )
    run[2].calls(broadcast(1024, root=0), waits=True, line=91)
    return run


def test_a_mismatch_on_four_ranks() -> None:
    assert text.render(of_run(mismatch())) == (
        'MISMATCH  ranks disagree at collective #17 of group "default_pg" (4 ranks)\n'
        "  ranks 0,1,3   all_reduce(sum, float32[1024])    train.py:88 in step\n"
        "  rank  2       broadcast(src=0, float32[1024])   train.py:91 in step   <- look here\n"
        "  they agree on #0 to #16\n"
        "    --- ranks 0,1,3, from #14\n"
        "    +++ rank 2, from #14\n"
        "     all_reduce(sum, float32[1024])\n"
        "     all_reduce(sum, float32[1024])\n"
        "     all_reduce(sum, float32[1024])\n"
        "    -all_reduce(sum, float32[1024])\n"
        "    +broadcast(src=0, float32[1024])\n" + ends("op_mismatch")
    )


def test_a_narrow_terminal_gets_all_of_it_on_more_lines() -> None:
    document = of_run(mismatch())
    narrow = text.render(document, width=60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert narrow.startswith(
        "MISMATCH  ranks disagree at collective #17 of group\n"
        '    "default_pg" (4 ranks)\n'
        "  ranks 0,1,3   all_reduce(sum, float32[1024])\n"
        "                train.py:88 in step\n"
        "  rank  2       broadcast(src=0, float32[1024])\n"
        "                train.py:91 in step   <- look here\n"
    )
    assert narrow.split() == text.render(document, width=0).split()


def test_two_ranks_have_no_majority() -> None:
    run = Run(2)
    run[0].calls(all_reduce(8), waits=True, line=88)
    run[1].calls(all_reduce(9), waits=True, line=91)
    assert text.render(of_run(run)) == (
        'MISMATCH  ranks disagree at collective #0 of group "default_pg" (2 ranks)\n'
        "  rank 0   all_reduce(sum, float32[8])   train.py:88 in step\n"
        "  rank 1   all_reduce(sum, float32[9])   train.py:91 in step\n"
        "  no majority: any of them may be the one that is wrong\n"
        "  it is the first collective of the group\n" + ends("shape_mismatch")
    )


def test_a_skipped_call_is_told() -> None:
    run = Run(3)
    run[0, 2].calls(broadcast(8))
    run[0, 2].calls(all_reduce(8), waits=True)
    run[1].calls(all_reduce(8))
    run[1].calls(barrier(), waits=True)
    rendered = text.render(of_run(run))
    assert rendered.splitlines()[0].endswith("(3 ranks)")
    assert "\n  rank 1 skipped broadcast(src=0, float32[8])\n" in rendered


def test_a_deadlock_is_a_cycle_in_order() -> None:
    run = Run(3)
    run.new_group("1", [0, 1])
    run.new_group("2", [0, 1])
    run[0].calls(all_reduce(8), group="1", waits=True, line=20)
    run[1].calls(all_reduce(8), group="2", waits=True, line=30)
    run[2].calls(all_reduce(8), waits=True)
    call = "all_reduce(sum, float32[8])"
    assert text.render(of_run(run)) == (
        "DEADLOCK  ranks wait for each other in a cycle\n"
        f'  rank 0   in {call} #0 of group "1"   train.py:20 in step   -> waits for rank 1\n'
        f'  rank 1   in {call} #0 of group "2"   train.py:30 in step   -> waits for rank 0\n'
        f"  rank 2   waits in {call}             train.py:88 in step\n"
        "  rank 2 waits for them\n" + ends("deadlock")
    )


def test_a_long_cycle_is_cut() -> None:
    run = Run(40)
    for rank in range(40):
        run[rank].calls(recv((rank + 1) % 40), waits=True)
    lines = text.render(of_run(run)).splitlines()
    assert len([line for line in lines if "-> waits for rank" in line]) == 12
    assert "  ... and 28 more in the cycle, back to rank 0" in lines
    assert len(lines) == 16


def test_a_rank_that_died() -> None:
    run = Run(4)
    run.each(all_reduce(8))
    run[0, 1, 3].calls(all_reduce(8), waits=True, line=88)
    run[2].exits(signal=9)
    call = "all_reduce(sum, float32[8])"
    assert text.render(of_run(run)) == (
        "RANK DIED  rank 2 was killed by SIGKILL at train.py:40 in step; its last call was "
        f"{call}\n"
        f"  ranks 0,1,3   wait in {call}\n"
        "                train.py:88 in step\n"
        f"  rank  2       killed by SIGKILL, last call {call}\n"
        "                train.py:40 in step, last call at train.py:88 in step   <- look here\n"
        + ends("rank_died")
    )


def test_a_thread_beside_the_main_one_is_named() -> None:
    evidence = {rank: at("waits in", "barrier()", 88) for rank in range(2)}
    evidence[0] = replace(evidence[0], thread="metrics")
    finding = Finding("missing_rank", "they have not come", (1,), (0,), ranks=evidence)
    lines = text.render(report([finding])).splitlines()
    assert [line for line in lines if 'in thread "metrics"' in line] == [lines[1]]
    assert "waits in" in lines[1]


def test_a_call_where_its_rank_left_has_one_line() -> None:
    run = Run(2)
    run.each(all_reduce(8), line=40)
    run[0].calls(all_reduce(8), waits=True, line=40)
    run[1].exits(signal=9)
    assert "last call at" not in text.render(of_run(run))


def test_a_missing_rank_of_512() -> None:
    """Only 128 ranks have evidence of their own; the others stand where the run says."""
    run = Run(512)
    run.each(all_reduce(8))
    run[tuple(rank for rank in range(512) if rank != 137)].calls(all_reduce(8), waits=True)
    run.passes(61)
    document = of_run(run, stacks={137: ["load (train.py:40)", "main (train.py:12)"]})
    assert len(document["findings"][0]["ranks"]) == 128
    rendered = text.render(document)
    waited = re.search(r"has not come for (\d+) s", rendered)
    assert waited is not None
    assert rendered == (
        f"MISSING RANK  suspected: rank 137 has not come for {waited[1]} s, while ranks "
        "0-136,138-511 wait in all_reduce(sum, float32[8])\n"
        '    #1 of group "default_pg"; rank 137: runs user code at train.py:40 in step\n'
        "  ranks 0-136,138-511   wait in all_reduce(sum, float32[8])   train.py:88 in step\n"
        "  rank  137             runs user code                        train.py:40 in step"
        "   <- look here\n"
        "  stack of rank 137, innermost call first:\n"
        "    load (train.py:40)\n"
        "    main (train.py:12)\n"
        "  distdebug explain missing_rank\n"
        "  stacks of all ranks: .distdebug/20260310-141502-7f3a/stacks/stacks.txt\n"
        + EVIDENCE.format(93)
    )


def test_many_places_are_cut_to_twelve_rows_culprits_first() -> None:
    evidence = {rank: at("runs user code", None, rank) for rank in range(50)}
    finding = Finding(
        kind="missing_rank",
        message="ranks have not come",
        culprits=(45, 49),
        victims=tuple(range(45)),
        ranks=evidence,
    )
    lines = text.render(report([finding], world_size=50)).splitlines()
    assert lines[12].split()[:2] == ["rank", "49"]
    assert [line for line in lines if "<- look here" in line] == lines[11:13]
    assert lines[13] == "  ... and 38 more ranks"


def test_interrupted_says_where_each_rank_was() -> None:
    run = Run(4)
    run.each(all_reduce(8))
    run[0, 1].calls(all_reduce(8), waits=True, line=88)
    run[3].exits(0)
    ranks = run.snapshot().ranks
    document = report(ranks=ranks, outcome="interrupted", exit_code=130, world_size=6)
    assert text.render(document) == (
        "INTERRUPTED  after 12.1 s; where each rank was:\n"
        "  ranks 0,1   wait in all_reduce(sum, float32[8])               train.py:88 in step\n"
        "  rank  2     runs user code                                    train.py:40 in step\n"
        "  rank  3     finished, last call all_reduce(sum, float32[8])   train.py:40 in step, "
        "last call at train.py:88 in step\n"
        "  ranks 4,5   never seen\n" + EVIDENCE.format(130)
    )
    assert text.render({**document, "outcome": "failed", "exit_code": 1}).startswith(
        "FAILED  the program ended with exit code 1 after 12.1 s, and no cause"
    )
    assert "where each rank is:" in text.render({**document, "outcome": "running"})
    early = report(ranks=[], outcome="interrupted", exit_code=130, world_size=0)
    assert text.render(early).startswith("INTERRUPTED  after 12.1 s, before any rank was seen\n")


def test_interrupted_names_who_was_late() -> None:
    run = Run(3)
    run[0, 1].calls(all_reduce(8), waits=True, line=88)
    run.passes(70)
    late = replace(run.errors()[0], severity="warning")
    document = report(
        ranks=run.snapshot().ranks, findings=[late], outcome="interrupted", exit_code=130
    )
    lines = text.render(document).splitlines()
    assert lines[0].startswith("MISSING RANK  suspected: rank 2 has not come")
    (marked,) = [line for line in lines if "<- look here" in line]
    assert marked.split()[:2] == ["rank", "2"]
    assert "  interrupted after 12.1 s" in lines, "all ranks are in the finding's own table"
    assert lines[-1].endswith("exit code 130")


def test_ok_is_a_single_line() -> None:
    run = Run(4)
    run.each(all_reduce(8))
    assert text.render(report(ranks=run.snapshot().ranks)) == (
        "OK  4 ranks, 1 call each, 12.1 s   evidence: .distdebug/20260310-141502-7f3a/\n"
    )
    assert text.render(report()).startswith("OK  no rank was seen, 12.1 s")


def test_ok_says_how_many_were_watched_and_that_nothing_was_called() -> None:
    run = Run(4)
    run.each(all_reduce(8))
    document = report(ranks=run.snapshot().ranks)
    document["watched"] = {"ranks": [0, 1, 2, 3], "of": 6, "why": "their node has none"}
    assert text.render(document).startswith("OK  watched 4 of 6 ranks, 1 call each, 12.1 s")
    quiet = report(ranks=Run(2).snapshot().ranks)
    assert text.render(quiet).startswith("OK  2 ranks, which called nothing, 12.1 s")
    for row in quiet["ranks"].values():
        row["groups"] = 0
    assert text.render(quiet).startswith("OK  2 ranks, which made no process group, 12.1 s")


def test_a_verdict_says_how_many_were_watched() -> None:
    document = of_run(mismatch())
    document["watched"] = {"ranks": [0, 1, 2, 3], "of": 6, "why": "their node has none"}
    lines = text.render(document).splitlines()
    assert lines[-2:] == ["  watched 4 of 6 ranks", EVIDENCE.format(91).rstrip()]


def test_a_failure_says_that_no_rank_was_watched() -> None:
    document = report(outcome="failed", exit_code=1)
    document["watched"] = {"ranks": [], "of": 0, "why": "its PYTHONPATH was replaced"}
    assert text.render(document).startswith(
        "FAILED  the program ended with exit code 1 after 12.1 s, and no rank was watched: its "
        "PYTHONPATH was replaced\n"
    )


def test_further_findings_follow_shortly() -> None:
    def one(kind: str, severity: str = "error") -> Finding:
        return Finding(kind, f"about {kind}", (1,), severity=severity, observable_ns=1)

    warning = one("not_in_group", "warning")
    document = report([one("rank_died"), warning, one("early_exit")])
    assert text.render(document) == (
        "RANK DIED  about rank_died\n"
        "  rank 1   not looked at   <- look here\n"
        "  distdebug explain rank_died\n"
        "  also: EARLY EXIT  about early_exit\n"
        "    distdebug explain early_exit\n"
        "  warning: NOT IN GROUP  about not_in_group\n"
        "    distdebug explain not_in_group\n" + EVIDENCE.format(94)
    )
    fine = text.render(report([warning], outcome="ok", exit_code=0)).splitlines()
    assert fine[0].startswith("OK")
    explained = "    distdebug explain not_in_group"
    assert fine[1:] == ["  warning: NOT IN GROUP  about not_in_group", explained]
    strict = text.render(report([warning], outcome="not_in_group", exit_code=1))
    assert strict.startswith("NOT IN GROUP  about not_in_group\n")
    many = text.render(report([one("rank_died")] * 20))
    assert "  ... and 11 more in report.json\n" in many
    assert many.count("distdebug explain rank_died\n") == 1, "once for all of the kind"
    document["findings"][0]["kind"] = "of_another_version"
    assert text.render(document).count("distdebug explain") == 2


def test_at_the_end_of_a_run_it_fits_a_screen() -> None:
    """The verdict in full, all else on a line each: its begin and its end."""

    def one(kind: str, severity: str = "error") -> Finding:
        message = f"begin of {kind}: {'and so on ' * 40}its end"
        return Finding(kind, message, (1,), severity=severity, observable_ns=1)

    short = of_run(mismatch())
    assert text.on_a_screen(short) == text.render(short)
    first = replace(mismatch().errors()[0], details=("a detail",) * 9)
    further = [one("rank_died"), one("early_exit"), one("not_in_group", "warning")] * 4
    document = report([first, *further], ranks=mismatch().snapshot().ranks)
    document["notes"] = ["a note " * 40]
    whole, shown = text.render(document), text.on_a_screen(document)
    lines = shown.splitlines()
    assert whole.count("\n") > 60
    assert 24 <= len(lines) <= 40
    assert max(map(len, lines)) <= text.WIDTH
    assert max(map(len, text.on_a_screen(document, width=80).splitlines())) <= 80
    assert text.columns(io.StringIO()) == text.WIDTH, "a file is as wide as ever"
    verdict = text.render(report([first], ranks=mismatch().snapshot().ranks)).splitlines()[:-1]
    assert lines[: len(verdict)] == verdict
    also = [line for line in lines if line.startswith("  also: RANK DIED  begin of rank_died: and")]
    assert len(also) == 4
    assert all(line.endswith("and so on its end") for line in also)
    assert lines[-2:] == [
        "  in full: distdebug report .distdebug/20260310-141502-7f3a/",
        EVIDENCE.format(91).rstrip(),
    ]


def test_colour_marks_the_title_and_the_culprits_and_nothing_else_changes() -> None:
    document = of_run(mismatch())
    coloured = text.render(document, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text.render(document)
    lines = coloured.splitlines()
    assert lines[0].startswith("\x1b[1;31mMISMATCH\x1b[0m  ")
    assert "\x1b" not in lines[1]
    assert lines[2].startswith("\x1b[1m  rank  2")
    assert lines[2].endswith("<- look here\x1b[0m")


def test_an_exception_shows_its_traceback_without_our_frames() -> None:
    run = Run(2)
    run[0].calls(barrier(), waits=True)
    stack = ["/x/train.py:3 in main", "/y/site-packages/distdebug/rank/waiting.py:71 in sliced"]
    run[1].raises("ValueError: bad", stack=stack)
    rendered = text.render(of_run(run))
    assert "  traceback of rank 1, innermost call first:\n    /x/train.py:3 in main\n" in rendered
    assert "waiting.py" not in rendered


def test_files_of_one_name_are_told_apart() -> None:
    evidence = {
        0: at("waits in", "barrier()", 1, file="/home/u/a/train.py"),
        1: at("waits in", "barrier()", 1, file="/home/u/b/train.py"),
    }
    finding = Finding("early_exit", "somebody left", (0,), (1,), ranks=evidence)
    rendered = text.render(report([finding]))
    assert "a/train.py:1 in step" in rendered
    assert "b/train.py:1 in step" in rendered


@pytest.mark.parametrize("other", [send(1), barrier()])
def test_a_pair_of_culprits_is_marked(other: Any) -> None:
    evidence = {
        0: at("sends", str(other), 7),
        1: at("receives", "recv(src=0, float32[4])", 9),
    }
    finding = Finding("p2p_mismatch", "sizes differ", (0, 1), ranks=evidence)
    lines = text.render(report([finding])).splitlines()
    assert lines[0] == "MISMATCH  sizes differ"
    assert all(line.endswith("<- look here") for line in lines[1:3])
    assert lines[1].split()[2] == str(other).split()[0]


def test_what_has_no_directory_has_no_evidence_line() -> None:
    found = Finding("missing_rank", "rank 1 has not come", (1,))
    last = text.render({**report([found]), "run_dir": ""}).splitlines()[-1]
    assert last == "  exit code 93"
    running = text.render({**report(outcome="running"), "run_dir": ""})
    assert not running.splitlines()[-1].strip().startswith("evidence")
