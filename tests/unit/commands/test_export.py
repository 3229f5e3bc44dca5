"""`distdebug export --fr` writes dumps that torch's own analyser loads and agrees with."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from distdebug.cli import main
from fixtures import recorded

pytestmark = pytest.mark.timeout(400)  # torch is imported for torch's analyser
ANALYSES = """
import json, os, runpy, sys
import torch.distributed
module = "torch.distributed.flight_recorder.fr_trace"
for folder, words in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        said = os.open(f"{folder}.said", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.argv = [module, folder, "--prefix", "rank_", *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0, open(f"{folder}.said").read()
"""
"""Runs torch's analyser, each time in a process of its own, since it sets up logging."""


@pytest.fixture(scope="module")
def torchfrtrace(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """All that torch's analyser says of the dumps of these runs."""
    folder = tmp_path_factory.mktemp("analysed")
    runs = {"mismatch": ["--allow-incomplete-ranks"], "missing": ["--allow-incomplete-ranks"]}
    runs["finished"] = []
    asked = [(str(exported(name, folder / name)), words) for name, words in runs.items()]
    done = subprocess.run(
        [sys.executable, "-c", ANALYSES, json.dumps(asked)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = [Path(f"{dumps}.said").read_text() for dumps, _ in asked]
    return dict(zip(runs, said, strict=True))


def exported(name: str, folder: Path) -> Path:
    recorded.unpack(name, folder / "run")
    dumps = folder / "dumps"
    assert main(["export", str(folder / "run"), "--fr", str(dumps)]) == 0
    return dumps


def loaded(dumps: Path) -> list[tuple[int, dict[str, Any]]]:
    """The exported dumps by rank."""
    found = [(int(file.name.removeprefix("rank_")), file) for file in dumps.iterdir()]
    return [(rank, pickle.loads(file.read_bytes())) for rank, file in found]


def pending_of(dumped: dict[str, Any]) -> list[str]:
    """The calls that the rank stood in; a handle that nobody waited for may look so too."""
    entries = (one for one in dumped["entries"] if not one["retired"] and not one["async"])
    return [one["profiling_name"] for one in entries]


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
    name: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    torchfrtrace: Mapping[str, str],
) -> None:
    dumps = exported(name, tmp_path)
    assert said in torchfrtrace[name]
    assert verdict(dumps, capsys) == verdict(tmp_path / "run", capsys)


def test_who_still_waits_is_told_after_the_verdict(tmp_path: Path) -> None:
    """The verdict has ended the calls that ranks stood in; to the dumps they are not over."""
    pending = {rank: pending_of(dumped) for rank, dumped in loaded(exported("missing", tmp_path))}
    assert pending == {0: [], 1: ["gloo:all_reduce"]}


def test_nobody_waits_in_a_run_that_is_right(tmp_path: Path) -> None:
    assert not any(pending_of(one) for _, one in loaded(exported("finished", tmp_path)))


def test_torch_finds_nothing_in_a_run_that_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], torchfrtrace: Mapping[str, str]
) -> None:
    dumps = exported("finished", tmp_path)
    said = torchfrtrace["finished"]
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
