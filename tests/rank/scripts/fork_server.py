"""Ranks that share one import of torch: for each line of stdin, an order, it forks a world.

An order is `{"directory": ..., "size": 2, "script": ..., "environment": {...}}`. It answers with
the ranks' pids, and then, when all have ended, with their wait statuses.
"""

import ctypes
import json
import os
import runpy
import signal
import sys
import time

import torch
import torch._dynamo  # what DDP loads when it is first made
import torch.distributed
from torch.nn.parallel import DistributedDataParallel  # noqa: F401 - loaded once for all

import distcore  # noqa: F401 - the same
from debugger.rank import injection, install  # noqa: F401 - the same

PR_SET_PDEATHSIG = 1
torch.set_num_threads(1)


def answer(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve():
    """Until stdin ends; in a rank, what it is to run."""
    for line in sys.stdin:
        order = json.loads(line)
        ranks = {}
        for rank in range(order["size"]):
            pid = os.fork()
            if not pid:
                die_with_parent()
                return rank, order
            ranks[pid] = rank
        answer(list(ranks))
        statuses = {}
        while ranks:
            pid, status = os.wait()
            if pid in ranks:
                ended = {"pid": pid, "status": status, "time_ns": time.time_ns()}
                with open(os.path.join(order["directory"], "exits.jsonl"), "a") as file:
                    file.write(json.dumps(ended) + "\n")
                statuses[ranks.pop(pid)] = status
        answer(statuses)
    return None


die_with_parent()
found = serve()
if found is not None:
    own, given = found
    os.chdir(given["directory"])
    os.environ.update(given["environment"], RANK=str(own), DISTDEBUG_RANK_PID=str(os.getpid()))
    for descriptor, stream in ((1, "out"), (2, "err")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(f"logs/{own}.{stream}", flags, 0o600), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    install.install()
    runpy.run_path(given["script"], run_name="__main__")
