"""`distdebug report`: of finished, live, killed and damaged runs."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from distdebug.cli import main
from distdebug.record import layout
from distdebug.record.runs.run_directory import RunDirectory
from fixtures import recorded
from tests.unit.diagnosis.builder import all_reduce

from . import runs_on_disk

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_form_of_a_finished_run(capsys: Capture) -> None:
    directory = runs_on_disk.finished()
    assert main(["report"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("MISMATCH  ranks disagree at collective #0")
    assert out.endswith(f"  evidence: .distdebug/{directory.path.name}/   exit code 91\n")
    assert "\x1b" not in out
    assert main(["report", directory.path.name, "--text"]) == 0
    assert capsys.readouterr().out == out
    assert main(["report", str(directory.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "op_mismatch"
    assert main(["report", "--junit"]) == 0
    assert ElementTree.fromstring(capsys.readouterr().out.encode()).get("failures") == "2"
    assert main(["report", "--junit", "--json"]) == 2


def test_a_killed_run_is_diagnosed_from_its_records(capsys: Capture) -> None:
    runs_on_disk.killed()
    assert main(["report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        'MISMATCH  ranks disagree at collective #1 of group "default_pg" (3 ranks)',
        "  rank 0   all_reduce(sum, float32[8])    train.py:80 in step",
        "  rank 1   broadcast(src=0, float32[8])   train.py:81 in step   <- look here",
    ]
    assert "killed by" not in "\n".join(lines)
    assert (
        "  note: the run was killed before it could report; this is how its records ended" in lines
    )
    assert lines[-1].endswith("exit code 91")


def test_a_killed_run_without_a_fault_says_where_each_rank_was(capsys: Capture) -> None:
    directory = runs_on_disk.begun()
    for rank in range(2):
        runs_on_disk.record(directory, rank, 3, [all_reduce(8)])
    directory.close()
    assert main(["report", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["outcome"], report["exit_code"], report["findings"]) == ("interrupted", 137, [])
    assert report["ranks"]["1"]["state"] == "waits in"
    assert not directory.report_json.exists()


def test_a_live_run_is_running(capsys: Capture) -> None:
    directory = runs_on_disk.begun()
    for rank in range(2):
        runs_on_disk.record(directory, rank, 2, [all_reduce(8)])
    assert main(["report"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "RUNNING  nothing is wrong so far; where each rank is:",
        "  rank 0   waits in all_reduce(sum, float32[8])   train.py:80 in step",
    ]
    directory.close()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"ELF", "is not a flight record of distdebug"),
        (layout.MAGIC + b"\x09\0\0\0", "is a flight record of version 9"),
        (layout.MAGIC + b"\x01\0\0\0", "of version 1, which distdebug 0.1.0 reads; this"),
        (layout.MAGIC + b"\x02\0\0\0", "of version 2, which distdebug 0.1.0 reads; this"),
        (layout.MAGIC + layout.VERSION.to_bytes(4, "little"), "is truncated: 12 of"),
    ],
)
def test_a_bad_flight_file_is_one_sentence(capsys: Capture, content: bytes, says: str) -> None:
    directory = runs_on_disk.begun()
    directory.flight(0).write_bytes(content)
    directory.close()
    assert main(["report"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    # Beside good ones the rest is still told.
    runs_on_disk.record(directory, 1, 2, [all_reduce(8)])
    assert main(["report"]) == 2
    out, err = capsys.readouterr()
    assert "rank 1   waits in all_reduce" in out
    assert says in err
    assert directory.flight(0).read_bytes() == content


@pytest.mark.parametrize("version", sorted(layout.READERS))
def test_a_run_of_before_opens_by_its_report(capsys: Capture, tmp_path: Path, version: int) -> None:
    run = recorded.unpack("mismatch", tmp_path / "run").path
    assert main(["report", str(run), "--exit-code"]) == 91
    told = capsys.readouterr()
    for path in run.glob("ranks/*.flight"):
        with open(path, "r+b") as file:
            file.seek(len(layout.MAGIC))
            file.write(version.to_bytes(4, "little"))
    assert main(["report", str(run), "--exit-code"]) == 91
    assert capsys.readouterr() == told
    (run / "report.json").unlink()
    assert main(["report", str(run)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"of version {version}, which distdebug 0.1.0 reads" in err


@pytest.mark.parametrize("content", ["[]", '{"schema": "distdebug.report/1"}'])
def test_a_damaged_report_is_one_sentence(capsys: Capture, content: str) -> None:
    directory = runs_on_disk.finished()
    directory.report_json.write_text(content)
    assert main(["report"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_report_with_a_broken_part_is_one_sentence(capsys: Capture) -> None:
    directory = runs_on_disk.finished()
    report = json.loads(directory.report_json.read_text())
    del report["findings"][0]["culprits"]
    directory.report_json.write_text(json.dumps(report))
    for form in ("--text", "--junit"):
        assert main(["report", form]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "is damaged" in err


def test_what_is_no_run_is_one_sentence(capsys: Capture, tmp_path: Path) -> None:
    for argv in (
        ["report"],
        ["report", "nowhere"],
        ["report", str(tmp_path)],
        ["logs"],
        ["stacks"],
    ):
        assert main(argv) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), err[:11]) == ("", 1, "distdebug: ")
    assert RunDirectory.create(tmp_path / "base")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]


def test_a_folder_of_runs_is_none(capsys: Capture, tmp_path: Path) -> None:
    runs = [runs_on_disk.finished().path, runs_on_disk.finished().path]
    for folder in (".distdebug", str(tmp_path)):
        assert main(["report", folder]) == 2
        error = capsys.readouterr().err
        assert f"{folder} holds 2 runs: name one, such as" in error
        assert str(max(runs)) in error
        assert error.count("\n") == 1


def test_from_a_folder_below_and_by_the_beginning_of_a_name(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    run = runs_on_disk.finished().path
    os.rename(run, run := run.with_name("20260310-141502-7f3a"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert main(["report"]) == 2, "the link to the newest one leads nowhere"
    capsys.readouterr()
    assert main(["report", "20260310-14"]) == 0
    assert str(run) in capsys.readouterr().out
    assert main(["runs"]) == 0
    assert run.name in capsys.readouterr().out
    os.mkdir(run.with_name("20260310-151502-7f3b"))
    assert main(["report", "20260310"]) == 2
    assert "2 runs begin with 20260310: ['20260310-15" in capsys.readouterr().err
    (tmp_path / "a").chmod(0o777)
    assert main(["report", "20260310-14"]) == 2, "anybody may have put runs there"
