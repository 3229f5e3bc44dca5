"""The names that a program writes for a backend (one, or one for each kind of device), and when
torch.distributed knows of distcore's: once the program imports distcore, or names one of them.

Until then, where another package has loaded parts of distcore for its own use, torch answers every
question as it would without distcore, of which no engine and no backend is loaded: to import them
takes a tenth of what torch takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from . import torch_private
from .base.wrapping import around

registered: dict[str, Any] = {}
"""The backends that torch has from us, by name."""
adapters: dict[str, Callable[[Any], Any]] = {}
"""By torch's function: what makes one of it that takes our names, too."""
_BACKEND_AT = {"init_process_group": 0, "_new_group_with_tag": 2, "_new_process_group_helper": 3}
"""torch's functions that are given the name of a backend, and where among their arguments."""
Register = Callable[[set[str]], None]
"""Loads the backends, and registers them if one of these names is ours."""


def stand_by(register: Register) -> None:
    """Have the backends registered as soon as the program asks torch for one of them by a name that
    torch does not have. Whatever it asks otherwise is answered by torch alone."""
    for name, position in _BACKEND_AT.items():
        theirs = getattr(torch_private.c10d, name, None)
        if theirs is not None:  # without the private ones, init_process_group alone knows our names
            torch_private.in_front(name, _asking(name, theirs, position, register))


def _asking(
    name: str, theirs: Callable[..., Any], position: int, register: Register
) -> Callable[..., Any]:
    ours = around(theirs)

    @cache
    def adapted() -> Callable[..., Any]:
        make = adapters.get(name)
        return theirs if make is None else ours(make(theirs))

    @ours
    def function(*args: Any, **kwargs: Any) -> Any:
        if "tcp" not in registered:
            backend = args[position] if len(args) > position else kwargs.get("backend")
            unknown = _unknown(str(backend or ""))
            if unknown:
                register(unknown)
        return (adapted() if "tcp" in registered else theirs)(*args, **kwargs)

    return function


def _unknown(backend: str) -> set[str]:
    """Returns the names in this ("tcp", "cpu:tcp,cuda:nccl") that torch has no backend for."""
    torchs = {"", *torch_private.dist.Backend.backend_list}
    if not torch_private.has_own_mpi():
        torchs -= {"mpi"}
    return set(by_device(backend.lower()).values()) - torchs


def by_device(text: str) -> dict[str, str]:
    """{"cpu": "tcp", "cuda": "nccl"} for "cpu:tcp,cuda:nccl"; {"": "tcp"} for "tcp"."""
    return dict(_pairs(text))


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Returns the backend's names with other ones for those in `names`, whose keys are in lower
    case."""
    return ",".join(
        f"{device}:{names.get(name.lower(), name)}" if device else names.get(name.lower(), name)
        for device, name in _pairs(text)
    )


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        device, _, name = part.strip().rpartition(":")
        yield device, name
