"""`distdebug logs`: what its filters show, and what it says to those that make no sense."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from distdebug.cli import main
from distdebug.commands.logs import parse_time
from distdebug.record import log_file
from distdebug.record.runs.run_directory import RunDirectory

from . import runs_on_disk

Capture = pytest.CaptureFixture[str]
START = datetime(2026, 3, 10, 23, 59, 50).astimezone()
START_NS = int(START.timestamp()) * 10**9


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A finished run of two ranks with records and printed lines."""
    monkeypatch.chdir(tmp_path)
    directory = runs_on_disk.begun()
    directory.write_json("run.json", {"command": ["x"], "started_ns": START_NS})
    for rank in range(2):
        add(directory, rank, 1 + rank, "made", "debug", group="tp")
        add(directory, rank, 3 + rank, "call", "trace", group="tp", op="all_reduce", seq=rank)
        add(directory, rank, 15 + rank, "python_warning", "warning", printed=True)
        add(directory, rank, 20 + rank, "lost", "error", group="default_pg", op="barrier")
    directory.stdout(0).write_bytes(b"printed\n")
    directory.close()
    return directory


def add(directory: RunDirectory, rank: int, at_s: float, event: str, level: str, **f: Any) -> None:
    record = {"time_ns": START_NS + int(at_s * 1e9), "rank": rank, "host": "n", "level": level}
    line = json.dumps({**record, "event": event, **f}, separators=(",", ":")) + "\n"
    log_file.append(directory.log(rank), line.encode(), 1 << 20)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (
            "--events",
            "0made 1made 0call 1call 0python_warning 1python_warning 0lost 1lost",
        ),
        ("--level warning", "0python_warning 1python_warning 0lost 1lost"),
        ("--level ERROR --rank 1", "1lost"),
        ("--group tp", "0made 1made 0call 1call"),
        ("--op all_reduce --rank 0-1", "0call 1call"),
        ("--group default_pg --op all_reduce", ""),
        ("--events --since 15.5 --until 20", "1python_warning 0lost"),
        ("--events --since 00:00:05 --until 00:00:06", "0python_warning 1python_warning"),
        ("--events --until 23:59:51.5", "0made"),
        ("--events --since 22:00:00 --until 2", "0made 1made"),
    ],
)
def test_filters(run: RunDirectory, capsys: Capture, flags: str, shown: str) -> None:
    assert main(["logs", *flags.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(f"{line[3]}{line.split()[3]}" for line in lines) == shown
    assert main(["logs", "--json", *flags.split()]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert " ".join(f"{row['rank']}{row['event']}" for row in rows) == shown


def test_what_was_printed_counts_as_info(run: RunDirectory, capsys: Capture) -> None:
    for level, shown in (("trace", True), ("info", True), ("warning", False)):
        assert main(["logs", "--rank", "0", "--level", level]) == 0
        assert ("[rank 0] printed" in capsys.readouterr().out.splitlines()) is shown


def test_what_was_printed_is_shown_once(run: RunDirectory, capsys: Capture) -> None:
    run.stderr(0).write_bytes(b"a.py:1: UserWarning: careful\n")
    assert main(["logs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["[rank 0] printed", "[rank 0] a.py:1: UserWarning: careful"]
    assert [line for line in lines if "python_warning" in line] == [
        "[n:1] 00:00:06.000 warning python_warning"  # of whose stderr there is nothing
    ]
    assert len(lines) == 9
    assert main(["logs", "--json", "--rank", "0"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.get("stream", row.get("event")) for row in rows].count("python_warning") == 1
    assert {"time_ns": START_NS, "rank": 0, "stream": "out", "text": "printed"} in rows


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--since soon", "--since takes seconds since the start of the run, such as 12.5, or a"),
        ("--until 25:00:00", "--until takes seconds"),
        ("--until=-1", "--until takes seconds"),
        ("--since 1e400", "--since takes seconds"),
        ("--op allreduce", "--op takes an op such as all_reduce, not 'allreduce'"),
        ("--level loud", "invalid choice: 'loud'"),
        ("--stdout --level error", "--stdout shows lines, which have no level, group or op"),
        ("--stderr --op barrier", "--stderr shows lines"),
        ("--stderr --events", "not allowed with"),
    ],
)
def test_what_makes_no_sense(run: RunDirectory, capsys: Capture, flags: str, sentence: str) -> None:
    assert main(["logs", *flags.split()]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_clock_times_are_those_nearest_to_the_start() -> None:
    for hours in (-11, -1, 1, 11):
        moment = START + timedelta(hours=hours)
        found = parse_time("--since", f"{moment:%H:%M:%S}.25", START_NS)
        assert found == int(moment.timestamp()) * 10**9 + 250_000_000


def test_follow_goes_on_through_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = runs_on_disk.begun()
    codes: list[int] = []
    follower = threading.Thread(
        target=lambda: codes.append(main(["logs", "-f", "--level", "info", "--json"]))
    )
    follower.start()
    for number in range(200):
        line = json.dumps({"time_ns": number, "level": "info", "event": number}) + "\n"
        log_file.append(directory.log(0), line.encode(), 16_000)
    directory.close()
    follower.join(20)
    assert codes == [0]
    rows = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert rows == list(range(200))
