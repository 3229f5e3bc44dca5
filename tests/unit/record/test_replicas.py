"""Digests of parameters: what is written is read back, live, overwritten and foreign files."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from distdebug.record.notes import ReplicasNote
from distdebug.record.reading.reader import FlightReader
from distdebug.record.replicas import (
    GRADIENT,
    HEADER,
    HYPERPARAMETER,
    LEAST_ENTRIES,
    MAGIC,
    MOST_ENTRIES,
    PARAMETER,
    ReplicaFiles,
    ReplicaReader,
    ReplicaWriter,
    bits_of,
    file_name,
    number_of,
)
from distdebug.record.snapshot import CallSite, Column, Process
from distdebug.record.writing.writer import FlightWriter

GROUP = ("0", 0)
WEIGHT = [Column(PARAMETER, "weight")]
LINE = CallSite("/a/train.py", 7, "step")


def pair(tmp_path: Path, names: list[str]) -> tuple[ReplicaWriter, ReplicaReader]:
    path = tmp_path / file_name(12, 0)
    columns = [Column(PARAMETER, name) for name in names]
    writer = ReplicaWriter(path, GROUP, "0.0.abc", columns)
    return writer, ReplicaReader(path, lambda number: LINE if number == 5 else None, 1000)


def test_a_clock_that_comes_to_be_known_better(tmp_path: Path) -> None:
    """Of another node's digests, read before and behind it."""
    writer, _ = pair(tmp_path, ["weight"])
    files = ReplicaFiles(tmp_path)

    def times(offset_ns: int) -> list[int]:
        reader = files.announced(file_name(12, 0), lambda _number: None, offset_ns)
        assert reader is not None
        return [one.time_ns for one in reader.digests()]

    writer.append((3, 0), 0, 0, 10, [1])
    assert times(1000) == [1010]
    writer.append((3, 1), 1, 0, 20, [1])
    assert times(2000) == [2010, 2020]


def test_read_back_as_it_is_written(tmp_path: Path) -> None:
    writer, reader = pair(tmp_path, ["weight", "bias"])
    assert (reader.group, reader.key, reader.axis) == (GROUP, "0.0.abc", "")
    assert reader.columns == [(PARAMETER, "weight"), (PARAMETER, "bias")]
    assert reader.digests() == []
    writer.append((3, 0), 0, 5, 10, [1, 2])
    writer.append((3, 1), 1, 5, 20, [1, (1 << 64) - 1])
    first, second = reader.digests()
    assert (first.moment, first.step, first.site, first.time_ns) == ((3, 0), 0, LINE, 1010)
    assert first.total != second.total
    assert reader.values((3, 1)) == (1, (1 << 64) - 1)
    assert reader.values((4, 0)) is None
    writer.append((7, 0), 2, 0, 30, [1, 2])
    assert reader.digests()[0] == first
    assert reader.digests()[2].total == first.total
    assert reader.digests()[2].site is None
    assert os.stat(tmp_path / file_name(12, 0)).st_mode & 0o777 == 0o600


def test_what_ddp_never_had(tmp_path: Path) -> None:
    assert not pair(tmp_path, ["weight"])[1].unreduced
    path = tmp_path / file_name(12, 1)
    ReplicaWriter(path, GROUP, "key", WEIGHT, unreduced=["weight"])
    assert ReplicaReader(path, lambda _number: None, 0).unreduced == {"weight"}


def test_what_only_seems_to_be_a_replica(tmp_path: Path) -> None:
    assert not pair(tmp_path, ["weight"])[1].like
    path = tmp_path / file_name(12, 1)
    ReplicaWriter(path, GROUP, "key", WEIGHT, like=["norm.weight"])
    assert ReplicaReader(path, lambda _number: None, 0).like == ("norm.weight",)


def test_columns_of_several_quantities(tmp_path: Path) -> None:
    columns = [*WEIGHT, Column(GRADIENT, "weight"), Column(HYPERPARAMETER, "lr")]
    path = tmp_path / file_name(12, 0)
    writer = ReplicaWriter(path, GROUP, "key", columns, axis="dp")
    reader = ReplicaReader(path, lambda _number: None, 0)
    assert (list(reader.columns), reader.axis) == (columns, "dp")
    writer.append((1, 0), 1, 0, 1, [7, 8, bits_of(0.25)])
    assert len(reader.digests()) == 1
    found = reader.values((1, 0))
    assert found is not None
    assert (found[:2], number_of(found[2])) == ((7, 8), 0.25)


