"""The file of branches: what is written of intervals, what is overwritten, and what is no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.record.reading.branch_file import BranchFile
from distdebug.record.writing import branch_writer as branches
from distdebug.record.writing.branch_writer import MESSAGE, PART, BranchWriter

WORLD = ("0", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / branches.file_name(7)


def written(path: Path) -> tuple[BranchWriter, int, int]:
    writer = BranchWriter(path)
    row = ("/a/train.py", 3, "step", "if x > y:", "", ["x", "api_key"], ["", " > ", ""])
    branch = writer.define("branch", *row)
    return writer, writer.define("event", branch, "True"), writer.define("group", *WORLD)


def test_intervals_are_read_back_to_the_call_that_is_asked_for(path: Path) -> None:
    writer, event, group = written(path)
    writer.interval(group, 0, 0, (event,), [[1.5, "hidden"]])
    writer.interval(0, PART, 0, (event, event), [0, 0])
    writer.interval(group, MESSAGE, 1, (), [])
    writer.interval(group, 1, 0, (event,), [[[], ["float32[2]"]]])
    found = BranchFile(path).intervals(WORLD, 0)
    assert found is not None
    assert [(one.called, one.seq, one.thread, len(one.taken)) for one in found] == [
        (False, None, 0, 2),
        (True, None, 1, 0),
        (True, 1, 0, 1),
    ]
    taken = found[-1].taken[0]
    assert (taken.branch.line, taken.outcome, taken.values) == (3, "True", (None, "(redacted)"))
    whole = BranchFile(path).intervals(WORLD, -1)
    assert whole is not None
    assert whole[0].taken[0].values == ("1.5", "(redacted)")


def test_what_was_overwritten_is_not_on_record(path: Path) -> None:
    writer, event, group = written(path)
    calls = branches.RING_BYTES // 64
    for seq in range(calls):
        writer.interval(group, seq, 0, (event,), [["x" * 60, 1]])
    reader = BranchFile(path)
    assert reader.intervals(WORLD, -1) is None
    assert reader.intervals(WORLD, 3) is None
    last = reader.intervals(WORLD, calls - 2)
    assert last is not None
    assert last[0].taken[0].values == (repr("x" * 58)[:-1] + "…", "(redacted)")
    # Where the ring comes round every line is whole.
    many = reader.intervals(WORLD, calls // 2)
    assert many is not None
    assert [one.seq for one in many] == [*range(calls // 2 + 1, calls)]


def test_what_is_too_long_is_put_down_without_its_values(path: Path) -> None:
    writer, event, group = written(path)
    writer.interval(group, 0, 0, [event] * 1000, [["x" * 60, 1]] * 1000)
    found = BranchFile(path).intervals(WORLD, -1)
    assert found is not None
    assert [one.values for one in found[0].taken] == [None] * 1000


@pytest.mark.parametrize("content", [None, b"", b"DDBRANCH" * 9, b"\0" * branches.FILE_BYTES])
def test_what_is_no_such_file_has_nothing_on_record(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    assert not BranchFile(path).on_record
    assert BranchFile(path).intervals(WORLD, -1) is None


def test_damage_is_nothing_on_record(path: Path) -> None:
    writer, event, group = written(path)
    writer.interval(group, 0, 0, (event,), [])
    damaged = bytearray(path.read_bytes())
    damaged[64:80] = b"[" * 16
    path.write_bytes(damaged)
    assert BranchFile(path).intervals(WORLD, -1) is None
