"""`distdebug logs`, `runs` and `stacks`: what they print, also where there is nothing to print."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from distdebug.cli import main
from distdebug.errors import UsageError
from distdebug.record.runs.log_reader import LogReader
from distdebug.supervisor.stacks.evidence import keep

from . import runs_on_disk

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_logs_by_rank_and_stream(capsys: Capture) -> None:
    directory = runs_on_disk.finished()
    directory.stdout(0).write_bytes(b"one\n\x1b[2Jtwo \x1b[31mred\x1b[0m\n10%\r20%\r\nno end")
    directory.stderr(0).write_bytes(b"oops\n")
    directory.stdout(10).write_bytes(b"ten\n")
    directory.stdout(2).write_bytes(b"two\n")
    (directory.logs / "launcher.err").write_bytes(b"not a rank\n")
    assert main(["logs"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "[rank 0] one",
        "[rank 0] \\x1b[2Jtwo red",
        "[rank 0] 20%",
        "[rank 0] oops",
        "[rank 2] two",
        "[rank 10] ten",
        "[rank 0] no end",
    ]
    assert main(["logs", "--rank", "2-5,10", "--stdout"]) == 0
    assert capsys.readouterr().out == "[rank 2] two\n[rank 10] ten\n"
    assert main(["logs", "--stderr", directory.path.name]) == 0
    assert capsys.readouterr().out == "[rank 0] oops\n"
    assert main(["logs", "--rank", "7"]) == 2
    assert "there is no output of rank 7" in capsys.readouterr().err


@pytest.mark.parametrize("record", ["7.flight", "node1-7.flight"])
def test_logs_of_a_rank_that_was_ended_before_it_said_anything(
    capsys: Capture, record: str
) -> None:
    directory = runs_on_disk.finished()
    (directory.ranks / record).touch()
    (directory.ranks / "pid-8.flight").touch()
    assert main(["logs", "--rank", "7"]) == 0
    assert capsys.readouterr().err == "distdebug: rank 7 has written nothing\n"
    assert main(["logs", "--rank", "8"]) == 2


@pytest.mark.parametrize("ranks", ["", "a", "3-1", "-1", "1,", "0-99999999"])
def test_ranks_that_make_no_sense(capsys: Capture, ranks: str) -> None:
    runs_on_disk.finished()
    assert main(["logs", f"--rank={ranks}"]) == 2
    assert "--rank takes ranks such as 2 or 0,4-7" in capsys.readouterr().err


def test_logs_that_grow_and_shrink(tmp_path: Path) -> None:
    logs = LogReader(tmp_path, 0, ("out",))

    def new() -> list[tuple[int | None, bytes]]:
        return [(entry.rank, entry.line) for entry in logs.poll()]

    assert new() == []
    log = tmp_path / "3.out"
    log.write_bytes(b"a\nb")
    assert new() == [(3, b"a")]
    log.write_bytes(b"a\nbc\nd\n")
    assert new() == [(3, b"bc"), (3, b"d")]
    log.write_bytes(b"new\n")
    assert new() == [(3, b"new")]
    log.unlink()
    assert new() == []
    assert list(logs.finish()) == []


def test_logs_follow_until_the_run_ends(capsys: Capture) -> None:
    directory = runs_on_disk.begun()
    directory.stdout(0).write_bytes(b"first\n")
    codes: list[int] = []
    follower = threading.Thread(target=lambda: codes.append(main(["logs", "-f"])))
    follower.start()
    follower.join(0.3)
    assert follower.is_alive()
    with open(directory.stdout(0), "ab") as file:
        file.write(b"last, without an end")
    directory.close()
    follower.join(20)
    assert codes == [0]
    assert capsys.readouterr().out == "[rank 0] first\n[rank 0] last, without an end\n"


def test_runs_are_listed_and_pruned(capsys: Capture) -> None:
    assert main(["runs"]) == 0
    assert "there is no run below .distdebug/ yet" in capsys.readouterr().out
    first, second = runs_on_disk.finished(), runs_on_disk.begun()
    second.write_text("logs/0.out", "x" * 100_000)
    assert main(["runs"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "started", "outcome", "size", "command"]
    by_name = {row.split()[0]: row for row in rows}
    assert " op_mismatch " in by_name[first.path.name]
    assert " running " in by_name[second.path.name]
    assert by_name[second.path.name].endswith(" KiB   distdebug run train.py")
    assert main(["runs", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert listed[second.path.name]["size_bytes"] > 90_000
    assert (listed[second.path.name]["live"], listed[first.path.name]["live"]) == (True, False)
    assert main(["runs", "--prune", "0"]) == 0
    assert capsys.readouterr().out == "removed 1 run, kept 1 run\n"
    second.close()
    assert main(["runs", "--prune", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == [f".distdebug/{second.path.name}"]
    for wrong in ("-1", "x", "1.5"):
        assert main(["runs", f"--prune={wrong}"]) == 2
        assert "the number of runs to keep" in capsys.readouterr().err


def test_stacks_of_a_finished_run_are_the_stored_ones(capsys: Capture) -> None:
    directory = runs_on_disk.finished()
    assert main(["stacks"]) == 2
    assert "has ended and holds no stacks" in capsys.readouterr().err
    directory.stacks_text.write_text("MainThread of ranks 0,1\n  \x1b[2Jstep (train.py:8)\n")
    directory.stacks_json.write_text("{}\n")
    assert main(["stacks", directory.path.name]) == 0
    assert capsys.readouterr().out == "MainThread of ranks 0,1\n  \\x1b[2Jstep (train.py:8)\n"
    assert main(["stacks", "--json"]) == 0
    assert capsys.readouterr().out == "{}\n"


def test_both_forms_say_so_where_a_run_has_ended_and_nobody_was_alive(capsys: Capture) -> None:
    directory = runs_on_disk.finished()
    keep(directory, {}, [], took_s=0.1)
    assert json.loads(directory.stacks_json.read_text())["threads"] == []
    for form in ([], ["--json"]):
        assert main(["stacks", *form]) == 2
        captured = capsys.readouterr()
        assert (captured.out, "holds no stacks" in captured.err) == ("", True)


LAUNCHER = """
import os, subprocess, sys
RANK = "import threading\\ndef step(): input()\\nprint(flush=True)\\nstep()"
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
ranks = [
    subprocess.Popen([sys.executable, "-c", RANK], env={**os.environ, "RANK": str(rank)}, **pipes)
    for rank in range(2)
]
for rank in ranks:
    rank.stdout.readline()
print("ready", flush=True)
sys.stdin.read()
for rank in ranks:
    rank.communicate(b"\\n")
"""


def test_stacks_below_the_pid_of_any_launcher(capsys: Capture) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as launcher:
        try:
            assert launcher.stdout is not None
            assert launcher.stdout.readline() == b"ready\n"
            assert main(["stacks", str(launcher.pid)]) == 0
            out = capsys.readouterr().out
            assert out.startswith("MainThread of ranks 0,1\n")
            assert main(["stacks", str(launcher.pid), "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["keys"] == "rank"
        finally:
            launcher.communicate(timeout=60)
    assert main(["stacks", str(launcher.pid)]) == 2
    assert f"there is no process {launcher.pid}" in capsys.readouterr().err


def test_stacks_of_what_is_not_python() -> None:
    from distdebug.commands.stacks import python_below

    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            with pytest.raises(UsageError, match="is a Python process of yours"):
                python_below(sleeper.pid)
        finally:
            sleeper.kill()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        assert python_below(program.pid) == [program.pid]
        program.kill()