def test_samples_of_columns(tmp_path: Path) -> None:
    columns = [*WEIGHT, Column(PARAMETER, "bias"), Column(HYPERPARAMETER, "lr")]
    path = tmp_path / file_name(12, 0)
    writer = ReplicaWriter(path, GROUP, "key", columns, [2, 1, 0])
    reader = ReplicaReader(path, lambda _number: None, 0)
    for step in range(3):
        writer.append((step, 0), step, 0, step, [7, 8, 9], [step, -2.5, 4.0])
    assert [digest.step for digest in reader.digests()] == [0, 1, 2]
    assert reader.values((1, 0)) == (7, 8, 9)
    assert reader.samples((1, 0), columns[0]) == (1.0, -2.5)
    assert reader.samples((2, 0), columns[1]) == (4.0,)
    assert reader.samples((2, 0), columns[2]) == ()
    assert reader.samples((3, 0), columns[0]) == ()


def test_of_the_version_before(tmp_path: Path) -> None:
    """It has parameters only, and no samples."""
    definition = b'{"group": ["0", 0], "key": "k", "names": ["weight"]}'
    entry = struct.pack("<9Q", 1, 4, 0, 2, 0, 9, 77, 5, 1)
    path = tmp_path / file_name(12, 0)
    path.write_bytes(HEADER.pack(MAGIC, 1, 1, 1, len(definition)) + definition + entry)
    reader = ReplicaReader(path, lambda _number: None, 0)
    assert [(one.moment, one.step, one.total) for one in reader.digests()] == [((4, 0), 2, 77)]
    assert (list(reader.columns), reader.values((4, 0))) == (WEIGHT, (5,))
    assert reader.samples((4, 0), WEIGHT[0]) == ()


@pytest.mark.parametrize(
    "quantities",
    ['[["parameter", 2]]', '[["parameter", -1], ["gradient", 2]]', '[["mood", 1]]', "[]", "7"],
)
def test_columns_that_are_none(tmp_path: Path, quantities: str) -> None:
    definition = f'{{"group": ["0", 0], "key": "", "names": ["w"], "quantities": {quantities}}}'
    header = HEADER.pack(MAGIC, 1, 4, 1, len(definition))
    path = tmp_path / file_name(12, 0)
    path.write_bytes(header + definition.encode() + bytes(999))
    with pytest.raises((ValueError, TypeError)):
        ReplicaReader(path, lambda _number: None, 0)


@pytest.mark.parametrize("looks_every", [1, 100, 10_000])
def test_the_first_and_the_last_are_kept(tmp_path: Path, looks_every: int) -> None:
    """Whether somebody looked in between, or the writer has been round meanwhile."""
    writer, reader = pair(tmp_path, ["weight"])
    for step in range(3 * MOST_ENTRIES + 7):
        writer.append((step, 0), step, 5, step, [step])
        if step % looks_every == 0:
            reader.digests()
    kept = reader.digests()
    assert [digest.step for digest in kept] == [0, *range(2 * MOST_ENTRIES + 8, step + 1)]
    assert reader.values((0, 0)) == (0,)
    assert reader.values((step, 0)) == (step,)
    assert reader.values((2 * MOST_ENTRIES + 7, 0)) is None


def test_a_large_model(tmp_path: Path) -> None:
    count = 300_000
    writer, reader = pair(tmp_path, [str(number) for number in range(count)])
    for step in range(LEAST_ENTRIES + 2):
        writer.append((step, 0), step, 5, step, range(step, step + count))
    assert [digest.step for digest in reader.digests()] == [0, 3, 4, 5]
    found = reader.values((5, 0))
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
    ReplicaWriter(tmp_path / file_name(12, 3), GROUP, "key", WEIGHT)
    (tmp_path / "other").mkdir()
    ReplicaWriter(tmp_path / "other" / file_name(12, 4), GROUP, "key", WEIGHT)
    for name in (file_name(12, 3), f"other/{file_name(12, 4)}", "/etc/passwd", file_name(12, 9)):
        flight.note(ReplicasNote(name), "digests")
    (found,) = FlightReader(tmp_path / "pid-12.flight").view(Process(alive=True)).replicas
    assert list(found.columns) == WEIGHT
