"""Ranks that the hook does not reach, or in which it fails: they are named, judged from outside,
and nothing is claimed of what they did. Each of them has a Python of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import runs

LAUNCHER = """
import os, subprocess, sys
ranks = []
for rank in range(2):
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
    ranks.append(subprocess.Popen([sys.executable, "rank.py"], env=environment))
sys.exit(max(abs(rank.wait()) for rank in ranks[::-1]))
"""
BEGINS = """
import os, socket, threading, time, torch, torch.distributed as dist
store = "file://" + os.path.abspath("store")
dist.init_process_group("gloo", store, rank=int(os.environ["RANK"]), world_size=2)
rank = dist.get_rank()
"""
HANGS = """
if rank == 1:
    threading.Event().wait()  # here
dist.all_reduce(torch.ones(3))
"""
WORKS = """
# For thrice the limit: rank 1 computes, and rank 0 waits for it at the end of each round, which is
# shorter than the limit; then rank 0 waits for a client.
until = time.monotonic() + 9.0
go = torch.ones(1)
while go.item():
    if rank == 1:
        round_s = time.monotonic() + 1.0
        while time.monotonic() < round_s:
            torch.ones(64, 64) @ torch.ones(64, 64)
        go.fill_(time.monotonic() < until)
    dist.broadcast(go, 1)
if rank == 0:
    server = socket.create_server(("127.0.0.1", 0))
    threading.Timer(9.0, lambda: socket.create_connection(server.getsockname())).start()
    server.accept()
dist.barrier()
"""
ABORTS = """
import os, time, torch
# Until the supervisor has been round: it samples, and then looks who is there, twice as often.
def samples():
    path = os.environ["DISTDEBUG_RUN_DIR"] + "/host.jsonl"
    return open(path).read().count("time_ns") if os.path.exists(path) else 0
before = samples()
while samples() < before + 3:
    time.sleep(0.01)
if os.environ["RANK"] == "1":
    os.abort()
"""
LIMITS = ["--hang-timeout", "4", "--notice-after", "1"]
WITHOUT = ["bash", "-c", 'export PYTHONPATH=/nowhere; "$0" launcher.py', sys.executable]


def _run(tmp_path: Path, rank: str, command: list[str], *flags: str) -> runs.Run:
    (tmp_path / "rank.py").write_text(rank)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    return runs.run("exec", [*flags, "--", *command], tmp_path)


def test_a_hang_of_ranks_none_of_which_is_watched(tmp_path: Path) -> None:
    done = _run(tmp_path, BEGINS + HANGS, WITHOUT, *LIMITS)
    assert done.exit_code == 93, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"], error["proven"]) == ("missing_rank", [1], False)
    lines = (BEGINS + HANGS).splitlines()
    assert lines[error["ranks"]["1"]["location"]["line"] - 1].endswith("# here")
    assert done.stderr.count("ranks 0,1 are not watched") == 1, done.explain()
    assert "export PYTHONPATH=/nowhere:$PYTHONPATH" in done.stderr
    assert "watched 0 of 2 ranks" in done.stderr


@pytest.mark.long
def test_who_works_and_serves_for_longer_than_the_limit_has_done_nothing(tmp_path: Path) -> None:
    done = _run(tmp_path, BEGINS + WORKS, WITHOUT, *LIMITS)
    assert (done.report["outcome"], done.exit_code) == ("unwatched", 2), done.explain()
    assert done.report["findings"] == []
    assert "ranks 0,1 are not watched" in done.stderr


def test_nothing_is_claimed_of_a_rank_in_which_the_hook_has_failed(tmp_path: Path) -> None:
    """A module of the program's hides torch."""
    (tmp_path / "torch.py").write_text("")
    done = _run(tmp_path, ABORTS, [sys.executable, "launcher.py"])
    assert done.exit_code == 94, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("rank_died", [1])
    assert error["message"].startswith("rank 1 was killed by SIGABRT; it was not watched: Attr")
    assert f"{tmp_path}/torch.py hides the torch that distdebug needs" in error["message"]
    assert "watched 0 of 2 ranks" in done.stderr


def test_a_failure_of_ranks_none_of_which_is_watched(tmp_path: Path) -> None:
    """Nobody who is reached has seen how they ended. They live until a look has seen them."""
    seen = "import os, time\nwhile not os.path.exists('seen'): time.sleep(0.01)\nraise KeyError"
    (tmp_path / "rank.py").write_text(seen)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    flags = ["--hang-timeout", "600", "--notice-after", "0.1", "--", *WITHOUT]
    process = runs.start("exec", flags, tmp_path / "run", tmp_path)
    assert process.stderr is not None
    said = process.stderr.readline()
    if "watched and recorded" in said:  # what every run begins with
        said = process.stderr.readline()
    (tmp_path / "seen").touch()
    done = runs.finish(process, tmp_path / "run")
    assert "are not watched" in said, done.explain()
    assert (done.report["outcome"], done.exit_code) == ("failed", 1), done.explain()
    assert "and no rank was watched: process " in done.stderr
    assert "no cause of it was found among the ranks" not in done.stderr


def test_ranks_that_cannot_be_recorded_are_not_green(tmp_path: Path) -> None:
    """The hook is in them, and no file of the record's size can be made."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"
    (tmp_path / "rank.py").write_text(f"{limit}\nimport torch")
    told = {"RANK": "0", "WORLD_SIZE": "1", "DISTDEBUG_RAISE_OWN_FAULTS": ""}
    done = runs.run("exec", ["--", sys.executable, "rank.py"], tmp_path, told)
    assert (done.report["outcome"], done.exit_code) == ("unwatched", 2), done.explain()
    assert "its record could not be made: OSError(27, 'File too large')" in done.report["notes"][0]
