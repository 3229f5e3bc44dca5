"""What a look costs the job that is looked at, and how long it takes.

    python tests/benchmarks/inspect_cost.py [ATTACHES] [RANKS]

A training of RANKS (8) is run once alone and once while it is looked at ATTACHES (100) times, a
tenth of them with `--native`. Both must end with the same checksum of all parameters. Between, the
state of each rank is read every millisecond: how long a look had it stopped is the longest time in
which it was seen traced or stopped.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from distdebug.inspection.inspect import inspect
from distdebug.inspection.look import Limits
from distdebug.inspection.processes import find_jobs
from distdebug.system.proc import read_stat
from tests.support import foreign_jobs

TRAINING = """
import hashlib, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(7)
layers = torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
made = torch.Generator().manual_seed(dist.get_rank())
for number in range(400):
    optimizer.zero_grad()
    model(torch.randn(16, 64, generator=made)).square().mean().backward()
    optimizer.step()
if dist.get_rank() == 0:
    print("ready", flush=True)
go = os.path.join(os.getcwd(), "go")
while True:
    ended = torch.tensor([float(os.path.exists(go))])
    dist.all_reduce(ended, op=dist.ReduceOp.MIN)
    if ended.item():
        break
    # What a look could disturb: the state that it goes on from is the one that it found.
    for _ in range(5):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
        y = model(x).square().mean()
for number in range(400):
    optimizer.zero_grad()
    model(torch.randn(16, 64, generator=made)).square().mean().backward()
    optimizer.step()
if dist.get_rank() == 0:
    whole = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    print("checksum", hashlib.sha256(whole).hexdigest(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
LIMIT_S = 300.0


class Watcher:
    """Reads the states of processes for as long as the block lasts."""

    def __init__(self, pids: list[int]) -> None:
        self.longest_s = 0.0
        self._pids = pids
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        since: dict[int, float] = {}
        while not self._over.wait(0.001):
            now_s = time.monotonic()
            for pid in self._pids:
                stat = read_stat(pid)
                if stat is not None and stat.state in ("t", "T"):
                    self.longest_s = max(self.longest_s, now_s - since.setdefault(pid, now_s))
                else:
                    since.pop(pid, None)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def trained(attaches: int, ranks: int) -> str:
    """The checksum of a training that was looked at so often while it went on."""
    with tempfile.TemporaryDirectory(prefix="look-", dir="/tmp") as name:
        directory = Path(name)
        (directory / "train.py").write_text(TRAINING)
        words = foreign_jobs.torchrun(ranks, ["train.py"])
        with foreign_jobs.job(words, directory) as running:
            _await(directory, "ready")
            if attaches:
                _look(running.pid, attaches)
            (directory / "go").touch()
            running.wait(LIMIT_S)
            return _await(directory, "checksum")


def _look(launcher: int, attaches: int) -> None:
    (job,) = find_jobs([launcher])
    took: list[float] = []
    accused = 0
    stopped: dict[bool, float] = {False: 0.0, True: 0.0}
    for number in range(attaches):
        native = number % 10 == 9
        with Watcher([one.pid for one in job.processes]) as watcher:
            began_s = time.monotonic()
            seen = inspect(job, Limits(), native)
            if not native:
                took.append(time.monotonic() - began_s)
        accused += bool(seen.findings)
        stopped[native] = max(stopped[native], watcher.longest_s)
    print(
        f"{len(job.processes)} ranks, {attaches} looks, {accused} accusations; a look takes "
        f"{statistics.median(took):.2f} s (median), {max(took):.2f} s (longest); longest stop "
        f"of a rank {stopped[False] * 1000:.1f} ms, with --native {stopped[True] * 1000:.1f} ms"
    )


def _await(directory: Path, word: str) -> str:
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        lines = (directory / "output").read_text(errors="replace").splitlines()
        for line in lines:
            if line.startswith(word):
                return line
        time.sleep(0.05)
    raise AssertionError(f"no {word}:\n" + "\n".join(lines[-20:]))


def main() -> int:
    # Its ranks end with it, whoever ends it: they spin until they are told to go on.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    attaches = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    alone, looked_at = trained(0, ranks), trained(attaches, ranks)
    print(f"{alone}\n{looked_at}\n{'the same' if alone == looked_at else 'NOT the same'}")
    return int(alone != looked_at)


if __name__ == "__main__":
    sys.exit(main())
