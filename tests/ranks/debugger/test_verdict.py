"""A verdict is raised in every rank at the line where that rank waits, whatever it waits in."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from distdebug.record.snapshot import Rank
from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded

SCRIPT = Path(__file__).parents[1] / "scripts" / "blocked.py"
RANKS = 6
TEXT = "ranks disagree at collective #17"
LIMIT_S = 25.0
"""Typically 0.3 s. Nothing else would end them: their calls have half an hour."""


def lines_of(rank: int) -> set[int]:
    """Where it waits; a loop has two lines."""
    lines = SCRIPT.read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if text.endswith(f"# here {rank}"))
    return {line, line - 1} if rank == 3 else {line}


def stands(view: Rank) -> bool:
    """Whether the rank has come to its wait, as its last heartbeat says."""
    at = view.location
    return at is not None and at.file == str(SCRIPT) and at.line in lines_of(view.rank)


@pytest.fixture(scope="module")
def told(
    tmp_path_factory: pytest.TempPathFactory, torch_loaded: TorchLoaded
) -> tuple[ranks.Ranks, float]:
    """The ended run, and when its verdict was written (Unix time)."""
    directory = tmp_path_factory.mktemp("verdict")
    run = ranks.forked(torch_loaded, directory, RANKS, SCRIPT, apart=True)
    run.start()
    deadline = time.monotonic() + 90
    while not (
        all("blocked" in run.log(rank) for rank in range(RANKS)) and all(map(stands, run.views()))
    ):
        if run.process.poll() is not None or time.monotonic() > deadline:
            run.kill()
            raise AssertionError(run.explain())
        time.sleep(0.05)
    temporary = run.directory / "verdict.tmp"
    temporary.write_text(json.dumps({"kind": "op_mismatch", "text": TEXT}))
    written = time.time()
    temporary.rename(run.directory / "verdict.json")
    run.finish(60)
    return run, written


@pytest.mark.parametrize("rank", range(RANKS))
def test_raised_at_the_ranks_own_line(told: tuple[ranks.Ranks, float], rank: int) -> None:
    run, written = told
    error = run.log(rank, "err")
    assert f"distdebug.MismatchError: {TEXT}" in error, run.explain()
    places = re.findall(rf'File "{re.escape(str(SCRIPT))}", line (\d+)', error)
    assert int(places[-1]) in lines_of(rank), error
    finished = re.search(r"finally ([\d.]+)", run.log(rank))
    assert finished, run.explain()
    assert float(finished[1]) - written < LIMIT_S
    code, ended = json.loads(run.stdout.splitlines()[-1])[str(rank)]
    assert code == 1
    assert ended - written < LIMIT_S + 2


def test_the_record_tells_of_it(told: tuple[ranks.Ranks, float]) -> None:
    run, _ = told
    for view in run.views():
        kinds = [note.kind for note in view.notes]
        assert set(kinds) <= {"finding_raised", "left_call", "paired"}, view.rank
        assert kinds.count("finding_raised") == 1, view.rank
        assert view.exit_code == 1
