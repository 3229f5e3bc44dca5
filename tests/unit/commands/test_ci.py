"""What --ci leaves behind, and that the other commands open it."""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path

import pytest

from distdebug.cli import main
from distdebug.commands import flags, options
from distdebug.commands.base import Parser
from distdebug.errors import UsageError
from distdebug.record.runs.artefact import SUFFIX, pack
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.supervisor.ci import Ci

from . import runs_on_disk

Capture = pytest.CaptureFixture[str]
ACTIONS = ("GITHUB_ACTIONS", "GITHUB_WORKSPACE", "GITHUB_STEP_SUMMARY", "CI")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ACTIONS:
        monkeypatch.delenv(name, raising=False)


def parsed(*argv: str) -> argparse.Namespace:
    parser = Parser()
    options.add(parser)
    return parser.parse_args(argv)


def finish(directory: RunDirectory, *argv: str) -> list[str]:
    """What is said at the end of the run."""
    said: list[str] = []
    chosen = flags.ci_of(parsed("--ci", *argv))
    assert chosen is not None
    chosen.finish(directory, json.loads(directory.report_json.read_text()), said.append)
    return said


def test_only_the_flag_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert flags.ci_of(parsed()) is None
    assert flags.ci_of(parsed("--ci")) == Ci(None, Path.cwd())


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--ci-artifact", "x"], "--ci-artifact needs --ci"),
        (["--ci", "--break", "all_reduce#1"], "--break waits for somebody at a terminal"),
        (["--ci", "--pdb"], "--pdb waits"),
        (["--ci", "--tui"], "--tui waits"),
        (["--ci", "--ci-artifact", "."], "is a directory; name a file"),
        (["--ci", "--ci-artifact", "no/x"], "there is no directory no"),
    ],
)
def test_flags_that_make_no_sense(argv: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        flags.ci_of(parsed(*argv))


def test_outside_of_github_there_is_the_file_alone(capsys: Capture) -> None:
    directory = runs_on_disk.finished()
    (said,) = finish(directory)
    name = f"{directory.path.name}{SUFFIX}"
    size = (Path(name).stat().st_size) >> 10 or 1
    assert said == (f"packed the run into {name} ({size} KiB); open it with: distdebug tui {name}")
    assert capsys.readouterr() == ("", "")
    assert sorted(os.listdir()) == [".distdebug", name]


def test_in_github_there_are_annotations_and_a_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", "/home/user")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("before\n")
    directory = runs_on_disk.finished()
    (tmp_path / "out").mkdir()
    (said,) = finish(directory, "--ci-artifact", "out/kept.tgz")
    assert "packed the run into out/kept.tgz" in said
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"::error .*line=91,title=distdebug%3A op_mismatch%2C rank 2::.*\n", err)
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("before\n\n```text\nMISMATCH  ranks disagree")
    assert summary.endswith("```\n\nThe whole run is in `kept.tgz`.\n")


def test_what_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "summary.md"))
    directory = runs_on_disk.finished()
    (tmp_path / "gone").mkdir()
    chosen = flags.ci_of(parsed("--ci", "--ci-artifact", "gone/x"))
    assert chosen is not None
    (tmp_path / "gone").rmdir()
    said: list[str] = []
    chosen.finish(directory, json.loads(directory.report_json.read_text()), said.append)
    pack_failed, summary_failed = said
    assert pack_failed == (
        f"cannot pack the run into {tmp_path / 'gone' / 'x'}: no such file or directory; "
        f"it is in {directory.path}"
    )
    assert "cannot write the job summary" in summary_failed
    assert capsys.readouterr() == ("", "")


# -- opening it ------------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A packed run, whose directory is gone. Nothing may stay in the temporary directory."""
    directory = runs_on_disk.finished(tmp_path / "away")
    directory.stdout(2).write_bytes(b"hello\n")
    directory.stacks_text.write_text("a stack\n")
    report = json.loads(directory.report_json.read_text())
    directory.write_json("report.json", {**report, "stacks_file": "stacks/stacks.txt"})
    pack(directory.path, tmp_path / "run.tgz")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return "run.tgz"


def test_report_shows_the_same(packed: str, capsys: Capture, tmp_path: Path) -> None:
    (run,) = (tmp_path / "away").glob("2*")
    assert main(["report", str(run)]) == 0
    *same, _, _ = capsys.readouterr().out.splitlines()
    assert main(["report", packed]) == 0
    *shown, stacks, evidence = capsys.readouterr().out.splitlines()
    assert shown == same
    assert stacks == "  stacks of all ranks: distdebug stacks run.tgz"
    assert evidence == "  evidence: run.tgz   exit code 91"
    assert main(["report", packed, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["run_dir"], report["packed"]) == ("run.tgz", True)
    assert main(["report", packed, "--junit"]) == 0
    assert "op_mismatch" in capsys.readouterr().out
    assert os.listdir(tmp_path / "temporary") == []


def test_logs_and_stacks_show_what_is_in_it(packed: str, capsys: Capture, tmp_path: Path) -> None:
    assert main(["logs", packed, "-f", "--rank", "2"]) == 0
    assert capsys.readouterr().out == "[rank 2] hello\n"
    assert main(["stacks", packed]) == 0
    assert capsys.readouterr().out == "a stack\n"
    assert main(["logs", packed, "--rank", "7"]) == 2
    assert capsys.readouterr().err.startswith("distdebug: there is no output of rank 7 in run.tgz/")
    assert os.listdir(tmp_path / "temporary") == []


def test_attach_says_that_it_has_ended(packed: str, capsys: Capture) -> None:
    assert main(["attach", packed]) == 2
    assert "run.tgz is a file: a run that was packed has ended" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["report", "stacks", "logs", "tui"])
def test_a_bad_file_is_one_sentence(command: str, capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    assert main([command, "x"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("distdebug: x is not a run packed by distdebug: name the directory")


def test_a_damaged_report_in_it_is_named_after_it(capsys: Capture, tmp_path: Path) -> None:
    directory = runs_on_disk.finished()
    directory.report_json.write_text("[]")
    directory.flight(0).write_bytes(b"ELF")
    pack(directory.path, tmp_path / "a.tgz")
    assert main(["report", "a.tgz"]) == 2
    assert capsys.readouterr().err == (
        f"distdebug: a.tgz/{directory.path.name}/report.json is not a report of distdebug\n"
    )
    directory.report_json.unlink()
    runs_on_disk.record(directory, 1, 2, [])
    pack(directory.path, tmp_path / "b.tgz")
    assert main(["report", "b.tgz"]) == 2
    out, err = capsys.readouterr()
    assert "evidence: b.tgz" in out
    assert "note: b.tgz/ranks/0.flight: is not a flight record" in out
    assert err == "distdebug: b.tgz/ranks/0.flight: is not a flight record of distdebug\n"
