"""What is said of programs below `programs/`: two ranks that share one GPU, on torch's NCCL and on
distcore's. Each that goes wrong has a twin, of which nothing may be said.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.ports import unclaimed_port
from tests.support.waiting import until
from tests.support.zygote import Zygote

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

PROGRAMS = Path(__file__).with_name("programs")
BACKENDS = pytest.mark.parametrize("backend", ["nccl", "distcore_nccl"])
HANG_TIMEOUT_S = 10
"""The ranks' first call, which connects them, takes less."""
LIMIT_S = 32.0
"""A run that has not ended by then is interrupted, and says where it stands, before `make gpu` ends
its part."""
REPLAYED_S = 20.0
"""By then a rank that does not replay its graph is late by more than the limit."""
DUMPED_S = 50.0
"""The start, torch's limit of 8 s, its looks at the clock, and its wait for other ranks' dumps."""


def run(program: str, tmp_path: Path, zygote: Zygote, *arguments: str) -> runs.Run:
    """Run it on two ranks."""
    flags = ["--hang-timeout", str(HANG_TIMEOUT_S)]
    text = [str(PROGRAMS / program), *arguments]
    return zygote.run(2, text, tmp_path, flags, limit_s=LIMIT_S)


def right(done: runs.Run) -> None:
    """Nothing was found."""
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    assert done.errors == [], done.explain()


def marked_line(program: str) -> int:
    lines = (PROGRAMS / program).read_text().splitlines()
    (number,) = (at for at, line in enumerate(lines, 1) if "# <- look here" in line)
    return number


def rank_1_is_missing(done: runs.Run, program: str) -> None:
    assert (done.report["outcome"], done.exit_code) == ("missing_rank", 93), done.explain()
    (found,) = done.errors
    assert found["culprits"] == [1], done.explain()
    assert found["ranks"]["1"]["location"]["line"] == marked_line(program), done.explain()


@BACKENDS
def test_item(backend: str, tmp_path: Path, zygote: Zygote) -> None:
    rank_1_is_missing(run("item.py", tmp_path, zygote, backend), "item.py")


@BACKENDS
def test_spinning(backend: str, tmp_path: Path, zygote: Zygote) -> None:
    """Both ranks have made the call, so the record cannot tell which GPU is behind: both are told,
    or the one whose GPU spins, and never the other alone."""
    done = run("spinning.py", tmp_path, zygote, backend, "60")
    assert (done.report["outcome"], done.exit_code) == ("missing_rank", 93), done.explain()
    assert done.errors[0]["culprits"] in ([0, 1], [1]), done.explain()
    assert "a GPU is busy" in done.errors[0]["message"], done.explain()


@BACKENDS
def test_spinning_within_the_limit(backend: str, tmp_path: Path, zygote: Zygote) -> None:
    right(run("spinning.py", tmp_path, zygote, backend, "3"))


# distcore's groups have no abort that programs may call.
def test_abort_by_all(tmp_path: Path, zygote: Zygote) -> None:
    right(run("abort.py", tmp_path, zygote, "nccl", "all"))


def test_abort_by_one(tmp_path: Path, zygote: Zygote) -> None:
    """The other one loses its connection: its end is no fault of its own."""
    done = run("abort.py", tmp_path, zygote, "nccl", "one")
    assert done.exit_code != 0, done.explain()
    assert done.errors[0]["culprits"] == [1], done.explain()


@BACKENDS
def test_graph(backend: str, tmp_path: Path, zygote: Zygote) -> None:
    right(run("graph.py", tmp_path, zygote, backend, "whole"))


@BACKENDS
def test_graph_that_one_rank_does_not_replay(backend: str, tmp_path: Path, zygote: Zygote) -> None:
    """A replay is no call that the layer sees, so it may find nothing until it is interrupted. What
    it says then is not that all is well, and does not blame rank 0 alone."""
    program = [str(PROGRAMS / "graph.py"), backend, "short"]
    command = zygote.start(2, program, tmp_path, ["--hang-timeout", str(HANG_TIMEOUT_S)])
    with contextlib.suppress(AssertionError):  # it was interrupted
        command.finish(REPLAYED_S)
    report = json.loads((command.directory / "report.json").read_text())
    assert report["outcome"] != "ok", report
    errors = [one for one in report["findings"] if one["severity"] == "error"]
    assert all(one["culprits"] != [0] for one in errors), errors


@BACKENDS
def test_training(backend: str, tmp_path: Path, zygote: Zygote) -> None:
    """A right program; and the samples of its host tell of the GPU, by NVML."""
    done = run("training.py", tmp_path, zygote, backend)
    right(done)
    samples = done.directory / "host.jsonl"
    keep(samples, f"host-{backend}.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    devices = [row["gpus"][0] for row in rows if row.get("gpus")]
    assert devices, "no sample tells of a GPU"
    assert all("NVIDIA" in one["name"] and not one["lost"] for one in devices), devices[0]
    assert all(one["xids"] == [] for one in devices), devices[-1]
    assert max(one["use_percent"] or 0 for one in devices) > 0, devices
    assert all(0 < one["memory_bytes"] < one["memory_total_bytes"] for one in devices), devices[0]
    assert any(set(one["ranks"]) == {"0", "1"} for one in devices), "no sample has both ranks"


def test_dumps(tmp_path: Path) -> None:
    """A job in which there is nothing of distdebug; its ranks are started by the test, so that
    nobody ends rank 1 before it has written its dump."""
    prefix = tmp_path / "dumps" / "rank_"
    prefix.parent.mkdir()
    environment = runs.environment(
        {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(unclaimed_port()),
            "WORLD_SIZE": "2",
            # Under their names in torch 2.11 and in older ones.
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_FR_DUMP_TEMP_FILE": str(prefix),
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(prefix),
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "5000",
        }
    )
    command = [sys.executable, str(PROGRAMS / "watchdog.py"), "nccl"]
    logs = [tmp_path / f"log_{rank}" for rank in range(2)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("wb") as file:
            mine = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen(command, env=mine, stdout=file, stderr=file))
    dumps = [Path(f"{prefix}{rank}") for rank in range(2)]
    try:
        # Its watchdog aborts rank 0 once the dumps are written.
        until(
            lambda: ranks[0].poll() is not None,
            lambda: "".join(log.read_text(errors="replace")[-3000:] for log in logs),
            DUMPED_S,
        )
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    for dump in dumps:
        keep(dump, f"watchdog_{dump.name}")
    said = logs[0].read_text(errors="replace")[-3000:]
    assert dumps[0].exists(), said
    report = runs.reported(prefix.parent)
    found = [one for one in report["findings"] if one["severity"] == "error"]
    culprits = [one["culprits"] for one in found[:1]]
    assert culprits == [[1]], (report, sorted(prefix.parent.iterdir()), said)


def keep(path: Path, name: str) -> None:
    """Have `make gpu` keep this file, if it is there."""
    if "GPU_OUT" in os.environ and path.exists():
        shutil.copyfile(path, Path(os.environ["GPU_OUT"]) / name)
