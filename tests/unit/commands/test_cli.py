"""Only `main` turns errors into exit codes; nothing heavy is imported before it is wanted."""

from __future__ import annotations

import argparse
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from distdebug import cli
from distdebug.commands import COMMANDS, load
from distdebug.commands.base import Command
from distdebug.errors import DistdebugError, UsageError
from distdebug.record.reading.reader import FlightError
from distdebug.record.runs.run_directory import RunDirectoryError

from . import runs_on_disk

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = load(name)
    assert command.name == name
    assert f"  distdebug {name}" in command.epilog
    assert cli.main([name, "--help"]) == 0
    assert f"  distdebug {name}" in capsys.readouterr().out


def test_a_plan_of_what_a_launcher_starts_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "exec", "--help"]) == 0
    assert "  distdebug plan exec -- " in capsys.readouterr().out


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert "distdebug run -n 4 train.py" in out
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"distdebug \d+\.\d+\.\d+\n", capsys.readouterr().out)
    assert cli.main([]) == 2
    assert capsys.readouterr().err == out
    assert cli.main(["help"]) == 0
    assert capsys.readouterr().out == out


def test_help_of_a_command_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("runs", "run", "plan", "exec"):
        assert cli.main([name, "--help"]) == 0
        out = capsys.readouterr().out
        assert cli.main(["help", name, "--", "python", "train.py"]) == 0
        assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["help", "rnu"], "unknown command 'rnu'; did you mean `distdebug run`?"),
        (["hepl"], "unknown command 'hepl'; did you mean `distdebug help`?"),
        (["rnu"], "unknown command 'rnu'; did you mean `distdebug run`?"),
        (["--frobnicate"], "unknown flag '--frobnicate'; see `distdebug --help`"),
        (["train.py"], "train.py is a script; run it with: distdebug run -n 2 train.py"),
        (["a\x1b[31mb"], "unknown command 'a\\\\x1b[31mb'; see `distdebug --help`"),
        (["report", "--josn"], "unrecognized arguments: --josn: did you mean --json?"),
        (["logs", "--levl=info"], "unrecognized arguments: --levl=info: did you mean --level?"),
        (["--verison"], "unknown flag '--verison'; did you mean `distdebug --version`?"),
        (
            ["exec", "--hang-timout", "5", "--", "x"],
            "unrecognized arguments: --hang-timout: did you mean --hang-timeout?",
        ),
        (
            ["run", "--quiet", "x.py"],
            (
                "unknown flag '--quiet': see `distdebug run --help` and `torchrun --help` (the "
                "script's own arguments come behind the script)"
            ),
        ),
        (["report", "--nope"], "unrecognized arguments: --nope; see `distdebug report --help`"),
        (
            ["plan", "-n", "2", "exec"],
            (
                "no command was given; write one after `--`, for example: distdebug plan exec -- "
                "torchrun --nproc-per-node 8 train.py"
            ),
        ),
        (
            ["run", "--seed", "new", "train.py"],
            "argument --seed: must be a whole number from 0 on, not 'new'",
        ),
        (
            ["run", "--inject-random", "x", "train.py"],
            "argument --inject-random: must be from 1 to 1000 faults, not 'x'",
        ),
        (
            ["attach", "--rank", "-1"],
            (
                "argument --rank: must be the number of a rank, not '-1'; see `distdebug attach "
                "--help`"
            ),
        ),
    ],
)
def test_a_wrong_command_line_gets_one_sentence(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    assert capsys.readouterr() == ("", f"distdebug: {says}\n")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """Runs a command that raises; returns the exit code."""

    def run(error: BaseException) -> int:
        class Fails(Command):
            name = "report"
            epilog = ""

            def configure(self, parser: argparse.ArgumentParser) -> None:
                pass

            def run(self, args: argparse.Namespace) -> int:
                raise error

        monkeypatch.setattr(cli, "load", lambda name: Fails())
        return cli.main(["report"])

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("wrong word"), 2),
        (RunDirectoryError("wrong word"), 2),
        (FlightError("wrong word"), 2),
        (DistdebugError("wrong word"), 96),
    ],
)
def test_an_error_that_is_known_is_one_sentence(
    failing: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    assert failing(error) == code
    assert capsys.readouterr() == ("", "distdebug: wrong word\n")


def test_a_kind_is_explained_by_its_title_too(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("misaligned", "LINES PART", "lines part"):
        assert cli.main(["explain", words]) == 0
        assert capsys.readouterr().out.startswith("# misaligned: ")
    assert cli.main(["explain", "MISMATCH"]) == 2, "that is the title of several"
    assert "did you mean op_mismatch, shape_mismatch, " in capsys.readouterr().err


def test_a_file_of_another_user_is_one_sentence(
    failing: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing(PermissionError(13, "Permission denied", "/theirs/train.py")) == 2
    assert capsys.readouterr().err == (
        "distdebug: /theirs/train.py cannot be used: permission denied\n"
    )


def test_an_unexpected_error_keeps_its_traceback_in_a_private_file(
    failing: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert failing(ValueError("two\nlines")) == 96
    (file,) = tmp_path.iterdir()
    told = "distdebug: distdebug itself failed (ValueError: two\\x0alines); the traceback is in"
    assert capsys.readouterr().err == f"{told} {file}\n"
    assert "raise error" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert failing(ValueError("again")) == 96
    assert "the traceback could not be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [["report"], ["logs"], ["stacks"], ["export", "--trace", "t"], ["tui"], ["attach"], ["replay"]],
)
def test_a_removed_working_directory_is_one_sentence(
    argv: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.main(argv) == 2
    told = "distdebug: the working directory was removed; change to one that exists\n"
    assert capsys.readouterr() == ("", told)


def test_a_full_stdout_that_is_non_blocking_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "a line\n" * 100_000
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    monkeypatch.setattr(cli, "_usage", lambda: lines)
    got: list[str] = []
    with open(reads) as file:
        reader = threading.Thread(target=lambda: got.append(file.read()))
        with open(writes, "w") as stdout:
            monkeypatch.setattr(sys, "stdout", stdout)
            reader.start()
            code = cli.main(["--help"])
        reader.join()
    assert (code, got) == (0, [lines + "\n"])


@pytest.mark.parametrize("arguments", [["report"], ["logs"], ["runs"], ["report", "--json"]])
def test_a_full_device_is_one_sentence(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs_on_disk.finished().stdout(0).write_bytes(b"a line\n" * 10_000)  # more than a buffer
    command = [sys.executable, "-m", "distdebug", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert done.stderr == (
        "distdebug: cannot write the output: No space left on device; write it elsewhere\n"
    )
    assert done.returncode == 2


def test_a_file_that_is_not_there_is_not_taken_for_a_removed_directory(
    failing: Callable[[BaseException], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert failing(FileNotFoundError()) == 96
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert failing(FileNotFoundError(2, "No such file or directory", "ours.txt")) == 96
    assert failing(FileNotFoundError()) == 2


def test_ctrl_c_and_exits(
    failing: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing(KeyboardInterrupt()) == 130
    assert failing(SystemExit(5)) == 5
    assert failing(SystemExit()) == 0
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    code = (
        "import sys; from distdebug.cli import main; sys.stdin.read(); sys.exit(main(['--help']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None  # communicate() would read it
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (141, b"")


def test_a_command_imports_only_what_it_needs() -> None:
    code = (
        "import sys; from distdebug.cli import main; "
        "assert main(['runs']) == 0; print(sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    modules = set(re.findall(r"'([\w.]+)'", done.stdout))
    assert "distdebug.commands.runs" in modules
    assert not modules & {
        "torch",
        "psutil",
        "structlog",
        "distcore",
        "distdebug.commands.run",
        "distdebug.supervisor.supervisor",
        "distdebug.diagnosis.diagnose",
    }


def test_beside_a_module_of_its_name_the_command_is_still_ours(tmp_path: Path) -> None:
    """`python -m distdebug` runs that of the user there, as the page says."""
    (tmp_path / "distdebug.py").write_text("print('of the user')")
    command = str(Path(sys.executable).with_name("distdebug"))
    said = [
        subprocess.run(line, cwd=tmp_path, capture_output=True, text=True).stdout
        for line in ([command, "-V"], [sys.executable, "-m", "distdebug", "-V"])
    ]
    assert said[0].startswith("distdebug ")
    assert said[1] == "of the user\n"
