"""The changes in torch that a planned rank needs: our groups, and our stores; and work of torch's
that comes out the same on every rank, and grows with their number or is long: done once, or for one
rank only.

DTensor finds the shape of each result by making the call with fake tensors, of the whole shapes, in
every process anew: half of what a small FSDP2 program costs. FSDP2 makes a tensor for each rank
that has nothing of a parameter.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch
from torch import Tensor

from distcore.torch_private import rename_backend

from ...hook.loading import when_imported
from ...record.wording import by_device
from .planned_devices import DEFAULT_DEVICES
from .probe import (
    C10D,
    Private,
    WatchedPart,
    Wrapped,
    before,
    c10d,
    dist,
    instead,
    patch,
    without_prefixes,
)

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


_PROPAGATION = "torch.distributed.tensor._sharding_prop"
_SPECS = "torch.distributed.tensor._dtensor_spec"
_FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param"

SHAPES = WatchedPart(
    "planned_shapes",
    "each rank of a plan finds the shapes of DTensor's results by itself",
    Private(_PROPAGATION, "ShardingPropagator._propagate_tensor_meta_non_cached", ("self",)),
    Private(_SPECS, "TensorMeta", ("shape", "stride", "dtype")),
    Private(_SPECS, "DTensorSpec", ("mesh", "placements", "tensor_meta")),
)
CHUNKS = WatchedPart(
    "planned_chunks",
    "each rank of a plan makes tensors for all that have nothing of a parameter",
    Private(_FSDP2, "_chunk_with_empty", ("tensor", "num_chunks", "dim"), called=True),
)


class _OwnCall(Exception):
    """The call cannot be told in words, so that each rank makes it."""


def share_shapes(recall: Callable[[str], str | None], remember: Callable[[str, str], None]) -> None:
    """Makes all ranks take what one of them has found: `recall(call)` returns that, or None."""

    def replace(_: Any) -> None:
        if not SHAPES.works:
            return
        from torch.distributed.tensor import _sharding_prop

        home: Any = _sharding_prop.ShardingPropagator

        def propagate(usual: Wrapped, propagator: Any, op_schema: Any) -> Any:
            try:
                asked = words_of(op_schema)
            except _OwnCall:
                return usual(propagator, op_schema)
            known = recall(asked)
            if known is not None:
                return metadata(json.loads(known))
            found = usual(propagator, op_schema)
            try:
                remember(asked, json.dumps(described(found)))
            except _OwnCall:
                pass
            return found

        instead(home, "_propagate_tensor_meta_non_cached", propagate)

    when_imported(_PROPAGATION, replace)


def words_of(op_schema: Any) -> str:
    """A call of an operator on whole shapes, whatever ranks the tensors are spread over. Raises
    `_OwnCall`."""
    words = [str(op_schema.op), str(torch.get_default_dtype())]
    _tell(words, op_schema.args_schema)
    for name, one in op_schema.kwargs_schema.items():
        words.append(name)
        _tell(words, one)
    return " ".join(words)


def _tell(words: list[str], given: Any) -> None:
    kind = type(given)
    if kind is tuple or kind is list:
        words.append("(" if kind is tuple else "[")
        for one in given:
            _tell(words, one)
        words.append(")")
    elif given is None or kind in (bool, int, float, complex, str):
        words.append(repr(given))
    elif kind in (torch.dtype, torch.layout, torch.memory_format, torch.device):
        words.append(str(given))
    elif isinstance(given, _specs().DTensorSpec) and given.tensor_meta is not None:
        words += ["tensor", *map(str, described(given.tensor_meta)), given.mesh.device_type]
    else:
        raise _OwnCall


def described(found: Any) -> Any:
    """Metadata of tensors as JSON has it. Raises `_OwnCall`."""
    if found is None:
        return None
    if isinstance(found, _specs().TensorMeta):
        sizes, strides = list(found.shape), list(found.stride)
        if any(type(one) is not int for one in (*sizes, *strides)):
            raise _OwnCall  # which is a symbol, or a number that is not known
        return [sizes, strides, str(found.dtype).removeprefix("torch.")]
    if isinstance(found, tuple | list):
        return {type(found).__name__: [described(one) for one in found]}
    raise _OwnCall


def metadata(told: Any) -> Any:
    """Makes again what was `described`."""
    match told:
        case [sizes, strides, dtype]:
            made: Any = _specs().TensorMeta
            return made(torch.Size(sizes), tuple(strides), getattr(torch, dtype))
        case {"tuple": several}:
            return tuple(map(metadata, several))
        case {"list": several}:
            return list(map(metadata, several))
    return None


def _specs() -> Any:
    return sys.modules[_SPECS]


def share_empty_chunks() -> None:
    """From now on those of the other ranks that FSDP2 makes, and looks at no element of, are one
    tensor where they have none."""

    def replace(module: Any) -> None:
        if CHUNKS.works:
            module._chunk_with_empty = chunks

    when_imported(_FSDP2, replace)


def chunks(tensor: Tensor, num_chunks: int, dim: int) -> list[Tensor]:
    """Returns chunks as FSDP2 makes them: empty ones behind those that the tensor has."""
    found = list(torch.chunk(tensor, num_chunks, dim=dim))
    missing = num_chunks - len(found)
    return found + [found[0].new_empty(0)] * missing if missing > 0 else found


_OF_TORCH = ("zeros", "ones", "empty", "rand", "randn")
_OF_TENSORS = ("expand", "new_zeros", "new_ones", "new_empty", "resize_")


@DEFAULT_DEVICES
def ask_sizes(known: Callable[[Any], Any], nothing_unknown: Callable[[], bool]) -> None:
    """From now on `known` is asked about each of their arguments, in this process; not while there
    is `nothing_unknown`."""
    from torch.utils import _device

    home: Any = _device
    home._device_constructors()  # which keeps the functions as they are now

    def asking(usual: Wrapped, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if nothing_unknown():
            return usual(*args, **kwargs)
        return usual(*map(known, args), **kwargs)

    for owner, names in ((torch, _OF_TORCH), (Tensor, _OF_TENSORS)):
        for name in names:
            instead(owner, name, asking)
