"""What of a record is made again, in which order; and what is said of the rest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from distdebug.benchmarks.replay import comparison
from distdebug.benchmarks.replay.plan import Ending, ReplayPlan, ending, planned
from distdebug.cli import main
from distdebug.record.kinds import kind_of
from distdebug.record.signature import ANY_SOURCE, Signature
from fixtures import recorded
from tests.support.replays import plan_of, ranks_of
from tests.unit.diagnosis.builder import Run, all_reduce, barrier, broadcast, recv, send

FINE = Ending()


def plan(run: Run, ended: Ending = FINE) -> ReplayPlan:
    return planned(run.snapshot().ranks, ended)


def events(made: ReplayPlan, rank: int, *kinds: str) -> list[list[Any]]:
    """The rank's events, without those that begin a group."""
    wanted = kinds or ("call", "wait", "create")
    return [event for event in made.ranks[rank]["events"] if event[0] in wanted]


def calls(made: ReplayPlan, rank: int) -> list[str]:
    """The rank's calls, printed."""
    texts = made.ranks[rank]["signatures"]
    return [str(Signature.from_json(texts[event[2]])) for event in events(made, rank, "call")]


def test_calls_are_made_in_their_order_with_the_time_between_them() -> None:
    run = Run(2)
    run.each(all_reduce(8))
    run.passes(3)
    run.each(broadcast(4, root=1))
    made = plan(run)
    assert calls(made, 0) == ["all_reduce(sum, float32[8])", "broadcast(src=1, float32[4])"]
    first, second = events(made, 0)
    assert first[-1] == 0
    assert 3e9 <= second[-1] < 3.1e9
    assert [event[5] for event in (first, second)] == [True, True]
    assert made.notes == []
    assert made.ranks[0]["sites"] == ["/home/user/train.py\x0088\x00step"]


def test_a_call_that_others_overlapped_is_waited_for_where_it_was_complete() -> None:
    """Of two threads of a program, one in a blocking call."""
    run = Run(1)
    run[0].calls(all_reduce(8), waits=True, thread=1)
    run[0].calls(broadcast(8), thread=2)
    run.passes(1)
    run[0].goes_on(thread=1)
    run[0].calls(barrier())
    order = [
        (event[0], event[4] if event[0] == "call" else event[1]) for event in events(plan(run), 0)
    ]
    assert order == [("call", 0), ("call", 1), ("wait", 0), ("call", 2)]
    assert [event[5] for event in events(plan(run), 0, "call")] == [False, True, True]


def test_what_one_ring_has_lost_is_left_out_on_all_ranks() -> None:
    run = Run(2)
    for _ in range(6):
        run.each(all_reduce(8))
        run[0].calls(send(1, 4))
        run[1].calls(recv(0, 4))
    run[0].history.forgotten = 5  # calls 0 to 4: three collectives, two sends
    made = plan(run)
    assert [len(calls(made, rank)) for rank in (0, 1)] == [7, 7]
    assert calls(made, 0)[0].startswith("send")
    assert "up to 5 earlier ones of rank 0 are lost" in made.notes[0]
    assert "collectives that the record of another rank has lost" in " ".join(made.notes)


def test_messages_from_any_source_are_left_out_where_some_are_lost() -> None:
    run = Run(2)
    for _ in range(3):
        run.each(all_reduce(8))
        run[0].calls(send(1, 4, tag=7))
        run[1].calls(recv(ANY_SOURCE, 4, tag=7))
    run[0].history.forgotten = 1
    made = plan(run)
    assert all("all_reduce" in call for rank in (0, 1) for call in calls(made, rank))
    assert "messages of which one side alone is on record" in " ".join(made.notes)


def test_a_receive_from_any_source_is_made_from_who_sent_first() -> None:
    run = Run(3)
    run[2].calls(send(0, 4))
    run[0].calls(recv(ANY_SOURCE, 4))
    run[1].calls(send(0, 4))
    run[0].calls(recv(ANY_SOURCE, 4))
    made = plan(run)
    assert calls(made, 0) == ["recv(src=2, float32[4])", "recv(src=1, float32[4])"]
    assert "2 receives from any source" in made.notes[0]


def test_a_call_that_was_refused_is_left_out_and_said() -> None:
    run = Run(2)
    run[1].calls(all_reduce(9), fails=True)
    run[1].groups["0", 0] = run[0].groups["0", 0]  # the backend has refused it: it does not count
    run.each(all_reduce(8))
    made = plan(run)
    assert calls(made, 0) == calls(made, 1) == ["all_reduce(sum, float32[8])"]
    assert made.notes == ["left out: 1 calls that the backend had refused"]


def test_a_call_whose_arguments_are_unknown_on_one_rank_is_left_out_on_all() -> None:
    run = Run(2)
    run[0].calls(all_reduce(8))
    run[1].calls(Signature("all_reduce"))
    run.each(barrier())
    made = plan(run)
    assert calls(made, 0) == calls(made, 1) == ["barrier()"]
    assert "2 calls whose arguments are not on record on every rank" in made.notes[0]


