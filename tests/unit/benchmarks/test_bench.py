"""`distdebug bench overhead`: how ways are compared, and what is printed of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distdebug.benchmarks.overhead import Way, compare
from distdebug.cli import main
from distdebug.commands import bench
from distdebug.errors import UsageError
from tests.support import runs


class Clock:
    """Nanoseconds that pass only when a way says so."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def way(self, cost_ns: int) -> Way:
        def run() -> None:
            self.now_ns += cost_ns

        return Way(run, lambda: None)


def test_compare() -> None:
    clock = Clock()
    costs = compare({"stock": clock.way(3000), "record": clock.way(7500)}, 5, 10, clock)
    assert costs["stock"] == {
        "median_us": 3.0,
        "added_us": 0.0,
        "best_us": 3.0,
        "best_added_us": 0.0,
    }
    assert (costs["record"]["median_us"], costs["record"]["added_us"]) == (7.5, 4.5)


def test_who_begins_rotates() -> None:
    turns: list[str] = []
    ways = {name: Way(lambda: None, lambda n=name: turns.append(n)) for name in ("stock", "b", "c")}
    compare(ways, 3, 1)
    rounds = ["".join(name[0] for name in turns[i : i + 3]) for i in range(0, len(turns), 3)]
    assert rounds[-3:] == ["sbc", "bcs", "csb"]


def _costs(stock: float, added: float, best: float = 0.0) -> dict[str, dict[str, float]]:
    return {
        name: {
            "median_us": stock + more,
            "added_us": more,
            "best_us": (best or stock) + more,
            "best_added_us": more,
        }
        for name, more in (("stock", 0.0), ("record", added), ("info", added))
    }


def _detail(stock: float, ours: float, torchs: float) -> dict[str, dict[str, float]]:
    added = {"stock": 0.0, "detail": ours, "torch_detail": torchs}
    return {
        name: {"median_us": stock + more, "added_us": more, "best_us": stock, "best_added_us": more}
        for name, more in added.items()
    }


def test_table() -> None:
    where = {"backend": "fake", "world_size": 2, "op": "send", "size_bytes": 64, "entries": 2}
    measured: dict[str, Any] = {
        "calls": [
            {**where, **_costs(2.5, 8.0)},
            {**where, "op": "all_reduce", "entries": 1, **_costs(3.0, 2.5, best=5.0)},
            {**where, "op": "barrier", "entries": 1, **_costs(3.0, 3.25)},
            {**where, "op": "all_reduce, async", "entries": 1, **_costs(3.0, 99.0)},
        ],
        "detail": [{"world_size": 4, "size_bytes": 4, **_detail(700.0, 350.0, 7000.0)}],
        "ddp_step": {**_costs(10_000.0, 100.0, best=5_000.0), "heartbeat_us": 200.0},
    }
    lines = list(bench.table(measured))
    assert lines[2].split() == [
        "fake",
        "x2",
        "send",
        "64",
        "B",
        "2.5",
        "10.5",
        "10.5",
        "+8.0",
        "+8.0",
        "+8.0",
        "+8.0",
    ]
    assert "gloo x4 4 B 700.0 1050.0 7700.0 +350.0 5.0% 50.0%" in [
        " ".join(line.split()) for line in lines
    ]
    assert lines[-2] == (
        "median round:   on the fake backend a synchronous call costs 2.5 to 3.2 µs more, an "
        "asynchronous one that is waited for 8.0 to 8.0 µs, the training step +1.2 %"
    )
    assert lines[-1].startswith("fastest round: ")
    assert lines[-1].endswith("the training step +2.2 %")  # by its own kind of round


def test_a_file_that_cannot_be(tmp_path: Path) -> None:
    command = bench.BenchCommand()
    args = command.parser().parse_args(["overhead", "--json", str(tmp_path / "no" / "file")])
    with pytest.raises(UsageError, match="is not a directory"):
        command.run(args)


@pytest.mark.parametrize("name", ["ddp", "plan", "resources"])
def test_what_is_no_kind_any_more(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Only developers ran those: they are below `tests/benchmarks`."""
    assert main(["bench", name]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert f"invalid choice: '{name}'" in sentence
    assert all(kind in sentence for kind in ("overhead", "comm"))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_command(tmp_path: Path) -> None:
    done = runs.subprocess.run(
        [str(runs.DISTDEBUG), "bench", "overhead", "--json", "figures.json"],
        cwd=tmp_path,
        env=runs.environment(),
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    where = {(c["backend"], c["world_size"], c["size_bytes"]) for c in figures["calls"]}
    gloo = {("gloo", n, size) for n in (2, 4) for size in (4, 65_536, 16_777_216)}
    assert where == {("fake", 2, 64)} | gloo
    # The bars hold on a machine of one's own; here only what no load explains.
    for call in figures["calls"]:
        if call["backend"] == "fake":
            assert call["info"]["best_added_us"] / call["entries"] < 40, call
    assert figures["ddp_step"]["info_percent"]["fastest"] < 30
