"""Ranks of torch's test suite that mpiexec starts once, for all tests: MPI cannot be joined later.

The suite makes a process for each rank of each test; with the backend mpi it makes `MpiRank`s,
which hand the test to the pool's processes. `python mpi_pool.py DIRECTORY` is one of those. Orders
and answers are files, renamed into place.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing import Pipe
from pathlib import Path

PAUSE_S = 0.01
TAKEN = {"INIT_METHOD", "TEMP_DIR", "WORLD_SIZE", "BACKEND"}
"""What the suite sets for a test; the rest of the environment is as at the start."""
RANK = "OMPI_COMM_WORLD_RANK"
ROOT = Path(__file__).resolve().parents[2]


def _write(path, content):
    path.with_suffix(".new").write_text(json.dumps(content))
    path.with_suffix(".new").rename(path)


class Pool:
    """mpiexec and its ranks; started by the first test, and again after one that ended them."""

    def __init__(self, size):
        self._size = size
        self._orders = itertools.count()
        self._process = None
        atexit.register(self.end)

    def order(self, test_name, file_name):
        """Have all ranks run a test; the directory and the number of the order."""
        if self._process is None or self._process.poll() is not None:
            self.end()
            self._start()
        number = next(self._orders)
        content = {"test": test_name, "file": file_name, "env": dict(os.environ)}
        _write(self.directory / f"order-{number}", content)
        return number

    def _start(self):
        self.directory = Path(tempfile.mkdtemp(prefix="mpi-pool-"))
        self._orders = itertools.count()
        launcher = Path(sys.executable).with_name("mpiexec")
        words = ["-n", str(self._size), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
        allowed = {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }
        self._process = subprocess.Popen(
            [launcher, *words, sys.executable, __file__, str(self.directory)],
            env={**os.environ, **allowed},
            stdin=subprocess.DEVNULL,
        )

    @property
    def alive(self):
        return self._process is not None and self._process.poll() is None

    def end(self):
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            shutil.rmtree(self.directory, ignore_errors=True)
            self._process = None


class MpiRank:
    """Looks like a multiprocessing.Process, as far as torch's test cases look."""

    pool = None
    _pids = itertools.count(10_000_000)  # of no process
    _waiting = ()

    def __init__(self, target, name, args, kwargs=None):
        self._rank, self._test, self._file, self._pipe = args
        self.name = name
        self.pid = next(self._pids)
        self._code = None
        self._answer = None
        self.sentinel = None

    def start(self):
        size = int(os.environ["WORLD_SIZE"])
        if MpiRank.pool is None:
            MpiRank.pool = Pool(size)
        MpiRank._waiting = (*MpiRank._waiting, self)
        if len(MpiRank._waiting) == size:
            number = self.pool.order(self._test, self._file)
            for one in MpiRank._waiting:
                one._answer = self.pool.directory / f"done-{number}-{one._rank}"
            MpiRank._waiting = ()

    @property
    def exitcode(self):
        """None while it runs."""
        self._look()
        return self._code

    def is_alive(self):
        return self.exitcode is None

    def join(self, timeout=None):
        until = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (until is None or time.monotonic() < until):
            time.sleep(PAUSE_S)

    def terminate(self):
        if self.exitcode is None:
            self.pool.end()
            self._code = -15

    kill = terminate

    def close(self):
        """As of a process."""

    def _look(self):
        if self._code is not None or self._answer is None:
            return
        if self._answer.exists():
            answer = json.loads(self._answer.read_text())
            if answer["said"] is not None:
                self._pipe.send(answer["said"])
            self._code = answer["code"]
        elif not self.pool.alive:
            self._code = -9


def main(directory):
    """One rank of the pool."""
    sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
    import torch_suite

    rank = int(os.environ[RANK])
    for number in itertools.count():
        order = Path(directory, f"order-{number}")
        while not order.exists():
            if os.getppid() == 1:
                return
            time.sleep(PAUSE_S)
        asked = json.loads(order.read_text())
        mine = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("OMPI", "PMIX", "PRTE"))
        }
        os.environ.update({**asked["env"], **mine})
        ours, theirs = Pipe()
        said, code = None, 0
        try:
            torch_suite.TestTorch.run_in_pool(rank, asked["test"], asked["file"], theirs)
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            said, code = traceback.format_exc(), 10
        if torch_suite.torch.distributed.is_initialized():
            torch_suite.torch.distributed.destroy_process_group()
        try:
            while ours.poll():
                said = ours.recv()
        except EOFError:
            pass  # the test has closed its end
        _write(Path(directory, f"done-{number}-{rank}"), {"code": code, "said": said})


if __name__ == "__main__":
    main(sys.argv[1])
