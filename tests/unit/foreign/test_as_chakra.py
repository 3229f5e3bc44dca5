"""`export --chakra`: execution traces that PARAM's replay loads, and in which all ranks agree."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from debugger.benchmarks.replay.plan import chosen
from debugger.cli import main
from debugger.foreign import as_chakra
from debugger.record.signature import Signature
from fixtures import recorded
from tests.support.execution_traces import Comm, Trace, load
from tests.unit.diagnosis.builder import Run, all_reduce, all_to_all, barrier, recv, send


def written(run: Run, folder: Path) -> dict[int, Trace]:
    ranks = run.snapshot().ranks
    as_chakra.write(ranks, chosen(ranks).calls, folder / "traces")
    return {rank: load(folder / "traces" / f"rank-{rank}.json") for rank in ranks}


def calls(trace: Trace) -> list[Comm]:
    return [comm for comm in trace.comms if comm.name != "wait"]


def test_calls_groups_and_waits(tmp_path: Path) -> None:
    run = Run(3)
    run.each(all_reduce(4, 5))
    for rank in range(3):
        run[rank].creates("7", [0, 2])
    for rank in (0, 2):
        run[rank].calls(Signature("all_gather", (("bfloat16", (6,)),)), group="7")
    run.each(barrier())
    run[0].calls(send(2, 9, tag=4))
    run[2].calls(recv(0, 9, tag=4))
    found = written(run, tmp_path)
    world, pair = (0, 1, 2), (0, 2)
    assert [found[rank].groups for rank in range(3)] == [2, 2, 2]
    assert found[1].members == {0: world}
    assert found[2].members == {0: world, 1: pair}
    assert calls(found[2]) == [
        Comm("allreduce", 0, (1, False), world, "Tensor(float)", 20, 20),
        Comm("allgather", 1, (1, False), pair, "Tensor(c10::BFloat16)", 6, 12),
        Comm("barrier", 0, (2, False), world),
        Comm("recv", 0, (1, True), world, "Tensor(float)", 9, 9, peer=0),
    ]
    assert calls(found[0])[-1].peer == 2
    waited = [comm.request for comm in found[0].comms if comm.name == "wait"]
    assert waited == [(1, False), (1, False), (1, True)]


def test_a_wait_stands_where_the_call_was_complete(tmp_path: Path) -> None:
    run = Run(1)
    run[0].calls(all_reduce(8), waits=True, is_async=True)
    run[0].calls(all_reduce(3))
    run.passes(1)
    run[0].goes_on()
    (trace,) = written(run, tmp_path).values()
    assert [(comm.name, comm.request[0]) for comm in trace.comms] == [
        ("allreduce", 1),
        ("allreduce", 2),
        ("wait", 2),
        ("wait", 1),
    ]


def test_a_wait_does_not_stand_before_its_call(tmp_path: Path) -> None:
    run = Run(1)
    run[0].calls(all_reduce(8))
    ranks = run.snapshot().ranks
    calls = {
        rank: [dataclasses.replace(call, completed_ns=call.issued_ns - 1) for call in its]
        for rank, its in chosen(ranks).calls.items()
    }
    as_chakra.write(ranks, calls, tmp_path / "traces")
    comms = load(tmp_path / "traces" / "rank-0.json").comms
    assert [comm.name for comm in comms] == ["allreduce", "wait"]


def test_splits_are_in_elements(tmp_path: Path) -> None:
    run = Run(2)
    run[0].calls(all_to_all([1, 5], [1, 2]))
    run[1].calls(all_to_all([2, 4], [5, 4]))
    found = written(run, tmp_path)
    (first,), (second,) = calls(found[0]), calls(found[1])
    assert (first.name, first.sends, first.receives) == ("all_to_allv", (1, 5), (1, 2))
    assert (second.given, second.taken) == (6, 9)


def test_a_dtype_that_param_does_not_have_is_left_out_on_all_ranks(tmp_path: Path) -> None:
    run = Run(2)
    run.each(all_reduce(8, dtype="complex64"))
    run.each(all_reduce(8))
    run[0].calls(send(1, 5, dtype="int16"))
    run[1].calls(recv(0, 5, dtype="int16"))
    ranks = run.snapshot().ranks
    assert as_chakra.write(ranks, chosen(ranks).calls, tmp_path / "traces") == 4
    for rank in ranks:
        trace = load(tmp_path / "traces" / f"rank-{rank}.json")
        assert [comm.request for comm in calls(trace)] == [(2, False)]


@pytest.mark.parametrize("name", ["finished", "straggler", "mismatch"])
def test_the_ranks_of_a_recorded_run_agree(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each collective is in the traces of all ranks of its group: no replay would wait for one."""
    recorded.unpack(name, tmp_path / "run")
    folder = tmp_path / "traces"
    assert main(["export", str(tmp_path / "run"), "--chakra", str(folder)]) == 0
    said = capsys.readouterr().out
    traces = {int(path.stem[5:]): load(path) for path in folder.iterdir()}
    assert f"{len(traces)} execution traces in {folder}" in said
    made: dict[tuple[int, int], set[int]] = {}
    members: dict[int, tuple[int, ...]] = {}
    for rank, trace in traces.items():
        for comm in calls(trace):
            if not comm.request[1]:
                made.setdefault((comm.group, comm.request[0]), set()).add(rank)
            assert members.setdefault(comm.group, comm.ranks) == comm.ranks
    assert len(made) > 1
    for (group, _), ranks in made.items():
        assert ranks == set(members[group])


def test_a_folder_in_use_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded.unpack("finished", tmp_path / "run")
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["export", str(tmp_path / "run"), "--chakra", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
