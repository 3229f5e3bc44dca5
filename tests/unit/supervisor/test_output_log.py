"""What the supervisor keeps of a rank's output: when it came, and torch's messages as records."""

from __future__ import annotations

import io
import time
from datetime import datetime
from pathlib import Path

from debugger.record.log_reader import LogReader
from debugger.supervisor.output import OutputFollower


def test_lines_have_the_time_when_they_came_and_torchs_are_records(tmp_path: Path) -> None:
    follower = OutputFollower(tmp_path, io.StringIO(), io.StringIO())
    before_ns = time.time_ns()
    stamp = f"{datetime.fromtimestamp(before_ns / 1e9).astimezone():%m%d %H:%M:%S}"
    (tmp_path / "0.err").write_bytes(
        b"plain\n10%\r[W" + stamp.encode() + b".000000001 socket.cpp:9] lost\r\n[W torn"
    )
    follower.poll()
    between_ns = time.time_ns()
    (tmp_path / "1.out").write_bytes(
        f"[W{stamp}.000000001 a.cpp:9] printed by a program\n".encode()
    )
    follower.poll()
    follower.finish()
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
