"""The ranks' log files: levels, rotation, the merging reader, and the readable form."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from distdebug.record import log_file
from distdebug.record.log_file import (
    LEVELS,
    TIMES_ENTRY,
    at_least,
    chosen_level,
    readable,
    times_path,
)
from distdebug.record.runs.log_reader import LogReader, Tail


@pytest.mark.parametrize(
    ("cpp", "distributed", "level"),
    [
        *[("ERROR", other, "error") for other in ("OFF", "INFO", "DETAIL", "")],
        *[("WARNING", other, "warning") for other in ("OFF", "INFO", "DETAIL", "")],
        ("INFO", "OFF", "info"),
        ("INFO", "", "info"),
        ("INFO", "INFO", "debug"),
        ("INFO", "DETAIL", "trace"),
        ("info", "detail", "trace"),
        ("0", "INFO", "debug"),
        ("2", "DETAIL", "error"),
        ("FATAL", "DETAIL", "fatal"),
        ("", "DETAIL", "warning"),
        ("nonsense", "DETAIL", "warning"),
    ],
)
def test_the_table_of_levels(cpp: str, distributed: str, level: str) -> None:
    assert chosen_level(cpp, distributed) == level


def test_levels_are_in_order() -> None:
    assert [level for level in LEVELS if at_least(level, "warning")] == [
        "warning",
        "error",
        "fatal",
    ]
    assert at_least("unheard of", "fatal")


def _record(time_ns: int, **fields: Any) -> bytes:
    return json.dumps({"time_ns": time_ns, **fields}, separators=(",", ":")).encode() + b"\n"


def _events(reader: LogReader) -> list[Any]:
    return [entry.fields.get("event", entry.line.decode()) for entry in reader.poll()]


WRITER = """
import sys
from pathlib import Path
from distdebug.record import log_file
name = sys.argv[1]
print("ready", flush=True)
sys.stdin.readline()
for number in range(20000):
    line = f'{{"time_ns":{number},"who":"{name}","text":"{"x" * 40}"}}\\n'.encode()
    log_file.append(Path("0.jsonl"), line, 60_000)
