"""A program that meets a limit of processes and threads is not blamed alone: the limit is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import runs

LIMIT = 40
THREADS = """
import threading
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://store", rank=0, world_size=1)
over = threading.Event()
while True:
    threading.Thread(target=over.wait, daemon=True).start()
"""


@pytest.fixture
def limited() -> Iterator[Path]:
    """The folder of a cgroup of its own."""
    mounted = Path("/sys/fs/cgroup")
    parent = mounted / "pids" if (mounted / "pids").is_dir() else mounted
    folder = parent / f"distdebug-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "pids.max").write_text(str(LIMIT))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no cgroup with a limit can be made here: {error}")
    yield folder
    folder.rmdir()


@pytest.mark.root
def test_the_limit_of_a_cgroup_is_named(limited: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(THREADS.replace("file://", f"file://{tmp_path}/"))
    enter = f'echo $$ >{limited}/cgroup.procs; exec "$@"'
    words = [str(runs.DISTDEBUG), "exec", "--run-dir", "run", "--", sys.executable, "train.py"]
    done = subprocess.run(
        ["sh", "-c", enter, "sh", *words],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        # Parts of the watching that need a thread are off then, which is no fault of theirs.
        env=runs.environment({"DISTDEBUG_RAISE_OWN_FAULTS": ""}),
    )
    run = runs.Run(done.returncode, done.stdout, done.stderr, tmp_path / "run")
    (error,) = run.errors
    assert (error["kind"], error["cause"], run.exit_code) == ("rank_exception", "task_limit", 1)
    assert f"(pids.max is {LIMIT} in {limited})" in error["message"], run.explain()
    assert "can't start new thread" in error["message"]
