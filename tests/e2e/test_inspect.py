"""`distdebug inspect` on jobs that were started without distdebug."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from distdebug.cli import main
from tests.support import fixture_table
from tests.support.foreign_jobs import job, mp_spawn, mpiexec, torchrun
from tests.support.runs import DISTDEBUG
from tests.support.standstill import hangs

LIMIT_S = 240.0
SPAWNING = """
import time, torch, torch.multiprocessing as mp, torch.distributed as dist

def work(rank, path):
    dist.init_process_group("gloo", init_method=path, rank=rank, world_size=2)
    for step in range(100):
        if rank == 1 and step == 3:
            time.sleep(600)  # <- here
        dist.all_reduce(torch.ones(4))

if __name__ == "__main__":
    import sys
    mp.start_processes(work, ("file://" + sys.argv[1],), nprocs=2, start_method="fork")
"""
AT_WORK = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(100_000):
    time.sleep(0.05 * dist.get_rank())
    dist.all_reduce(torch.ones(4))
    print("step", flush=True)
"""
DEBUGGED = """
import os, torch, torch.distributed as dist
from datetime import timedelta
from torch._C._distributed_c10d import _WorkerServer
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
server = _WorkerServer("::", 0)  # what start_debug_server() does, without its pages
host, port, rank = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), dist.get_rank()
store = dist.PrefixStore("debug_server", dist.TCPStore(host, port, is_master=False))
store.set(f"rank{rank}", f"http://localhost:{server.port}")
x, y = torch.ones(4), torch.ones(4)
for step in range(5):
    if rank == 2 and step == 3:
        works = [dist.broadcast(y, 0, async_op=True), dist.all_reduce(x, async_op=True)]
    else:
        works = [dist.all_reduce(x, async_op=True), dist.broadcast(y, 0, async_op=True)]
    for work in works:
        work.wait()
"""


def found_in(running: subprocess.Popen[Any], *flags: str) -> dict[str, Any]:
    """The report of the first inspection that finds something."""
    asked = [str(DISTDEBUG), "inspect", "--job", str(running.pid), "--json", *flags]
    began_s = time.monotonic()
    while True:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            report: dict[str, Any] = json.loads(done.stdout)
            if report["findings"]:
                return report
        else:
            assert "no rank was found" in done.stderr, done.stderr
        assert time.monotonic() - began_s < LIMIT_S, done.stdout + done.stderr


def steps_go_on(output: Path) -> None:
    """Wait until the job has made one more step than now."""
    began_s, before = time.monotonic(), output.read_text().count("step\n")
    while output.read_text().count("step\n") <= before:
        assert time.monotonic() - began_s < LIMIT_S, output.read_text()
        time.sleep(0.05)


def line(script: Path) -> int:
    rows = script.read_text().splitlines()
    return next(number for number, row in enumerate(rows, 1) if "<- " in row)


@pytest.mark.parametrize(
    ("name", "kind", "culprits"),
    [
        ("missing_lock", "missing_rank", [0]),
        pytest.param("deadlock_ring", "deadlock", [0, 1, 2], marks=pytest.mark.long),
        pytest.param("op_rank0_broadcast", "op_mismatch", [0], marks=pytest.mark.long),
        pytest.param("missing_stopped", "missing_rank", [1], marks=pytest.mark.long),
        pytest.param("join_never_calls_init", "join_timeout", [2], marks=pytest.mark.long),
    ],
)
def test_who_holds_up_a_job_of_torchrun(
    tmp_path: Path, name: str, kind: str, culprits: list[int]
) -> None:
    expected = fixture_table.expected(name)
    script = fixture_table.patient_scripts(tmp_path / "scripts") / expected["script"]
    with job(torchrun(expected["nproc"], [str(script)]), tmp_path) as running:
        report = found_in(running)
    (finding,) = report["findings"]
    assert (finding["kind"], sorted(finding["culprits"])) == (kind, culprits)
    assert not finding["proven"]
    assert finding["side"] == "host"
    where = finding["ranks"][str(culprits[0])]["location"]
    assert (Path(where["file"]).name, where["line"]) == (script.name, line(script))


