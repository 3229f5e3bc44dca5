"""Runs that were made to hang or to exhaust whoever opens them; each beside one that is as large as
ours may be."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from distdebug import cli
from distdebug.record import layout
from distdebug.record.reading.reader import FlightReader
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.safe_files import MOST_COST_BYTES, TooCostly, cost_bytes, object_of, parsed
from distdebug.record.snapshot import Process
from tests.unit.commands import runs_on_disk
from tests.unit.diagnosis.builder import all_reduce

WITHIN_S = 20.0
"""A small part of a second where nothing else runs."""


def changed(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return runs_on_disk.killed(tmp_path / ".distdebug")


def reported(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    began_s = time.monotonic()
    code = cli.main(["report", str(run.path)])
    assert time.monotonic() - began_s < WITHIN_S
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_slot_that_links_to_itself(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        at = layout.RING_OFFSET + layout.SLOT.size
        row = list(layout.SLOT.unpack(run.flight(rank).read_bytes()[at : at + layout.SLOT.size]))
        row[8] = row[0]
        changed(run.flight(rank), at, layout.SLOT.pack(*row))
    reader = FlightReader(run.flight(0))
    group = next(iter(reader.view(Process(alive=False)).groups))
    assert len(reader.recent(100, group)) == 1
    assert reader.at(group, 0) is None
    assert reported(run, capsys)[0] == 0
    reader.close()


def test_a_ring_as_long_as_it_can_be_is_walked_to_its_end(tmp_path: Path) -> None:
    directory = runs_on_disk.begun(tmp_path / ".distdebug")
    count = layout.RING + 50
    runs_on_disk.record(directory, 0, 1, [all_reduce(8)] * count)
    reader = FlightReader(directory.flight(0))
    group = next(iter(reader.view(Process(alive=False)).groups))
    assert len(reader.recent(10 * count, group)) == layout.RING
    found = reader.at(group, count - layout.RING)
    assert found is not None
    assert found.seq == count - layout.RING
    reader.close()
    directory.close()


@pytest.mark.parametrize("size", [2_000_000_000, 2**31 - 1, -5])
def test_a_world_that_cannot_be(
    size: int, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        changed(run.flight(rank), 20, size.to_bytes(4, "little", signed=True))
        reader = FlightReader(run.flight(rank))
        assert reader.world_size == -1
        reader.close()
    code, out, _ = reported(run, capsys)
    assert (code, "rank  1" in out or "rank 1" in out) == (0, True)


def filled(path: Path, text: bytes, most: int) -> None:
    """Put as many notes like this into the record as there is room for, up to `most`."""
    data = path.read_bytes()
    (used,) = layout.U64.unpack_from(data, layout.HEAP_USED_AT)
    head = layout.DEFINITION
    notes = b""
    room = layout.HEAP_BYTES - used - head.size - len(text)
    for number in range(1000, 1000 + most):
        if len(notes) > room:
            break
        notes += head.pack(len(text), layout.Definition.NOTE, number) + text
    changed(path, layout.HEAP_OFFSET + used, notes)
    changed(path, layout.HEAP_USED_AT, layout.U64.pack(used + len(notes)))


@pytest.mark.parametrize(("most", "too_much"), [(100_000, True), (10, False)])
def test_records_that_are_too_much_together(
    most: int, too_much: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them is within the bounds of one."""
    directory = runs_on_disk.begun(tmp_path / ".distdebug")
    note = b'{"kind":"x","t_ns":1,"message":"m","site":0,"data":[%s]}' % b",".join([b"[]"] * 40)
    for rank in range(12):
        runs_on_disk.record(directory, rank, 12, [all_reduce(8)] * 3)
        filled(directory.flight(rank), note, most)
    directory.close()
    code, out, err = reported(directory, capsys)
    sentence = "these records together say more than those of a run do"
    assert (sentence in err, code, err.count("\n")) == ((True, 2, 1) if too_much else (False, 0, 0))
    assert "rank 11" in out or "11" in out


