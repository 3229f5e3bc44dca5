"""Started by torchrun itself: the program asks for faults, and for the checks inside its ranks."""

import sys

import torch
import torch.distributed as dist

import distdebug
from distdebug.errors import UsageError


def refused(call):
    try:
        call()
    except UsageError as error:
        return str(error)
    return None


wrong = refused(lambda: distdebug.inject("kill(rank=7)"))
assert wrong == (
    "distdebug.inject: there is no rank 7: this run has ranks 0 to 1\n  kill(rank=7)\n            ^"
), wrong
if sys.argv[2] == "faulty":
    distdebug.inject('raise(rank=1, "ValueError: on purpose") @ step 3')
distdebug.install(run_dir=sys.argv[1])
if sys.argv[2] == "faulty":
    distdebug.inject("kill(rank=0) @ barrier#7")
dist.init_process_group("gloo")
late = refused(lambda: distdebug.inject("kill(rank=1)"))
assert late is not None
assert "before torch.distributed.init_process_group()" in late
for step in range(5):
    distdebug.step(step)  # the step
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
