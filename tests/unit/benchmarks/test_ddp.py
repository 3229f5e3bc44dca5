"""Training steps by backend: what is refused, the table, and the real thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import ddp_figures
from tests.unit.benchmarks.bench_command import measurement, refusal_of


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--models", "large"], "--models large: 'large' is none of computing, communicating"),
        (["--backends", "tcp,openmpi"], "'openmpi' is none of tcp, gloo"),
        (["-n", "1"], "-n 1: '1' is no number of ranks from 2 to 64"),
        (["--budget", "-1"], "--budget -1 is not between 0 and 86400 seconds"),
        (["--json", "/no/such/file.json"], "/no/such is not a directory; name a file in one"),
    ],
)
def test_what_is_refused(arguments: list[str], sentence: str) -> None:
    assert sentence in refusal_of("ddp", *arguments)


def _taken(*rounds_us: float) -> dict[str, Any]:
    return {"executions": 1, "rounds_us": list(rounds_us), "cpu_us": [5000.0] * len(rounds_us)}


def test_table() -> None:
    ways = {"alone": _taken(1e3, 2e3, 2e3), "tcp": _taken(4e3, 3e3, 5e3)}
    row = {"model": "computing", "ranks": 4, "gradient_bytes": 1 << 20}
    backends = ["tcp", "gloo"]
    ways["gloo"] = _taken(8e3, 9e3, 5e3)
    summary = ddp_figures.summarise({**row, "ways": ways}, backends)
    assert summary["rounds"] == 3
    assert summary["ways"]["tcp"]["speedup"] == 2.0
    lines = [*ddp_figures.heading(backends), ddp_figures.line(summary)]
    assert [" ".join(line.split()) for line in lines] == [
        "(ms for one step) alone tcp gloo",
        "model ranks gradients rounds time cpu time cpu vs gloo time cpu",
        "computing 4 1 MiB 3 2.0 5.0 4.0 5.0 2.00x 8.0 5.0",
    ]
    assert len(lines[1]) == len(lines[2])


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_command(tmp_path: Path) -> None:
    flags = ("--models", "computing", "-n", "2", "--budget", "0.1")
    done = measurement("ddp", *flags, "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["backends"], figures["error"]) == (["tcp", "gloo"], None)
    (row,) = figures["rows"]
    assert list(row["ways"]) == ["alone", "tcp", "gloo"]
    assert all(one["step_ms"] > 0 for one in row["ways"].values())


def test_a_backend_that_needs_mpiexec() -> None:
    done = measurement("ddp", "--backends", "mpi")
    assert done.returncode == 2
    assert "'mpi' is none of tcp, gloo" in done.stderr
