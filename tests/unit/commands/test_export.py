"""`distdebug export --fr` writes dumps that torch's own analyser loads and agrees with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from debugger.cli import main
from fixtures import recorded


def torchfrtrace(folder: Path, *words: str) -> str:
    """All that torch's analyser says. In a process of its own, since it sets up logging."""
    module = "torch.distributed.flight_recorder.fr_trace"
    said = subprocess.run(
        [sys.executable, "-m", module, str(folder), "--prefix", "rank_", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-2000:]
    return said.stdout + said.stderr


def exported(name: str, folder: Path) -> Path:
    recorded.unpack(name, folder / "run")
    dumps = folder / "dumps"
    assert main(["export", str(folder / "run"), "--fr", str(dumps)]) == 0
    return dumps


def verdict(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[int]]:
    """What `report` says of a run, or of dumps."""
    capsys.readouterr()
    assert main(["report", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    return report["outcome"], report["findings"][0]["culprits"] if report["findings"] else []


@pytest.mark.parametrize(
    ("name", "said"),
    [("mismatch", "COLLECTIVE_TYPE_MISMATCH"), ("missing", "Not all ranks joining")],
)
def test_torch_and_we_agree_on_a_fault(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = exported(name, tmp_path)
    assert said in torchfrtrace(dumps, "--allow-incomplete-ranks")
    assert verdict(dumps, capsys) == verdict(tmp_path / "run", capsys)


def test_torch_finds_nothing_in_a_run_that_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = exported("finished", tmp_path)
    said = torchfrtrace(dumps)
    assert "MISMATCH" not in said
    assert "Not all ranks" not in said
    assert verdict(dumps, capsys) == ("ok", [])


def test_a_folder_that_has_something_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = exported("mismatch", tmp_path)
    before = {file.name: file.read_bytes() for file in dumps.iterdir()}
    assert main(["export", str(tmp_path / "run"), "--fr", str(dumps)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in dumps.iterdir()} == before
