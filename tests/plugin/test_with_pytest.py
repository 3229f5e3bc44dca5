"""The plugin beside pytest's own options and other plugins: selection, xdist, timeouts, --pdb."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import plugin_sessions

pytestmark = pytest.mark.timeout(600)
TWO = """
import os
import pytest
import torch.distributed as dist

@pytest.mark.distributed(nproc=2)
@pytest.mark.parametrize("number", range(4))
def test_number(dist_rank, number):
    print("number", number)
    dist.barrier()
    assert number != 1
"""
HANGING = """
import time
import pytest
import torch.distributed as dist

@pytest.mark.distributed(nproc=2, timeout=300)
def test_hangs(dist_rank):
    if dist_rank.rank == 1:
        time.sleep(1000)  # here
    dist.barrier()
"""


def test_markers_are_explained_and_loading_twice_is_harmless(tmp_path: Path) -> None:
    plugin_sessions.write(tmp_path, TWO)
    found = plugin_sessions.run(tmp_path, "--markers", "-p", "distdebug.testing.plugin")
    assert found.exit_code == 0, found.output
    for mark in ("distributed(nproc=2, ", "requires_gpus(n=1): ", "requires_mpi: "):
        assert found.output.count(f"@pytest.mark.{mark}") == 1, found.output


def test_who_does_not_use_it_pays_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); import distdebug.testing.plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import pytest; {code}"],
        env=plugin_sessions.environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["distdebug", "distdebug.testing", "distdebug.testing.plugin"]


@pytest.mark.long
def test_x_k_and_lf(tmp_path: Path) -> None:
    plugin_sessions.write(tmp_path, TWO)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    first = plugin_sessions.run(tmp_path, "-x")
    assert first.outcomes == {"test_number[0]": "passed", "test_number[1]": "failed"}, first.output
    again = plugin_sessions.run(tmp_path, "--lf")
    assert again.outcomes == {"test_number[1]": "failed"}, again.output
    chosen = plugin_sessions.run(tmp_path, "-k", "number and 3", "-s")
    assert chosen.outcomes == {"test_number[3]": "passed"}, chosen.output
    assert "[rank 0] number 3" in chosen.output, "-s shows what ranks print as they do"
    assert "[rank 1] number 3" in chosen.output


@pytest.mark.long
def test_xdist(tmp_path: Path) -> None:
    plugin_sessions.write(tmp_path, TWO)
    found = plugin_sessions.run(tmp_path, "-n", "2")
    assert found.exit_code == 1, found.output
    assert [found.outcomes[f"test_number[{n}]"] for n in range(4)] == [
        *("passed", "failed", "passed", "passed")
    ]
    said = found.failure("test_number[1]")
    assert "ranks 0,1:" in said
    assert "assert 1 != 1" in said
    # What is behind depends on the width of the terminal.
    assert "FAILED test_it.py::test_number[1] - ranks 0,1: " in found.output


@pytest.mark.long
def test_pytest_timeout(tmp_path: Path) -> None:
    plugin_sessions.write(tmp_path, HANGING)
    found = plugin_sessions.run(tmp_path, "--timeout=60")
    said = found.failure("test_hangs")
    assert "Timeout (>60.0s) from pytest-timeout" in said, said
    assert "MISSING RANK" in said
    assert "where the ranks stood:" in said
    assert found.seconds["test_hangs"] < 120


def test_nothing_outlives_pytest(tmp_path: Path) -> None:
    """Also where it is killed, and can do nothing about it."""
    word = f"9{os.getpid()}.5"
    body = HANGING.replace("time.sleep(1000)", f"__import__('subprocess').run(['sleep', '{word}'])")
    plugin_sessions.write(tmp_path, body)
    process = subprocess.Popen(
        plugin_sessions.command(tmp_path),
        cwd=tmp_path,
        env=plugin_sessions.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 200
    while not plugin_sessions.processes(word):
        assert process.poll() is None
        assert time.monotonic() < until, "the rank did not come so far"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 60
    while plugin_sessions.processes(word):
        assert time.monotonic() < until, "what a rank had started outlived pytest"
        time.sleep(0.05)


@pytest.mark.long
def test_pdb_on_the_rank_that_failed_first(tmp_path: Path) -> None:
    body = TWO.replace("assert number != 1", "secret = 40 + dist_rank.rank; assert secret != 41")
    plugin_sessions.write(tmp_path, body)
    found = plugin_sessions.run(
        tmp_path, "--pdb", "-k", "number and 0", stdin="p secret + 1000\ncontinue\n"
    )
    assert "rank 1 at test_it.py:" in found.output, found.output
    assert "1041" in found.output
    assert "assert 41 != 41" in found.failure("test_number[0]")
    left = plugin_sessions.run(tmp_path, "--pdb", stdin="quit\n")
    assert left.exit_code == 2, left.output
    assert "Quitting debugger" in left.output


@pytest.mark.long
def test_breakpoint_where_nobody_can_type(tmp_path: Path) -> None:
    body = TWO.replace("assert number != 1", "breakpoint()")
    plugin_sessions.write(tmp_path, body)
    found = plugin_sessions.run(tmp_path, "-k", "number and 0")
    assert found.outcomes == {"test_number[0]": "passed"}, found.output


def test_coverage(tmp_path: Path) -> None:
    plugin_sessions.write(tmp_path, TWO)
    (tmp_path / "lib.py").write_text("def used_in_ranks():\n    return 1\n")
    body = TWO.replace("assert number != 1", "import lib; assert lib.used_in_ranks()")
    plugin_sessions.write(tmp_path, body)
    found = plugin_sessions.run(
        tmp_path,
        "--cov=lib",
        "--cov-report=term",
        "-k",
        "number and 0",
        extra={"PYTHONSAFEPATH": ""},
    )
    assert found.exit_code == 0, found.output
    row = next(line for line in found.output.splitlines() if line.startswith("lib.py"))
    assert row.split()[-1] == "100%", found.output
