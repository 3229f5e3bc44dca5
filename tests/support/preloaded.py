"""Imported by the tests' fork server, for all that is forked from it: what ranks, supervisors and
launchers import beside torch. Importing it is all there is to it."""

from __future__ import annotations

import importlib
import os
import weakref

from tests.support import hook_by_hand

for _module in (
    "torch.distributed",
    "torch._dynamo",  # the first DistributedDataParallel imports it, which takes 3 s
    "torch.distributed.optim",  # compiles what it has for TorchScript
    "distcore.tcp.engine",
    "distdebug.supervisor.supervisor",
    "distdebug.commands.exec",
    "distdebug.commands.plan",
    "distdebug.rank.plan.forker",
    "distdebug.cli",
):
    importlib.import_module(_module)
hook_by_hand.run().load("rank.install")  # under the name that the layer has in ranks

# torch takes its operators back when a process ends. In one that was forked this writes into 30 MB
# that were shared until then: more than all that most of these processes do.
for _finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
    _finalizer.atexit = False

_THREADS = os.listdir("/proc/self/task")
if len(_THREADS) > 1:
    raise RuntimeError(f"{len(_THREADS)} threads: what is forked would lack all but one of them")
