"""Bad input gets one clear sentence and exit code 2, and nothing is overwritten."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from distdebug import cli
from distdebug.record import layout
from tests.support import runs


def distdebug(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(runs.DISTDEBUG), *arguments],
        capture_output=True,
        text=True,
        timeout=runs.LIMIT_S,
        cwd=cwd,
        env=runs.environment(),
        stdin=subprocess.DEVNULL,
    )


def typed(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same in this process: of a command line that is refused before anything is started."""
    stdout, stderr = io.StringIO(), io.StringIO()
    before = os.getcwd()
    os.chdir(cwd)
    try:
        with (
            mock.patch.dict(os.environ, runs.environment(), clear=True),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            code = cli.main(arguments)
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())


STARTS_SOMETHING = (["run", "-n", "2", "missing.py"], ["exec", "--", "no-such-command"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "-n", "2", "missing.py"], "missing.py"),
        (["run", "-n", "2"], "script"),
        (["run", "--hang-timeot", "3", "train.py"], "--hang-timeout"),
        (["run", "--hang-timeout", "-3", "train.py"], "hang-timeout"),
        (["run", "--hang-timeout", "soon", "train.py"], "hang-timeout"),
        (["run", "-n", "0", "train.py"], "-n"),
        (["run", "-n", "4", "--nproc-per-node", "2", "train.py"], "--nproc-per-node"),
        (["run", "-n", "2", "--local-ranks-filter", "5", "train.py"], "5"),
        (["run", "--on-finding", "panic", "train.py"], "on-finding"),
        (
            ["run", "--check", "nan,heat", "train.py"],
            "'heat' is none of nan, ",
        ),
        (["exec"], "command"),
        (["exec", "--", "no-such-command"], "no-such-command"),
        (["exec", "--bogus", "--", "true"], "--bogus"),
        (["report", "elsewhere"], "elsewhere"),
        (["report"], "distdebug run"),
        (["logs", "--rank", "x"], "x"),
        (["stacks", "999999999"], "999999999"),
        (["rnu"], "run"),
    ],
)
def test_one_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('it ran')\n")
    run = distdebug if arguments in STARTS_SOMETHING else typed
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert "it ran" not in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_a_port_that_is_taken_is_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = runs.run("run", ["-n", "2", "--master-port", port, "train.py"], tmp_path)
    assert (done.report["outcome"], done.exit_code) == ("failed", 1), done.explain()
    assert "exit code 1: torch.distributed.DistNetworkError: " in done.report["notes"][0]
    assert f"port: {port}" in done.report["notes"][0]


def test_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "data"
    theirs.mkdir()
    (theirs / "precious.txt").write_text("mine")
    (tmp_path / "train.py").write_text("print('it ran')\n")
    done = distdebug("run", "--run-dir", str(theirs), "-n", "1", "train.py", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert [path.name for path in theirs.iterdir()] == ["precious.txt"]
    assert distdebug("report", str(theirs), cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a flight record"),
        (b"something else altogether", "not a flight record"),
        (layout.MAGIC + layout.VERSION.to_bytes(4, "little") + bytes(5000), "truncated"),
        (layout.MAGIC + (7).to_bytes(4, "little") + bytes(layout.FILE_BYTES), "version 7"),
    ],
)
def test_unreadable_flight_record(content: bytes, words: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "ranks").mkdir(parents=True)
    (run / "run.json").write_text('{"schema": "distdebug.run/1"}')
    (run / "ranks" / "0.flight").write_bytes(content)
    done = typed("report", str(run), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert (run / "ranks" / "0.flight").read_bytes() == content
