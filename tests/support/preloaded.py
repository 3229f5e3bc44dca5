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
    "torch.distributed.algorithms.ddp_comm_hooks",
    "encodings.idna",  # the first name of a host that is looked up
    "distcore.tcp.engine",
    "distdebug.supervisor.supervisor",
    "distdebug.commands.exec",
    "distdebug.launch.launchers",
    "distdebug.commands.plan",
    "distdebug.rank.plan.forker",
    "distdebug.cli",
):
    importlib.import_module(_module)
# Under the names that the layer has in ranks, what most of them come to need as well.
for _module in ("rank.install", "rank.log.encoding", "rank.replicas.check", "rank.process.meeting"):
    hook_by_hand.run().load(_module)

# torch takes its operators back when a process ends. In one that was forked this writes into 30 MB
# that were shared until then: more than all that most of these processes do.
for _finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
    _finalizer.atexit = False

_THREADS = os.listdir("/proc/self/task")
if len(_THREADS) > 1:
    raise RuntimeError(f"{len(_THREADS)} threads: what is forked would lack all but one of them")
