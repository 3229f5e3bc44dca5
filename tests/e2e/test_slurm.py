"""Under a real Slurm, on nodes of this machine: started in each of the ways that users have, and
ended in each of the ways that Slurm has."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.nodes import Command, Nodes, Unavailable
from tests.support.on_nodes import PORT, needs_one_verdict
from tests.support.slurm import Slurm

pytestmark = [pytest.mark.root, pytest.mark.long, pytest.mark.timeout(300)]
GOING_ON = Path(__file__).parents[1] / "ranks" / "scripts" / "going_on.py"
WRONG_LINE = 1 + next(
    number for number, line in enumerate(GOING_ON.read_text().splitlines()) if "look here" in line
)
ONE_NODE_ONE_TASK = ("srun", "-N2", "--ntasks-per-node=1")
LIMIT_S = 120.0
TIME_LIMIT_S = 240.0
"""Slurm counts in minutes, and looks every half of one."""


@pytest.fixture
def slurm(make_nodes: Callable[[int], Nodes]) -> Slurm:
    nodes = make_nodes(2)
    try:
        return Slurm(nodes)
    except Unavailable as reason:
        pytest.skip(f"needs Slurm: {reason}")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def by_run(program: Sequence[str]) -> list[str]:
    """A `distdebug run` on each node."""
    flags = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    flags += ["--rdzv-endpoint", f"node0:{PORT}", "--rdzv-id", "job"]
    return [*ONE_NODE_ONE_TASK, str(runs.DISTDEBUG), "run", *flags, *program]


def by_exec(program: Sequence[str], know_their_rank: bool) -> list[str]:
    """Each task is a rank below a `distdebug exec` of its own."""
    words = ["srun", "-N2", "-n4", "--ntasks-per-node=2"]
    if know_their_rank:
        script = 'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS; exec "$@"'
        words += ["sh", "-c", script, "sh"]
    return [*words, str(runs.DISTDEBUG), "exec", "--", sys.executable, *program]


FORMS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "run": by_run,
    "exec-procid": lambda program: by_exec(program, know_their_rank=False),
    "exec-rank": lambda program: by_exec(program, know_their_rank=True),
}
MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": str(PORT)}


def reports(slurm: Slurm, command: Command) -> list[dict[str, Any]]:
    """Of all supervisors; they have the working directory of `srun` in common."""
    found = sorted((command.node.directory / ".distdebug").glob("2*/report.json"))
    assert found, f"no report\n{command.said()}\n{slurm.said()}"
    return [json.loads(path.read_text()) for path in found]


def ended(slurm: Slurm, command: Command, limit_s: float = LIMIT_S) -> int:
    try:
        return command.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"not over\n{command.said()}\n{slurm.said()}") from None


def await_all(slurm: Slurm, command: Command, here: Path, ranks: int) -> None:
    """Until each rank has made calls."""
    until_s = time.monotonic() + LIMIT_S
    while len(list(here.iterdir())) < ranks:
        assert command.poll() is None, f"it ended\n{command.said()}\n{slurm.said()}"
        assert time.monotonic() < until_s, f"no calls\n{command.said()}"
        time.sleep(0.05)


def check_no_rank_is_left(slurm: Slurm, nodes: Sequence[int] = (0, 1)) -> None:
    until_s = time.monotonic() + 20
    while left := [
        line for number in nodes for line in slurm.nodes[number].processes().values()
        if "python" in line
    ]:  # fmt: skip
        assert time.monotonic() < until_s, left
        time.sleep(0.1)


@needs_one_verdict
@pytest.mark.parametrize("form", FORMS)
def test_the_same_verdict_everywhere(slurm: Slurm, form: str) -> None:
    words = FORMS[form]([str(GOING_ON), "--wrong", "2"])
    command = slurm.start(words, MASTER)
    assert ended(slurm, command) == 91, command.said()
    found = reports(slurm, command)
    assert len(found) == (2 if form == "run" else 4)
    for report in found:
        assert (report["outcome"], report["exit_code"]) == ("op_mismatch", 91), report
        finding = report["findings"][0]
        assert finding["culprits"] == [2], report
        assert finding["ranks"]["2"]["location"]["line"] == WRONG_LINE
    hosts = [
        {rank: one["host"] for rank, one in report["ranks"].items()}
        for report in found
        if len(report["ranks"]) == 4
    ]
    assert {"0": "node0", "1": "node0", "2": "node1", "3": "node1"} in hosts
    check_no_rank_is_left(slurm)


@pytest.mark.parametrize("form", FORMS)
def test_without_a_fault(slurm: Slurm, form: str) -> None:
    """The twin, of which nothing is said anywhere."""
    command = slurm.start(FORMS[form]([str(GOING_ON), "--steps", "20"]), MASTER)
    assert ended(slurm, command) == 0, command.said()
    for report in reports(slurm, command):
        assert (report["outcome"], report["findings"]) == ("ok", []), command.said()


@pytest.mark.parametrize("form", ["run", "exec-procid"])
def test_cancelled(slurm: Slurm, here: Path, form: str) -> None:
    """All get SIGTERM at once, ranks, launchers and supervisors: nobody is to blame."""
    command = slurm.start(FORMS[form]([str(GOING_ON), "--here", str(here)]), MASTER)
    await_all(slurm, command, here, 4)
    (job,) = slurm.jobs()
    slurm.ask("scancel", str(job))
    assert ended(slurm, command) != 0
    check_no_rank_is_left(slurm)
    for report in reports(slurm, command):
        assert report["outcome"] == "interrupted", (report["findings"], command.said())


def test_out_of_time(slurm: Slurm, here: Path) -> None:
    words = by_run([str(GOING_ON), "--here", str(here)])
    command = slurm.start([words[0], "--time=1", *words[1:]], MASTER)
    ended(slurm, command, TIME_LIMIT_S)  # srun itself may end with 0
    assert "TIME LIMIT" in command.said()
    assert len(list(here.iterdir())) == 4, command.said()
    check_no_rank_is_left(slurm)
    for report in reports(slurm, command):
        assert report["outcome"] == "interrupted", (report["findings"], command.said())


@needs_one_verdict
def test_a_slurmd_that_is_killed(slurm: Slurm, here: Path) -> None:
    """Slurm gives the node up after a while and ends what it still reaches; what it does not reach
    ends because the other node has."""
    command = slurm.start(by_run([str(GOING_ON), "--here", str(here)]), MASTER)
    await_all(slurm, command, here, 4)
    slurm.slurmd(1).send_signal(signal.SIGKILL)
    assert ended(slurm, command, TIME_LIMIT_S) != 0
    check_no_rank_is_left(slurm)
    for report in reports(slurm, command):
        assert report["outcome"] in ("interrupted", "node_lost"), report["findings"]