def test_a_program_that_starts_its_ranks_itself(tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING)
    page = tmp_path / "look.html"
    with job([sys.executable, str(script), str(tmp_path / "store")], tmp_path) as running:
        (finding,) = found_in(running)["findings"]
        asked = [str(DISTDEBUG), "inspect", "--job", str(running.pid), "--html", str(page)]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
    shown = page.read_text()
    assert "time.sleep(600)" in shown, "the stacks are in it, with their source"
    assert finding["headline"].split(",")[0] in shown
    assert (finding["kind"], finding["culprits"], finding["victims"]) == ("missing_rank", [1], [0])
    assert finding["ranks"]["1"]["location"]["line"] == line(script)


@pytest.mark.long
def test_what_no_stack_shows_the_debug_servers_prove(tmp_path: Path) -> None:
    """All ranks stand in one `wait()`; one has issued its two calls in another order."""
    script = tmp_path / "debugged.py"
    script.write_text(DEBUGGED)
    with job(torchrun(3, [str(script)]), tmp_path) as running:
        report = found_in(running, "--dump")
    (finding,) = report["findings"]
    assert (finding["kind"], finding["proven"]) == ("op_mismatch", True), report
    assert finding["culprits"] == [2]
    assert any("torch's debug servers" in note for note in report["notes"])


@pytest.mark.long
def test_the_key_that_nobody_sets_is_named(tmp_path: Path) -> None:
    script = fixture_table.patient_scripts(tmp_path / "scripts") / "buggy" / "missing_store.py"
    with job(torchrun(3, [str(script)]), tmp_path) as running:
        (finding,) = found_in(running)["findings"]
    assert (finding["kind"], finding["cause"], finding["culprits"]) == (
        "missing_rank",
        "store",
        [2],
    )
    assert any("which nobody has set" in line for line in finding["details"]), finding["details"]


@pytest.mark.long
@pytest.mark.parametrize("start", [mpiexec, mp_spawn])
@pytest.mark.parametrize(
    ("name", "kind"), [("deadlock_group_world", "deadlock"), ("group_order", "group_mismatch")]
)
def test_other_ways_to_start_ranks(
    tmp_path: Path, start: Callable[[int, Sequence[str]], list[str]], name: str, kind: str
) -> None:
    expected = fixture_table.expected(name)
    script = fixture_table.patient_scripts(tmp_path / "scripts") / expected["script"]
    words = start(expected["nproc"], [str(script)])
    with job(words, tmp_path) as running:
        assert hangs(running, 6.0, LIMIT_S), (tmp_path / "output").read_text()
        (finding,) = found_in(running)["findings"]
    assert (finding["kind"], sorted(finding["culprits"])) == (kind, expected["culprits"])


def test_a_job_at_work_is_left_alone(tmp_path: Path) -> None:
    """Nothing is found, and the job goes on."""
    script = tmp_path / "at_work.py"
    script.write_text(AT_WORK)
    with job(torchrun(2, [str(script)]), tmp_path) as running:
        steps_go_on(tmp_path / "output")
        for _ in range(3):
            asked = [str(DISTDEBUG), "inspect", "--job", str(running.pid), "--exit-code"]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), done.stdout
            assert "nothing is wrong that can be seen" in done.stdout
        assert running.poll() is None
        steps_go_on(tmp_path / "output")


def test_no_job(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "60"]) as lonely:
        try:
            assert main(["inspect", "--job", str(lonely.pid)]) == 2
            assert main(["inspect", "--still", "-1"]) == 2
        finally:
            os.kill(lonely.pid, signal.SIGKILL)
    assert "no rank was found" in capsys.readouterr().err
    assert main(["inspect", "--pid", str(lonely.pid)]) == 2
    assert capsys.readouterr().err == f"distdebug: there is no process {lonely.pid}\n"
