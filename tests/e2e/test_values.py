"""Runs of `fixtures/values` are made, recorded and compared: those that differ by rounding alone
are equal, and the others part where `expected.json` says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from distdebug.cli import main
from tests.support import mpi
from tests.support.forked_nodes import ForkedNodes
from tests.support.nodes import Nodes
from tests.support.on_nodes import ON_TCP, Layout
from tests.support.values_runs import VALUES
from tests.support.zygote import Zygote

EXPECTED = json.loads((VALUES / "expected.json").read_text())
FEW = {"dp1", "dp2", "late_scale"}
FLAGS = ["--values", "--values-every", "2"]
FSDP = [str(VALUES / "train.py"), "--fsdp"]


def _made(folder: Path, names: Sequence[str]) -> Path:
    words = [sys.executable, "-m", "tests.support.values_runs", str(folder), *names]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def _check(
    folder: Path, pair: Mapping[str, Any], capsys: pytest.CaptureFixture[str]
) -> Mapping[str, Any]:
    code = main(["compare", "--values", *(str(folder / pair[one]) for one in "ab"), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["outcome"] == pair["outcome"], (pair, found["first"])
    assert code == (found["outcome"] == "different")
    for key in ("step", "quantity"):
        assert found["first"] is None or found["first"][key] == pair[key], (pair, found["first"])
    if pair.get("names"):
        assert found["first"]["name"] in pair["names"]
    return found


def test_two_sizes_and_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Starts 4 ranks, of one import of torch."""
    _made(tmp_path, sorted(FEW))
    pairs = [one for one in EXPECTED["pairs"] if {one["a"], one["b"]} <= FEW]
    found = [_check(tmp_path, pair, capsys) for pair in pairs]
    assert {one["outcome"] for one in found} == {"equal", "rounding", "different"}
    [different] = [one["first"] for one in found if one["first"]]
    assert different["a"]["location"]["function"] == "main"
    assert different["ranks"] == [0]
    assert found[0]["without_effect"] == []  # of other numbers of ranks, they are not compared
    plot = tmp_path / "plot.svg"
    runs = [str(tmp_path / "dp1"), str(tmp_path / "late_scale")]
    assert main(["compare", "--values", *runs, "-o", str(plot)]) == 1
    assert "part at step 4" in plot.read_text()
    assert "DIFFERENT  the runs part at step 4: gradient" in capsys.readouterr().out


@pytest.mark.long
def test_all_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """44 runs, of up to 30 steps."""
    _made(tmp_path, [])
    for pair in EXPECTED["pairs"]:
        _check(tmp_path, pair, capsys)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["tcp", "mpi"])
def test_on_another_backend(
    backend: str, tmp_path: Path, zygote: Zygote, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our backends sum up two ranks' in one way. The mistake is at step 4."""
    if backend == "mpi":
        mpi.python("openmpi")
    extra = {"PYTHONPATH": str(ON_TCP), "ON_TCP_EVERYWHERE": backend}
    places = [tmp_path / name for name in ("gloo", backend, "late_scale")]
    for place in places:
        place.mkdir()
        more = [] if place.name != "late_scale" else ["--change", "late_scale"]
        on_gloo = place.name == "gloo"
        by = {} if on_gloo else {"extra": extra, "mpiexec": backend == "mpi"}
        done = zygote.run(2, [*FSDP, *more], place, FLAGS, **by)
        assert done.exit_code == 0, done.explain()
    plain, same, other = (str(place / "run") for place in places)
    assert main(["compare", "--values", plain, same]) == 0
    assert "EQUAL  bit for bit  5 steps in common" in capsys.readouterr().out
    assert main(["compare", "--values", plain, other]) == 1
    assert "part at step 4: gradient" in capsys.readouterr().out


@pytest.mark.root
def test_on_two_nodes(
    tmp_path: Path,
    zygote: Zygote,
    make_nodes: Callable[[int], Nodes],
    forked_nodes: ForkedNodes,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The head has the values of both."""
    alone = zygote.run(2, FSDP, tmp_path, FLAGS)
    head, _ = forked_nodes.run(make_nodes(2), Layout((1, 1)), FSDP, FLAGS)
    assert (alone.exit_code, head.exit_code) == (0, 0), head.explain()
    assert main(["compare", "--values", str(alone.directory), str(head.directory)]) == 0
    assert "EQUAL  bit for bit  5 steps in common" in capsys.readouterr().out