"""


def test_two_processes_rotate_one_log_and_tear_nothing(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, name], cwd=tmp_path, **pipes)  # type: ignore[call-overload]
        for name in ("a", "b")
    ]
    for writer in writers:
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["0.jsonl", "0.jsonl.1"]
    # Of 3 MB. Only while one of them is held up in setting the file aside does the other exceed it.
    assert sum(file.stat().st_size for file in files) < 1_500_000
    assert files[0].stat().st_mode & 0o777 == 0o600
    rows = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    assert {row["who"] for row in rows} <= {"a", "b"}
    assert any(row["time_ns"] == 19_999 for row in rows)  # the newest are those that are kept


def test_a_reader_follows_through_rotation(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    reader = LogReader(tmp_path, 0)
    seen = []
    for number in range(500):
        log_file.append(path, _record(number, event=number), 2000)
        if number % 7 == 0:
            seen += _events(reader)
    seen += _events(reader)
    assert seen == list(range(500))
    late = _events(LogReader(tmp_path, 0))
    assert late == list(range(late[0], 500))
    assert len(late) > 20  # both files


def test_rotation_between_two_looks_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    tail = Tail(path)
    path.write_bytes(b"one\ntw")
    assert [line for _, line in tail.lines()] == [b"one"]
    with path.open("ab") as file:
        file.write(b"o\n")
    path.rename(log_file.older(path))
    assert [line for _, line in tail.lines()] == [b"two"]
    path.write_bytes(b"three\n")
    assert [line for _, line in tail.lines()] == [b"three"]


def test_records_and_lines_of_all_ranks_in_time_order(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").write_bytes(_record(10, event="a") + _record(40, event="d"))
    (tmp_path / "1.jsonl").write_bytes(_record(20, event="b") + _record(50, event="f"))
    (tmp_path / "pid-77.jsonl").write_bytes(_record(45, event="e"))
    (tmp_path / "1.out").write_bytes(b"c1\nc2\ng\nnot seen\n")
    entries = [(6, 30), (8, 60)]
    times_path(tmp_path / "1.out").write_bytes(b"".join(TIMES_ENTRY.pack(*e) for e in entries))
    reader = LogReader(tmp_path, 0)
    found = list(reader.poll())
    names = [entry.fields.get("event") or entry.line.decode() for entry in found]
    assert names == ["a", "b", "c1", "c2", "d", "e", "f", "g", "not seen"]
    assert [entry.time_ns for entry in found] == [10, 20, 30, 30, 40, 45, 50, 60, 60]
    assert [entry.rank for entry in found] == [0, 1, 1, 1, 0, None, 1, 1, 1]
    assert list(reader.poll()) == []
    with (tmp_path / "1.out").open("ab") as file:
        file.write(b"now\n")
    assert [entry.time_ns for entry in reader.poll(unseen_ns=99)] == [99]
    only = LogReader(tmp_path, 0, ("jsonl",), frozenset({1}))
    assert _events(only) == ["b", "f"]


def test_what_is_no_record_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    whole = _record(2, event="whole")
    lines = b'{"time_ns":1,"ev' + whole + b"junk\n[1]\n\xff\n" + b"[" * 5000 + b"\n"
    path.write_bytes(lines + _record(1, event="earlier") + b'{"time_ns":9,"event":"to')
    reader = LogReader(tmp_path, 0)
    assert _events(reader) == ["whole", "earlier"]  # within a file, the order is kept
    with path.open("ab") as file:
        file.write(b'rn"}\n')
    assert _events(reader) == ["torn"]
    assert list(reader.finish()) == []


@pytest.mark.parametrize("torn", [b"", b'{"time_ns":1,"ev', b'{"time_ns":1,"e":[{"time_ns":2},{"t'])
def test_a_record_that_holds_what_looks_like_one(tmp_path: Path, torn: bytes) -> None:
    whole = _record(3, event="listed", events=[{"time_ns": 1, "x": 2}, {"time_ns": 4}])
    (tmp_path / "0.jsonl").write_bytes(torn + whole)
    (entry,) = LogReader(tmp_path, 0).poll()
    assert (entry.time_ns, entry.fields["event"]) == (3, "listed")


def test_a_line_of_nothing_but_starts_takes_no_time(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").write_bytes(b'{"time_ns":' * 40_000 + b"\n" + _record(1, event="next"))
    assert _events(LogReader(tmp_path, 0)) == ["next"]


def test_the_readable_form() -> None:
    moment = datetime(2026, 3, 10, 14, 15, 2, 123456).astimezone()
    record = {
        "time_ns": round(moment.timestamp() * 1e6) * 1000,
        "rank": 2,
        "host": "node7.example.org",
        "pid": 5,
        "level": "info",
        "event": "loss",
        "file": "/home/user/train.py",
        "line": 88,
        "step": 3,
        "note": "a b",
        "printed": True,
    }
    assert readable(record) == (
        '[node7:2] 14:15:02.123 info    loss step=3 note="a b" (train.py:88)'
    )
    assert "\x1b[32minfo" in readable(record, colour=True)
    trace = readable({"event": "oops", "exception": "Traceback\n  File", "stack": ["a", "b"]})
    assert trace.splitlines()[1:] == ["    a", "    b", "    Traceback", "      File"]


def test_a_trace_that_is_no_text_is_shown_in_the_line() -> None:
    text = readable({"event": "x", "exception": {"a": 1}, "stack": 2})
    assert text.endswith(' x exception={"a": 1} stack=2')
    assert readable({"event": "x", "exception": "", "stack": []}).endswith(
        ' x exception="" stack=[]'
    )


@pytest.mark.parametrize(
    "hostile",
    [
        {"event": "\x1b[2J\n[rank 1] forged", "\x1b[1m": "\u202e"},
        {"time_ns": 1 << 80, "level": ["x"], "rank": {"a": "\x9b"}, "host": 5, "line": "\n"},
        {"time_ns": "soon", "file": "\x1b/a\n", "stack": "\x1b", "exception": [1, "\x07"]},
    ],
)
def test_a_hostile_record_is_harmless(hostile: dict[str, Any]) -> None:
    text = readable(hostile)
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text.split("\n")) == 1 + sum(
        len(hostile.get(name, [])) for name in ("stack", "exception")
    )


def test_messages_of_torchs_cpp_code() -> None:
    seen_ns = time.time_ns()
    now = datetime.fromtimestamp(seen_ns // 10**9).astimezone()
    stamp = f"{now:%m%d %H:%M:%S}.999999999"
    line = f"[rank2]:[W{stamp} ProcessGroupNCCL.cpp:1538] Warning: ] [x] (function ~Group)"
    assert log_file.parse_glog(line, seen_ns) == {
        "time_ns": seen_ns,  # the fraction on the line is no clock's that others use
        "level": "warning",
        "event": "torch",
        "message": "Warning: ] [x] (function ~Group)",
        "file": "ProcessGroupNCCL.cpp",
        "line": 1538,
    }
    old = log_file.parse_glog(f"[E{stamp} 4711 a.cpp:7] lost", seen_ns + 30 * 10**9)
    assert old is not None
    assert old["level"] == "error"
    assert old["time_ns"] // 10**9 == seen_ns // 10**9
    new_year_ns = int(datetime(2027, 1, 1, 0, 0, 1).astimezone().timestamp()) * 10**9
    eve = log_file.parse_glog("[I1231 23:59:59.000000001 a.cpp:7] x", new_year_ns)
    assert eve is not None
    assert 1 <= (new_year_ns - eve["time_ns"]) / 1e9 <= 2.1


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[W1122 late",
        "[Warning] 1122 04:00:00.1 a.cpp:1] x",
        " [W1122 04:00:00.123 a.cpp:1] x",
        "[W1399 04:00:00.123 a.cpp:1] x",
        "[X1122 04:00:00.123 a.cpp:1] x",
    ],
)
def test_what_is_none_of_torchs_messages(line: str) -> None:
    assert log_file.parse_glog(line, time.time_ns()) is None
