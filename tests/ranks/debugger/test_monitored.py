"""monitored_barrier tells all ranks who is missing, and what they do, on every backend."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support import mpi, ranks
from tests.support.torch_loaded import TorchLoaded

SCRIPT = Path(__file__).parents[1] / "scripts" / "monitored.py"
RANKS = 4


@pytest.mark.parametrize("backend", ["gloo", "tcp"])
def test_who_is_missing_and_where(backend: str, tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    run = ranks.forked(torch_loaded, tmp_path, RANKS, SCRIPT, backend)
    assert run.run() == 0, run.explain()
    for rank in range(RANKS):
        first, failed, last = run.log(rank).splitlines()
        assert (first, last) == ("passed", "passed"), run.explain()
        assert reason() in failed, run.explain()
        assert failed.startswith(beginning(rank))


@pytest.mark.long
def test_who_is_missing_and_where_on_mpi(tmp_path: Path) -> None:
    """mpiexec puts what the ranks say into one stream."""
    command = [*mpi.command("openmpi", RANKS), str(mpi.python("openmpi")), str(SCRIPT), "mpi"]
    with tempfile.TemporaryDirectory(prefix="mpi-", dir="/tmp") as directory:
        run = ranks.Ranks(tmp_path, command, extra=mpi.environment(directory))
        assert run.run() == 0, run.explain()
    said = [line for line in run.stdout.splitlines() if line]
    assert said.count("passed") == 2 * RANKS, run.explain()
    failed = sorted(line for line in said if line != "passed")
    assert len(failed) == RANKS, run.explain()
    for rank, line in enumerate(failed):
        assert reason() in line, run.explain()
        assert line.startswith(beginning(rank))


def beginning(rank: int) -> str:
    return "Rank 0" if rank == 0 else f"Rank {rank} successfully reached"


def reason() -> str:
    one, two = (
        next(n for n, text in enumerate(SCRIPT.read_text().splitlines(), 1) if text.endswith(end))
        for end in ("# here 1", "# here 2")
    )
    return (
        "Rank 0 timed out in monitoredBarrier after 4000 ms: "
        "Ranks 1, 2 failed to pass monitoredBarrier in 4000 ms; "
        'rank 1 is in all_reduce(sum, float32[4]) #0 of group "pair" at '
        f"monitored.py:{one} in <module>; "
        f"rank 2 is in no call; it is at monitored.py:{two} in nap < monitored.py:"
    )
