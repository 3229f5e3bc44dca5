"""What the supervisor keeps of a rank's output: when it came, and torch's messages as records."""

from __future__ import annotations

import shutil
import time
from datetime import datetime
from pathlib import Path

from distdebug.record.runs.log_reader import LogReader
from distdebug.supervisor.output.drain import OutputLog


def test_lines_have_the_time_when_they_came_and_torchs_are_records(tmp_path: Path) -> None:
    err, out = (
        OutputLog(tmp_path / name, int(name[0]), 1 << 20, cpp=name.endswith("err"))
        for name in ("0.err", "1.out")
    )
    before_ns = time.time_ns()
    stamp = f"{datetime.fromtimestamp(before_ns / 1e9).astimezone():%m%d %H:%M:%S}"
    err.take(b"plain\n10%\r[W" + stamp.encode() + b".000000001 socket.cpp:9] lost\r\n[W torn")
    err.note_time()
    between_ns = time.time_ns()
    out.take(f"[W{stamp}.000000001 a.cpp:9] printed by a program\n".encode())
    out.note_time()
    after_ns = time.time_ns()
    entries = list(LogReader(tmp_path, 0).poll())
    assert [(entry.rank, entry.stream) for entry in entries if entry.fields] == [(0, "jsonl")]
    [record] = [entry.fields for entry in entries if entry.fields]
    assert (record["event"], record["level"], record["message"]) == ("torch", "warning", "lost")
    assert (record["file"], record["line"], record["rank"]) == ("socket.cpp", 9, 0)
    assert record["printed"] is True
    first, second = ([e for e in entries if e.stream == name] for name in ("err", "out"))
    assert [before_ns <= entry.time_ns <= between_ns for entry in first] == [True, True]
    assert [between_ns <= entry.time_ns <= after_ns for entry in second] == [True]


def test_of_a_flood_the_end_is_kept_with_its_times(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "0.out", 0, 4096, cpp=False)
    times = []
    for number in range(1000):
        log.take(b"line %d\nli" % number if number % 2 else b"ne %d\n" % number)
        if number % 50 == 49:
            log.note_time()
            times.append((number, time.time_ns()))
    sizes = [path.stat().st_size for path in tmp_path.glob("0.out*") if path.suffix != ".times"]
    assert len(sizes) == 2
    assert sum(sizes) <= 4096
    entries = list(LogReader(tmp_path, 0).poll())
    numbers = [int(entry.line.split()[1]) for entry in entries[1:]]
    assert numbers == list(range(numbers[0], 1000)), "the first may be cut, and no other is"
    assert numbers[-1] == 999
    for entry, number in zip(entries[1:], numbers, strict=True):
        after = [at for last, at in times if last >= number]
        assert entry.time_ns <= after[0]
    assert [entry.time_ns for entry in entries] == sorted(entry.time_ns for entry in entries)


def test_a_full_disk_costs_the_log_and_is_told(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    log = OutputLog(logs / "0.out", 0, 4096, cpp=False)
    log.take(b"kept\n")
    assert (log.failure, log.lost_bytes) == ("", 0)
    shutil.rmtree(logs)
    log.take(b"lost\n")
    assert log.failure == "No such file or directory"
    assert log.lost_bytes == 5