@pytest.mark.parametrize(
    "finding", [b'"group":7', b'"culprits":["a"]', b'"seq":[]', b'"finding":{}']
)
def test_a_finding_of_a_rank_that_makes_no_sense(
    finding: bytes, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    told = (
        b'{"kind":"finding","t_ns":1,"message":"m","site":0,"finding":"nan","group":["0",0],'
        b'"seq":1,"culprits":[1],"victims":[0,2]%s}'
    )
    filled(run.flight(0), told % (b"," + finding), 3)
    code, out, err = reported(run, capsys)
    assert (code, "nan" in out, err) == (0, False, "")
    filled(run.flight(1), told % b"", 3)
    code, out, _ = reported(run, capsys)
    assert "NAN" in out


@pytest.mark.parametrize("started", [10**400, -(10**400), True, 1])
def test_a_run_that_began_at_no_time(
    started: int, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.logs / "0.jsonl").write_text('{"event": "hello", "level": "info", "time_ns": 2}\n')
    told = json.loads(run.run_json.read_text())
    run.run_json.write_text(json.dumps({**told, "started_ns": started}))
    code, out, err = reported(run, capsys)
    assert (code, bool(out), err) == (0, True, "")
    assert cli.main(["logs", str(run.path)]) == 0
    assert "hello" in capsys.readouterr().out


def test_very_many_empty_lines(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    (run.logs / "0.out").write_bytes(b"\n" * (1 << 18))
    began_s = time.process_time()
    assert cli.main(["logs", str(run.path)]) == 0
    assert time.process_time() - began_s < WITHIN_S
    assert capsys.readouterr().out.count("[rank 0] \n") == 1 << 18


def test_a_report_of_a_world_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs_on_disk.finished(tmp_path / ".distdebug")
    document = json.loads(run.report_json.read_text())
    run.report_json.write_text(json.dumps({**document, "world_size": 2_000_000_000}))
    code, out, err = reported(run, capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no run has that many ranks" in err
    run.report_json.write_text(json.dumps(document))
    assert reported(run, capsys)[0] == 0


@pytest.mark.parametrize("piece", ["[],", '{"a":1},', "[[]],"])
def test_megabytes_that_stand_for_gigabytes(
    piece: str, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "[" + piece * ((12 << 20) // len(piece)) + "0]"
    run.report_json.write_text(text)
    code, out, err = reported(run, capsys)
    assert (code, out) == (2, "")
    assert "would take too much memory" in err
    with pytest.raises(TooCostly):
        parsed(text.encode())


def test_a_report_of_256_mib(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    with open(run.report_json, "wb") as file:
        file.truncate(256 << 20)
    code, out, err = reported(run, capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_report_of_very_many_ranks_is_read() -> None:
    """16,384 ranks, each with a call, a line of code, and a stack of ten lines."""
    rank = {
        "pid": 1,
        "host": "node0123",
        "exit": {"code": 0, "signal": None},
        "calls": 18,
        "state": "in a call",
        "call": "all_reduce(sum, float32[1024])",
        "location": {"file": "/home/user/train.py", "line": 91, "function": "step"},
        "stack": ["train_step (train.py:91)"] * 10,
    }
    text = json.dumps({"ranks": {str(one): rank for one in range(16_384)}}).encode()
    assert cost_bytes(text) < MOST_COST_BYTES
    assert len(object_of(text)["ranks"]) == 16_384


def test_depth(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("[" * 1_000_000, '{"a":' * 500_000):
        run.report_json.write_text(text)
        code, out, err = reported(run, capsys)
        assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("name", ["report.json", "ranks/0.flight", "exits.jsonl", "faults.json"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(
    name: str, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.path / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    code, out, err = reported(run, capsys)
    assert out or err.count("\n") == 1
    assert code in (0, 2)


@pytest.mark.parametrize("stream", ["out", "jsonl", "out.times"])
def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(
    stream: str, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.logs / "1.out").write_text("said\n")
    (run.logs / f"0.{stream}").unlink(missing_ok=True)
    os.mkfifo(run.logs / f"0.{stream}")
    assert cli.main(["logs", str(run.path)]) == 0
    assert "[rank 1] said\n" in capsys.readouterr().out
