"""MPI in `distdebug bench comm`: where it is not, where it fails, and the real thing."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from distdebug.benchmarks import mpi
from distdebug.benchmarks.comm_figures import OPS
from tests.support.torch_loaded import TorchLoaded
from tests.unit.benchmarks.bench_command import bench_command

ROOT = Path(__file__).parents[3]
WHY_NOT = mpi.unavailable()
needs_open_mpi = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


def test_where_it_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(mpi, "_launcher", lambda: None)
    everything = "there is no mpi4py and numpy and mpiexec here: pip install 'distdebug[mpi]'"
    assert mpi.unavailable() == everything
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(mpi, "_launcher", lambda: "/bin/echo")
    another = "/bin/echo is not Open MPI's: pip install 'distdebug[mpi]'"
    assert mpi.unavailable() == another


@pytest.mark.timeout(300)
@needs_open_mpi
def test_the_command(tmp_path: Path) -> None:
    flags = ("--backends", "gloo,mpi", "-n", "2", "--sizes", "64", "--budget", "1")
    done = bench_command(tmp_path, "comm", *flags, "--json", "figures.json")
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["backends"], figures["baseline"]) == (["gloo", "mpi"], "gloo")
    assert {row["op"] for row in figures["rows"]} == set(OPS)
    assert all(row["backends"]["mpi"]["time_us"] > 0 for row in figures["rows"])


_MEASURE = """
import os, signal
import psutil
from distdebug.benchmarks import forked, mpi
from distdebug.benchmarks.comm_ranks import joined

def body(rank, size, directory, ends_at):
    with joined([], rank, size, directory), mpi.Partner(rank, size, directory) as partner:
        assert partner.prepare("all_reduce", 64)[0]
        seconds, cpu_s, each = partner.turn(3, True)
        assert seconds > 0 and cpu_s > 0 and len(each) == 3
        launcher = partner._mpiexec
        if rank == 0:
            children = psutil.Process(launcher.pid).children(recursive=True)
            yield sorted(one.pid for one in (psutil.Process(launcher.pid), *children))
            {what_happens}
            partner.turn(3, True)

mpi._launcher = {launcher}
try:
    for row in forked.measure(body, 2, 0.0):
        print(*row)
except forked.RankError as error:
    print(error)
"""


@pytest.fixture(name="measure")
def _measure(torch_loaded: TorchLoaded, tmp_path: Path) -> Callable[..., list[str]]:
    """What is printed by a program whose ranks have partners, when this happens in rank 0."""

    def measure(what_happens: str, launcher: str = "mpi._launcher") -> list[str]:
        program = _MEASURE.format(what_happens=what_happens, launcher=launcher)
        done = torch_loaded.python(program, tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return measure


def _gone(pids: str) -> None:
    """They end within ten seconds."""
    processes = []
    for pid in map(int, pids.split()):
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []


@needs_open_mpi
def test_a_partner_that_dies(measure: Callable[..., list[str]]) -> None:
    pids, sentence = measure("children[0].kill()")
    assert sentence.startswith(
        "rank 0 of 2: RuntimeError: one of mpiexec's ranks has ended or is silent; mpiexec: "
    )
    _gone(pids)


@needs_open_mpi
def test_partners_of_ranks_that_die(measure: Callable[..., list[str]]) -> None:
    pids, sentence = measure("os.kill(os.getpid(), signal.SIGKILL)")
    assert sentence == "rank 0 of 2 ended with exit code -9"
    _gone(pids)


def test_a_launcher_that_fails(measure: Callable[..., list[str]]) -> None:
    assert measure("", launcher="lambda: '/bin/false'") == [
        "rank 0 of 2: RuntimeError: mpiexec has not started its ranks: it said nothing"
    ]
