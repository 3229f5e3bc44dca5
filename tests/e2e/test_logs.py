"""The logs of real runs: what is in a rank's file, at which level, and how much of it is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs, supervised
from tests.support.runs import DISTDEBUG, Run

TALKATIVE = """
import warnings

import distdebug
import torch
import torch.distributed as dist

distdebug.log.info("before init")
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1], group_desc="pair")
for step in range(2):
    distdebug.log.step(step)
    loss = torch.ones(4) * rank
    dist.all_reduce(loss)
    distdebug.log.info("loss", value=loss.mean())
if rank == 0:
    dist.send(torch.zeros(2), 1)
else:
    dist.recv(torch.zeros(2), 0)
warnings.warn("careful")
dist.set_debug_level(dist.DebugLevel.INFO)
dist.barrier(group=pair)
dist.destroy_process_group()
"""

QUIET = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(100):
    dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""

FULL = """
import distdebug
import torch.distributed as dist

dist.init_process_group("gloo")
for number in range(2000):
    distdebug.log.info("event", number=number)
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("at the end")
dist.barrier()
"""


def _run(tmp_path: Path, program: str, *flags: str, **extra: str) -> Run:
    """Two ranks, forked from an interpreter that has started below `distdebug`: it has imported
    nothing else, and what is set in the environment was so from its start."""
    script = tmp_path / "train.py"
    script.write_text(program)
    command = [sys.executable, str(supervised.PROGRAM), "2", str(script)]
    return runs.run("exec", [*flags, "--", *command], tmp_path, extra)


def _logs(run: Run, *flags: str) -> list[str]:
    done = subprocess.run(
        [str(DISTDEBUG), "logs", str(run.directory), *flags],
        capture_output=True,
        text=True,
        timeout=runs.LIMIT_S,
        env=runs.environment(),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _records(run: Run, *flags: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _logs(run, "--events", "--json", *flags)]


def test_all_that_a_rank_says_is_in_its_log(tmp_path: Path) -> None:
    run = _run(tmp_path, TALKATIVE, "--debug-level", "DETAIL", TORCH_CPP_LOG_LEVEL="INFO")
    assert run.exit_code == 0, run.explain()
    for rank in range(2):
        path = run.directory / "logs" / f"{rank}.jsonl"
        assert path.stat().st_mode & 0o777 == 0o600
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert {record["rank"] for record in records} == {rank}
        by_event: dict[str, list[dict[str, Any]]] = {}
        for record in records:
            by_event.setdefault(record["event"], []).append(record)
        assert len(by_event["before init"]) == 1
        first, second = by_event["loss"]
        assert (first["step"], second["step"], first["value"]) == (0, 1, 1.0)
        assert os.path.basename(first["file"]) == "train.py"
        groups = [record["group"] for record in by_event["group_created"]]
        assert groups == ["default_pg", "pair"]
        [warning] = by_event["python_warning"]
        assert (warning["message"], warning["category"]) == ("careful", "UserWarning")
        cpp = by_event["torch"]  # its sockets say that they have connected
        assert {(record["level"], record["file"].endswith(".cpp")) for record in cpp} == {
            ("info", True)
        }
        calls = [(one["group"], one["op"], one.get("seq")) for one in by_event["call"]]
        # The barrier came when the level was INFO again.
        assert calls == [
            ("default_pg", "all_reduce", 0),
            ("default_pg", "all_reduce", 1),
            ("default_pg", "send" if rank == 0 else "recv", None),
        ]
        assert by_event["call"][0]["call"] == "all_reduce(sum, float32[4])"
        assert (
            by_event["call"][0]["line"]
            == TALKATIVE.splitlines().index("    dist.all_reduce(loss)") + 1
        )
    times = [
        record["time_ns"] for record in _records(run, "--level", "trace", "--op", "all_reduce")
    ]
    assert len(times) == 4
    assert times == sorted(times)
    shown = _logs(run, "--group", "default_pg", "--op", "all_reduce", "--rank", "1")
    assert len(shown) == 2
    assert ":1] " in shown[0]
    assert " trace   call group=default_pg seq=0 op=all_reduce call=" in shown[0]
    merged = _logs(run)
    assert sum("UserWarning: careful" in line for line in merged) == 2
    assert not any("python_warning" in line for line in merged)
    assert " info    before init (train.py:8)" in run.stderr


def test_a_quiet_program_has_an_empty_log(tmp_path: Path) -> None:
    run = _run(tmp_path, QUIET)
    assert run.exit_code == 0, run.explain()
    assert sorted((run.directory / "logs").glob("*.jsonl")) == []
    assert _records(run) == []


@pytest.mark.long
def test_a_full_log_keeps_its_end(tmp_path: Path) -> None:
    run = _run(tmp_path, FULL, "--log-max-mb", "0.1")
    assert run.exit_code == 1, run.explain()
    for rank in range(2):
        files = [run.directory / "logs" / f"{rank}.jsonl{ending}" for ending in (".1", "")]
        assert all(file.stat().st_size <= 52_429 for file in files)
        numbers = [
            record["number"]
            for record in _records(run, "--rank", str(rank))
            if record["event"] == "event"
        ]
        assert numbers == list(range(numbers[0], 2000))
        assert 200 < len(numbers) < 2000
    [error] = _records(run, "--level", "error", "--rank", "1")
    assert (error["event"], error["message"]) == ("exception", "ValueError: at the end")
    assert os.path.basename(error["file"]) == "train.py"
    assert any(" in <module>" in row for row in error["stack"])


def test_a_rank_that_ends_before_torch_says_so(tmp_path: Path) -> None:
    run = _run(tmp_path, "raise ValueError('no configuration')")
    assert run.exit_code == 1, run.explain()
    [error] = [json.loads(line) for line in _logs(run, "--json", "--level", "error")][:1]
    assert (error["event"], error["message"]) == ("exception", "ValueError: no configuration")
    assert (os.path.basename(error["file"]), error["line"]) == ("train.py", 1)
