"""Work of torch's that comes out the same on every rank of a plan, and grows with their number or
is long: done once, or for one rank only.

DTensor finds the shape of each result by making the call with fake tensors, of the whole shapes, in
every process anew: half of what a small FSDP2 program costs. FSDP2 makes a tensor for each rank
that has nothing of a parameter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...hook.loading import when_imported
from .planned_devices import DEFAULT_DEVICES
from .probe import Private, WatchedPart, Wrapped, instead

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

Recall = Callable[[str], str | None]
"""Returns what a rank has found for this, or None."""
Remember = Callable[[str, str], None]


class _OwnCall(Exception):
    """The call cannot be told in words, so that each rank makes it."""


def share_shapes(recall: Recall, remember: Remember) -> None:
    """Makes all ranks take what one of them has found."""

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
