"""`run --prom`: a textfile that is up to date while the run lives, and says how it ended."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.exposition import Metric, parse
from tests.support.zygote import Zygote

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(5):
    dist.all_reduce(torch.ones(100))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
if sys.argv[2] == "differs" and dist.get_rank() == 1:
    dist.broadcast(torch.ones(100), 0)
else:
    dist.all_reduce(torch.ones(100))
dist.destroy_process_group()
"""
LIMIT_S = 100.0


def _until(path: Path, ranks: int) -> dict[str, Metric]:
    """The first file that has so many ranks alive. The first of all may be older than they are."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = parse(path.read_text()) if path.exists() else {}
        if found and sum(found["distdebug_rank_up"].samples.values()) == ranks:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {ranks} ranks in {path} within {LIMIT_S} s")


def test_it_is_there_while_the_run_lives_and_at_its_end(tmp_path: Path, zygote: Zygote) -> None:
    script, go, prom = (tmp_path / name for name in ("train.py", "go", "run.prom"))
    script.write_text(PROGRAM)
    program = [str(script), str(go), "same"]
    command = zygote.start(2, program, tmp_path, ["--prom", str(prom)])
    live = _until(prom, 2)
    assert live["distdebug_run_info"].of(outcome="running") == 1
    assert live["distdebug_world_size"].of() == 2
    assert all(age < 60 for age in live["distdebug_heartbeat_age_seconds"].samples.values())
    go.touch()
    done = command.finish()
    assert done.exit_code == 0, done.explain()
    found = parse(prom.read_text())
    assert found["distdebug_run_info"].of(outcome="ok") == 1
    for rank in "01":
        place = {"rank": rank, "group": "0", "op": "all_reduce"}
        assert found["distdebug_calls_total"].of(**place) == 6
        assert found["distdebug_call_bytes_total"].of(**place) == 2400
    assert found["distdebug_findings"].of(severity="error") == 0


def test_a_verdict_is_in_it(tmp_path: Path, zygote: Zygote) -> None:
    script, prom = tmp_path / "train.py", tmp_path / "run.prom"
    script.write_text(PROGRAM)
    done = zygote.run(2, [str(script), str(script), "differs"], tmp_path, ["--prom", str(prom)])
    assert done.exit_code == 91, done.explain()
    found = parse(prom.read_text())
    assert found["distdebug_finding"].of(kind="op_mismatch", severity="error") == 1
    assert found["distdebug_exit_code"].of() == 91
