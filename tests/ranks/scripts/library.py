"""Started by torchrun itself: the program asks for the checks inside its ranks."""

import os
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist

import distdebug
from distdebug.errors import MismatchError, UsageError


def refused(call):
    try:
        call()
    except UsageError as error:
        return str(error)
    return None


assert "'LOUD' is none of" in refused(lambda: distdebug.install(level="LOUD"))
if sys.argv[1] == "late":
    dist.init_process_group("gloo")
    sys.stdout.write(f"{refused(distdebug.install)}\n")
    sys.stdout.flush()
    dist.barrier()  # the other rank may be connecting to this one still
    dist.destroy_process_group()
    raise SystemExit
tempfile.tempdir = os.getcwd()
distdebug.install(level="detail", run_dir=sys.argv[2] if sys.argv[2:] else None)
distdebug.install()
dist.init_process_group("gloo")
rank = dist.get_rank()
assert dist.get_debug_level() == dist.DebugLevel.DETAIL
distdebug.monitored_barrier(timeout=timedelta(seconds=60))
if sys.argv[1] == "clean":
    dist.destroy_process_group()
    raise SystemExit
if sys.argv[1] == "wrong":
    dist.all_reduce(torch.ones(4 + rank))
try:
    dist.all_reduce(torch.ones(4 + rank))
except dist.DistBackendError as error:
    if not isinstance(error, MismatchError):
        raise
    sys.stdout.write(f"{error}\n")  # in one piece: the ranks share a pipe
    sys.stdout.flush()
distdebug.install(level="OFF")
assert dist.get_debug_level() == dist.DebugLevel.OFF
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
