"""When torch.distributed knows of distcore's backends: once the program imports distcore, or names
one of them.

Until then, where another package has loaded parts of distcore for its own use, torch answers every
question as it would without distcore.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import torch_private
from .backend import register
from .base.backend_names import by_device
from .base.wrapping import around
from .mpi import torch_api as mpi
from .mpi.backend import MpiBackend
from .nccl.backend import NcclBackend
from .tcp.backend import TcpBackend

Function = Callable[..., Any]

_BACKENDS = (TcpBackend(), MpiBackend(), NcclBackend())
UNBUFFERED = (TcpBackend.name,)
"""The backends of which no send is over before its receive has taken it, be it empty (see
`transports.messages`). What others buffer is for the libraries below them to say."""
_BACKEND_AT = {"init_process_group": 0, "_new_group_with_tag": 2, "_new_process_group_helper": 3}
"""torch's functions that are given the name of a backend, and where among their arguments."""
_registered = False


def register_all() -> None:
    """Make `init_process_group` work with "tcp", "mpi" and "distcore_nccl", and have torch say so.

    Opens nothing and starts nothing; again it changes nothing.
    """
    global _registered
    stand_by()
    if _registered:
        return
    _registered = True
    for backend in _BACKENDS:
        register(backend)
    mpi.answer_for_torch()


def stand_by() -> None:
    """Have `register_all` called as soon as the program asks torch for one of the backends by a
    name that torch does not have. Whatever it asks otherwise is answered by torch alone."""
    for name, position in _BACKEND_AT.items():
        theirs = getattr(torch_private.c10d, name, None)
        if theirs is None:
            continue  # without the two private ones, init_process_group alone knows our names
        ours = around(theirs)
        adapted = theirs if torch_private.has_own_mpi() else ours(mpi.ADAPTED[name](theirs))
        torch_private.in_front(name, ours(_asking(adapted, position)))


def _asking(adapted: Function, position: int) -> Function:
    def function(*args: Any, **kwargs: Any) -> Any:
        if not _registered:
            backend = args[position] if len(args) > position else kwargs.get("backend")
            if backend is not None and _names_ours(str(backend)):
                register_all()
        return adapted(*args, **kwargs)

    return function


def _names_ours(backend: str) -> bool:
    """Whether this names a backend of ours ("tcp", "cpu:tcp,cuda:nccl") that nobody else has."""
    named = set(by_device(backend.lower()).values())
    if mpi.SHOWN in named and not torch_private.has_own_mpi():
        return True
    known = torch_private.dist.Backend.backend_list
    return any(one.name in named and one.name not in known for one in _BACKENDS)
