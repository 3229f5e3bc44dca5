"""Digests of parameters: what is written is read back, live, overwritten and foreign files."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from debugger.record.notes import ReplicasNote
from debugger.record.reader import FlightReader
from debugger.record.replicas import (
    HEADER,
    LEAST_ENTRIES,
    MAGIC,
    MOST_ENTRIES,
    ReplicaReader,
    ReplicaWriter,
    file_name,
)
from debugger.record.snapshot import CallSite, Process
from debugger.record.writer import FlightWriter

GROUP = ("0", 0)
LINE = CallSite("/a/train.py", 7, "step")


def pair(tmp_path: Path, names: list[str]) -> tuple[ReplicaWriter, ReplicaReader]:
    path = tmp_path / file_name(12, 0)
    writer = ReplicaWriter(path, GROUP, "0.0.abc", names)
    return writer, ReplicaReader(path, lambda number: LINE if number == 5 else None, 1000)


def test_read_back_as_it_is_written(tmp_path: Path) -> None:
    writer, reader = pair(tmp_path, ["weight", "bias"])
    assert (reader.group, reader.key, reader.names) == (GROUP, "0.0.abc", ["weight", "bias"])
    assert reader.digests() == []
    writer.append((3, 0), 0, 5, 10, [1, 2])
    writer.append((3, 1), 1, 5, 20, [1, (1 << 64) - 1])
    first, second = reader.digests()
    assert (first.moment, first.step, first.site, first.time_ns) == ((3, 0), 0, LINE, 1010)
    assert first.total != second.total
    assert reader.parameters((3, 1)) == (1, (1 << 64) - 1)
    assert reader.parameters((4, 0)) is None
    writer.append((7, 0), 2, 0, 30, [1, 2])
    assert reader.digests()[0] == first
    assert reader.digests()[2].total == first.total
    assert reader.digests()[2].site is None
    assert os.stat(tmp_path / file_name(12, 0)).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("looks_every", [1, 100, 10_000])
def test_only_the_last_are_kept(tmp_path: Path, looks_every: int) -> None:
    """Whether somebody looked in between, or the writer has been round meanwhile."""
    writer, reader = pair(tmp_path, ["weight"])
    for step in range(3 * MOST_ENTRIES + 7):
        writer.append((step, 0), step, 5, step, [step])
        if step % looks_every == 0:
            reader.digests()
    kept = reader.digests()
    assert [digest.step for digest in kept] == list(range(2 * MOST_ENTRIES + 7, step + 1))
    assert reader.parameters((step, 0)) == (step,)
    assert reader.parameters((2 * MOST_ENTRIES + 6, 0)) is None


def test_a_large_model(tmp_path: Path) -> None:
    count = 300_000
    writer, reader = pair(tmp_path, [str(number) for number in range(count)])
    for step in range(LEAST_ENTRIES + 2):
        writer.append((step, 0), step, 5, step, range(step, step + count))
    assert [digest.step for digest in reader.digests()] == [2, 3, 4, 5]
    found = reader.parameters((5, 0))
    assert found is not None
    assert (found[0], found[-1]) == (5, count + 4)


def test_a_torn_entry_is_left_out(tmp_path: Path) -> None:
    writer, reader = pair(tmp_path, ["weight"])
    writer.append((1, 0), 1, 5, 1, [1])
    writer.append((2, 0), 2, 5, 2, [2])
    path = tmp_path / file_name(12, 0)
    data = bytearray(path.read_bytes())
    length = HEADER.unpack_from(data, 0)[4]
    entry = 8 * 9
    struct.pack_into("<Q", data, HEADER.size + length + 2 * entry - 8, 0)
    path.write_bytes(data)
    torn = ReplicaReader(path, lambda _number: None, 0)
    assert [digest.step for digest in torn.digests()] == [1]
    assert [digest.step for digest in reader.digests()] in ([1], [1, 2])


@pytest.mark.parametrize(
    "content",
    [b"something else " * 8, MAGIC, HEADER.pack(MAGIC, 99, 4, 1, 2) + b"{}" + bytes(999)],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / file_name(12, 0)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"truncated|no digests"):
        ReplicaReader(path, lambda _number: None, 0)


def test_a_rank_announces_its_files(tmp_path: Path) -> None:
    """Only those with a name of this kind are opened, and none but in the record's own place."""
    flight = FlightWriter(tmp_path / "pid-12.flight")
    ReplicaWriter(tmp_path / file_name(12, 3), GROUP, "key", ["weight"])
    (tmp_path / "other").mkdir()
    ReplicaWriter(tmp_path / "other" / file_name(12, 4), GROUP, "key", ["weight"])
    for name in (file_name(12, 3), f"other/{file_name(12, 4)}", "/etc/passwd", file_name(12, 9)):
        flight.note(ReplicasNote(name), "digests")
    (found,) = FlightReader(tmp_path / "pid-12.flight").view(Process(alive=True)).replicas
    assert found.names == ["weight"]