def test_the_end_is_kept_where_the_finding_is_about_it() -> None:
    run = Run(2)
    run.each(barrier())
    run[0].calls(all_reduce(8), waits=True)
    found = plan(run, Ending(kind_of("missing_rank"), frozenset({1})))
    assert [len(calls(found, rank)) for rank in (0, 1)] == [2, 1]
    assert [found.ranks[rank]["stays"] for rank in (0, 1)] == [True, True]
    left = plan(run, Ending(kind_of("early_exit"), frozenset({1})))
    assert [left.ranks[rank]["stays"] for rank in (0, 1)] == [True, False]
    died = plan(run, Ending(kind_of("rank_died"), frozenset({1})))
    assert [len(calls(died, rank)) for rank in (0, 1)] == [1, 1]
    assert "the run ended with rank_died, which its program did" in died.notes[0]
    assert "collectives at the end that not all ranks had come to" in died.notes[1]


def test_groups_are_made_in_their_order_among_the_calls() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    for rank in range(3):
        run[rank].creates("1", [0, 2])
    run[0].calls(barrier(), group="1")
    run[2].calls(barrier(), group="1")
    made = plan(run)
    kinds = [event[0] for event in made.ranks[2]["events"]]
    assert kinds == ["init", "call", "create", "call"]
    assert [event[0] for event in made.ranks[1]["events"]] == ["init", "call", "create"]
    assert events(made, 1, "create")[0][1:3] == [None, [0, 2]]
    assert events(made, 0, "create")[0][1] == 1


def test_a_rank_without_a_record_is_one_sentence(tmp_path: Path, capsys: Any) -> None:
    run = recorded.unpack("mismatch", tmp_path / "run")
    (run.path / "ranks" / "2.flight").unlink()
    assert main(["replay", str(run.path)]) == 2
    assert "the record of rank 2 of 4 is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-n", "3"], "-n 3: the run had 4 ranks, and its calls are made by as many"),
        (["-n", "many"], "argument -n: must be a whole number from 1 on, not 'many'"),
        (["--backend", "nccl"], "invalid choice"),
        (["--json", "/nowhere/x.json"], "--json /nowhere/x.json: name a new file"),
        (["--run-dir", "RUN"], "--run-dir names the recorded run"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: Any
) -> None:
    run = recorded.unpack("mismatch", tmp_path / "run")
    words = [str(run.path) if word == "RUN" else word for word in words]
    assert main(["replay", str(run.path), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_backend_that_is_not_offered_has_to_be_replaced(tmp_path: Path, capsys: Any) -> None:
    run = recorded.unpack("mismatch", tmp_path / "run")
    for record in (run.path / "ranks").glob("*.flight"):
        data = record.read_bytes()
        assert b'"gloo"' in data or b"cpu:gloo" in data
        record.write_bytes(data.replace(b"gloo", b"nccl"))
    assert main(["replay", str(run.path)]) == 2
    assert "say what is to make their calls, with --backend gloo|tcp|mpi" in capsys.readouterr().err
    shutil.rmtree(run.path / "ranks")
    (run.path / "ranks").mkdir()
    assert main(["replay", str(run.path)]) == 2
    assert "has no rank's record" in capsys.readouterr().err


def test_tensors_that_do_not_fit_into_memory_are_not_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = Run(2)
    run.each(all_reduce(1 << 20))
    run.each(all_reduce(1 << 20))
    run.each(all_reduce(1 << 10, dtype="float64"))
    assert plan(run).tensors_bytes == 2 * ((4 << 20) + (8 << 10))
    monkeypatch.setattr(ReplayPlan, "tensors_bytes", 1 << 60)
    found = recorded.unpack("mismatch", tmp_path / "run")
    assert main(["replay", str(found.path)]) == 2
    assert "have tensors of 1073741824.0 GiB, and this host has" in capsys.readouterr().err


def test_a_line_that_no_file_has_harms_nobody() -> None:
    run = Run(1)
    run[0].calls(all_reduce(8), line=1 << 60)
    assert plan(run).ranks[0]["sites"] == [f"/home/user/train.py\x00{1 << 30}\x00step"]


def test_the_ending_of_a_run_is_its_verdict(tmp_path: Path) -> None:
    run = recorded.unpack("mismatch", tmp_path / "run")
    report = json.loads((run.path / "report.json").read_text())
    lines = (run.path / "events.jsonl").read_text().splitlines()
    found = ending(report, map(json.loads, lines))
    assert found.kind is kind_of("op_mismatch")
    assert found.time_ns > 0
    assert found.is_about_calls
    assert ending({"outcome": "ok", "findings": []}, ()) == Ending()


def test_the_table_tells_waiting_from_moving(tmp_path: Path) -> None:
    run = recorded.unpack("straggler", tmp_path / "run")
    ranks = ranks_of(run.path)
    made = plan_of(run.path, ranks)
    rows = comparison.figures(ranks, comparison.same_names(ranks), made.kept)
    seconds = sum(one.seconds for one in rows.values())
    late_s = sum(one.late_s for one in rows.values())
    assert late_s > 0.5 * seconds > 0  # two ranks wait for the third, in each step
    text = "\n".join(comparison.table(ranks, rows, rows))
    assert f"the same {sum(one.size_bytes for one in rows.values())} bytes, group by group" in text
    fewer = {row: one for row, one in rows.items() if row[1] != "all_reduce"}
    assert " recorded, " in "\n".join(comparison.table(ranks, rows, fewer))
