"""distcore: collectives of its own as torch.distributed backends, and torch.distributed's names.

`import distcore` makes `torch.distributed.init_process_group` work with "tcp", "mpi" and
"distcore_nccl". `import distcore as dist` gives everything that torch.distributed documents: what
is not defined here is torch's, looked up when it is asked for. By "nccl" it means "distcore_nccl".
"""

from __future__ import annotations

import importlib as _importlib
from typing import Any as _Any

import torch.distributed as _torch

__all__ = [
    "Aborted",
    "CallMismatch",
    "CorruptFrame",
    "DeadlineExceeded",
    "GroupFailed",
    "PeerLost",
    "RendezvousError",
    "StoreFailed",
    "init_process_group",
    "is_nccl_available",
    "monitored_barrier",
    "new_group",
    "split_group",
    "unavailable",
]


def _of_torch(package: _Any, name: str) -> _Any:
    """torch's attribute or submodule of that name."""
    try:
        return getattr(package, name)
    except AttributeError:
        pass
    full_name = f"{package.__name__}.{name}"
    if not name.startswith("_"):
        try:
            return _importlib.import_module(full_name)
        except ModuleNotFoundError as error:
            if error.name != full_name:
                raise
    raise AttributeError(f"neither distcore nor torch has {full_name!r}")


def __getattr__(name: str) -> _Any:
    return _of_torch(_torch, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_torch)})


# What importing this package is for; it opens nothing and starts nothing. Who needs parts of it in
# a program that has not asked for it sets `_for_itself` before the module is executed, and executes
# it again, without, for a program that does.
if not globals().get("_for_itself"):
    from .backend import register_all as _register_all
    from .backend import unavailable
    from .errors import (
        Aborted,
        CallMismatch,
        CorruptFrame,
        DeadlineExceeded,
        GroupFailed,
        PeerLost,
        RendezvousError,
        StoreFailed,
    )
    from .torch_api import (
        init_process_group,
        is_nccl_available,
        monitored_barrier,
        new_group,
        split_group,
    )

    _register_all()
    # Imported by its whole name: `from . import` would ask `__getattr__`, and get torch's.
    _algorithms = _importlib.import_module(f"{__name__}.algorithms")
    _algorithms.__dict__.setdefault("__getattr__", lambda name: _of_torch(_torch.algorithms, name))
