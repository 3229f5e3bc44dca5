"""The changes in torch that a planned rank needs: our groups, and our stores."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch

from distcore.torch_private import rename_backend

from ...record.snapshot import by_device
from .loopback import without_prefixes
from .probe import C10D, Private, WatchedPart, Wrapped, before, c10d, dist, instead, patch

MakeStore = Callable[[str], Any]


SENT_OBJECTS = WatchedPart(
    "sent_objects",
    "a plan takes for known what objects bring of other ranks that those do not know",
    Private(C10D, "_pickler"),
)


@SENT_OBJECTS
def write_sent_objects_with(pickler: type) -> None:
    """Has objects for other ranks written with this."""
    c10d._pickler = pickler


def make_groups_on(backend: str) -> None:
    """From now on every group is made on this backend of ours, and answers by the name that the
    program gave. Nobody waits for the other ranks of a new group."""

    def create(original: Wrapped, *args: Any, **kwargs: Any) -> Any:
        given = list(args)
        if len(given) > 3:
            asked, given[3] = given[3], c10d.Backend(backend)
        else:
            asked = kwargs.get("backend")
            kwargs = {**kwargs, "backend": c10d.Backend(backend)}
        # The last is an accelerator's, which this process need not have.
        for name in ("backend_options", "pg_options", "device_id"):
            if name in kwargs:
                kwargs[name] = None
        given[6:7] = [None] * len(given[6:7])  # the options by their place
        created = original(*given, **kwargs)
        group = created[0]
        if isinstance(group, c10d.ProcessGroup):
            _rename(group, backend, str(asked))
        return created

    instead(c10d, "_new_process_group_helper", create)
    patch(c10d, "_store_based_barrier", lambda _: lambda *_args, **_kwargs: None)


def _rename(group: Any, backend: str, asked: str) -> None:
    """Makes torch say of the group the names that the program gave."""
    shown = asked
    if asked in ("undefined", "None", ""):
        shown = "nccl" if torch.cuda.is_available() else "gloo"
    config = shown if ":" in shown else f"cpu:{shown},cuda:{shown}"
    world = c10d._world
    name = by_device(config).get("cpu", shown)
    if ":" not in shown:
        name = shown
    rename_backend(group, backend, name)
    if group in world.pg_backend_config:
        world.pg_backend_config[group] = config


def make_stores(make: MakeStore) -> None:
    """From now on every store that the program makes, or meets the others in, is what `make` gives
    for its address."""

    def meet(
        original: Wrapped, url: str, rank: int = -1, world_size: int = -1, **kwargs: Any
    ) -> Any:
        found_rank, found_size = _whoami(url, rank, world_size)
        if min(found_rank, found_size) < 0:
            yield from original(url, rank, world_size, **kwargs)
            return
        yield make(_address(url)), found_rank, found_size

    instead(c10d, "rendezvous", meet)
    for name in ("TCPStore", "FileStore", "HashStore"):
        _replace_store(name, make)


def _whoami(url: str, rank: int, world_size: int) -> tuple[int, int]:
    asked = parse_qs(urlparse(url).query)
    if rank < 0:
        rank = int(asked.get("rank", [os.environ.get("RANK", "-1")])[0])
    if world_size < 0:
        world_size = int(asked.get("world_size", [os.environ.get("WORLD_SIZE", "-1")])[0])
    return rank, world_size


def _address(url: str) -> str:
    found = urlparse(url)
    if found.scheme == "env":
        return f"tcp:{os.environ.get('MASTER_PORT', '')}"
    if found.scheme == "tcp":
        return f"tcp:{found.port}"
    return f"{found.scheme}:{found.path}"


def store_name(store: Any) -> str:
    """The address of a planned store, whatever prefixes stand before it; "" of another one."""
    return str(getattr(without_prefixes(store), "address", ""))


def _replace_store(name: str, make: MakeStore) -> None:
    theirs = getattr(dist, name, None)
    if theirs is None:
        return
    own = 0

    def planned(*args: Any, **kwargs: Any) -> Any:
        nonlocal own
        if name == "HashStore":
            own += 1
            where = f"own:{own}"
        elif name == "FileStore":
            where = f"file:{args[0] if args else kwargs.get('file_name', '')}"
        else:
            where = f"tcp:{args[1] if len(args) > 1 else kwargs.get('port', 0)}"
        store = make(where)
        timeout = kwargs.get("timeout")
        if timeout is not None:
            store.set_timeout(timeout)
        return store

    class Planned(type):
        """`isinstance` and calls, as of the class that it stands for."""

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return planned(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            kind: Any = theirs
            return isinstance(instance, kind)

    stand_in = Planned(name, (), {"__doc__": theirs.__doc__})
    for module in (dist, c10d):
        if getattr(module, name, None) is theirs:
            setattr(module, name, stand_in)


def on_awaited_futures(calls: Callable[[], int], over: Callable[[int], None]) -> None:
    """Hear of what waits for futures where nobody else sees it: `over(n)` says that those of calls
    with the number n and later ones were waited for. DDP's reducer waits for its calls within the
    backward pass that has made them; `calls()` is how many were made so far."""
    import torch.autograd
    import torch.autograd.graph
    import torch.futures

    def backward(original: Wrapped, *args: Any, **kwargs: Any) -> Any:
        first = calls()
        found = original(*args, **kwargs)
        over(first)
        return found

    for module in (torch.autograd, torch.autograd.graph):
        instead(module, "_engine_run_backward", backward)
    before(torch.futures.Future, "wait", lambda _: over(0))


def on_world(check: Callable[[int, int], None]) -> None:
    """`check` is told rank and size whenever this process makes the group of all."""

    def create(size: int, rank: int, ranks: Any, *_: Any, **__: Any) -> None:
        if not ranks:
            check(rank, size)

    before(c10d, "_new_process_group_helper", create)


def on_started_processes(tell: Callable[..., None]) -> None:
    """`tell` is called before torch.multiprocessing starts processes, which are ranks."""
    for owner in (sys.modules["torch.multiprocessing.spawn"], torch.multiprocessing):
        before(owner, "start_processes", tell)


def refuse_groups(tell: Callable[..., None]) -> list[Callable[[], None]]:
    """`tell` is called before this process makes a group or a store; returns what takes that
    back."""
    makers = [(c10d, "_new_process_group_helper"), (c10d, "rendezvous")]
    makers += [(dist.TCPStore, "__init__"), (dist.FileStore, "__init__")]
    return [before(owner, name, tell) for owner, name in makers]


def functions() -> dict[int, tuple[Any, str]]:
    """Returns what torch's modules hold now, by identity: `renew` finds what has been replaced
    since."""
    return {
        id(value): (module, name)
        for title, module in list(sys.modules.items())
        if title.partition(".")[0] == "torch" and isinstance(module, type(sys))
        for name, value in list(vars(module).items())
        if callable(value)
    }


def renew(before: Mapping[int, tuple[Any, str]], modules: Any) -> None:
    """Names that a program has taken from torch before its functions were replaced."""
    for module in modules:
        for name, value in list(vars(module).items()):
            owner, known_as = before.get(id(value), (None, ""))
            now = getattr(owner, known_as, value)
            if owner is not None and now is not value:
                setattr(module, name, now)
