"""nccl4py, loaded when it is first needed (where it cannot be used, one sentence says why), and the
transfers that it is asked for: one record a call of it, and the one place that makes calls.

Everything that touches nccl4py's names is here, so that tests can stand in for it. Only `nccl.core`
is used: nccl4py promises no stability for the rest. Tensors are contiguous, of one dimension, on
the communicator's device, of a dtype that NCCL has.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base.call_text import dtype_name
from .elements import PREMUL_SUM, Reducing

INSTALL = "pip install 'distdebug[nccl]'"

SUCCESS, REMOTE_ERROR, IN_PROGRESS, TIMED_OUT = 0, 6, 7, 8
"""Values of ncclResult_t, which NCCL has kept since 2.13."""


@dataclass(frozen=True)
class Library:
    """`core` is the module nccl.core, or a stand-in with the same names."""

    core: Any

    def unique_id(self) -> bytes:
        """A new one, for one communicator."""
        return bytes(self.core.get_unique_id())

    def start(self, size: int, rank: int, unique_id: bytes) -> Any:
        """A communicator that connects in the background: `Member.settle` waits until it is there.

        It has no name: NCCL keeps a pointer to it, to memory that nccl4py frees at once.
        """
        return self.core.Communicator.init(
            size,
            rank,
            self.core.UniqueId.from_bytes(unique_id),
            self.core.NCCLConfig(blocking=False),
        )

    def split(self, parent: Any, color: int | None, key: int) -> Any:
        """A communicator of the ranks of `parent` that give this colour, in the order of their
        keys. Every rank of `parent` calls it; None is no colour. It is there when `parent` is
        settled."""
        return parent.split(color, key, self.core.NCCLConfig(blocking=False))

    def abort(self, communicators: Sequence[Any]) -> None:
        """Aborts all of them: none is waited for before the others are told."""
        together = len(communicators) > 1
        if together:
            self.core.group_start()
        try:
            for one in communicators:
                one.abort()
        finally:
            if together:
                self.core.group_end()

    def words(self, code: int) -> str:
        """Returns NCCL's own words for this result."""
        try:
            return str(self.core.get_error_string(code))
        except Exception:  # the library that would say it is the one that fails
            return f"ncclResult_t {code}"

    def version(self) -> str | None:
        """Returns the version of the NCCL that nccl4py has found, and where; None where it has
        found none."""
        found = self.core.get_version().libnccl
        return None if found is None else str(found)


_loaded: list[Library] = []


def load() -> Library:
    """nccl4py. Raises ImportError where it is not installed, or cannot be loaded."""
    if not _loaded:
        _loaded.append(Library(importlib.import_module("nccl.core")))
    return _loaded[0]


def unavailable(backend: str, cuda: Any = torch.cuda, version: Any = torch.version) -> str | None:
    """Why NCCL cannot be used in this process, in a sentence with the next step; None if it can."""
    if getattr(version, "cuda", None) is None:
        return (
            f"backend {backend} needs a torch that is built with CUDA, and this is "
            f"{torch.__version__}: install one of the CUDA builds from pytorch.org, or use "
            f"backend tcp"
        )
    if not cuda.is_available():
        return (
            f"backend {backend} needs an NVIDIA GPU, and torch finds none on this host: see "
            f"nvidia-smi and CUDA_VISIBLE_DEVICES, or use backend tcp"
        )
    if importlib.util.find_spec("nccl") is None:
        return f"backend {backend} needs nccl4py, which is not installed: {INSTALL}"
    try:
        found = load().version()
    except Exception as error:  # whatever a binary package raises while it is loaded
        return (
            f"backend {backend}: nccl4py cannot be loaded ({type(error).__name__}: {error}): "
            f"{INSTALL}"
        )
    if found is None:
        return (
            f"backend {backend}: nccl4py finds no libnccl.so.2: install "
            f"nvidia-nccl-cu{str(version.cuda).split('.')[0]}, or put its folder on LD_LIBRARY_PATH"
        )
    return None


@dataclass(frozen=True)
class AllReduce:
    source: Tensor
    target: Tensor
    reducing: Reducing


@dataclass(frozen=True)
class Reduce:
    """`target` is written on `root` alone."""

    source: Tensor
    target: Tensor
    root: int
    reducing: Reducing


@dataclass(frozen=True)
class ReduceScatter:
    """`source` has `size` times the elements of `target`."""

    source: Tensor
    target: Tensor
    reducing: Reducing


@dataclass(frozen=True)
class AllGather:
    """`target` has `size` times the elements of `source`."""

    source: Tensor
    target: Tensor


@dataclass(frozen=True)
class Broadcast:
    tensor: Tensor
    root: int


@dataclass(frozen=True)
class Sending:
    tensor: Tensor
    peer: int
    tag: int = 0


@dataclass(frozen=True)
class Receiving:
    tensor: Tensor
    peer: int
    tag: int = 0


Transfer = AllReduce | Reduce | ReduceScatter | AllGather | Broadcast | Sending | Receiving


def in_order(transfers: Sequence[Transfer]) -> list[Transfer]:
    """NCCL matches the messages of a group by their order alone: those with tags are put in the
    order of their tags, which is the same on both sides whatever order the program made them in."""
    messages = sorted(
        (one for one in transfers if isinstance(one, Sending | Receiving)), key=lambda one: one.tag
    )
    return [one for one in transfers if not isinstance(one, Sending | Receiving)] + messages


def issue(
    library: Library,
    communicator: Any,
    stream: int,
    transfers: Sequence[Transfer],
    calling: AbstractContextManager[object],
    settled: Callable[[], object],
) -> None:
    """Put them on the stream (a cudaStream_t), together where there are several: none of them can
    then wait for another. `calling`: held while NCCL is called; `settled` waits until it has taken
    them. Raises what nccl4py raises."""
    custom: list[Any] = []
    core = library.core
    together = len(transfers) > 1
    with calling:
        if together:
            core.group_start()
        try:
            for one in in_order(transfers) if together else transfers:
                _issue_one(core, communicator, stream, one, custom)
        finally:
            if together:
                core.group_end()  # also after an error: all later calls would be part of the group
    settled()
    with calling:
        kept = getattr(communicator, "_resources", None)
        for op in custom:
            op.close()  # NCCL has taken it down for the calls that use it
            # nccl4py's communicator keeps all its ops, closed ones too, as long as it lives.
            if isinstance(kept, list) and op in kept:
                kept.remove(op)


def _issue_one(core: Any, comm: Any, stream: int, transfer: Transfer, custom: list[Any]) -> None:
    match transfer:
        case AllReduce(source, target, reducing):
            comm.allreduce(source, target, _op(core, comm, reducing, custom), stream=stream)
        case Reduce(source, target, root, reducing):
            comm.reduce(source, target, _op(core, comm, reducing, custom), root, stream=stream)
        case ReduceScatter(source, target, reducing):
            comm.reduce_scatter(source, target, _op(core, comm, reducing, custom), stream=stream)
        case AllGather(source, target):
            comm.allgather(source, target, stream=stream)
        case Broadcast(tensor, root):
            comm.broadcast(tensor, tensor, root, stream=stream)
        case Sending(tensor, peer):
            comm.send(tensor, peer, stream=stream)
        case Receiving(tensor, peer):
            comm.recv(tensor, peer, stream=stream)


def _op(core: Any, comm: Any, reducing: Reducing, custom: list[Any]) -> Any:
    if reducing.op != PREMUL_SUM:
        return core.NcclRedOp[reducing.op]
    dtype = reducing.computed_as or reducing.seen_as
    datatype = nccl_type(core, dtype)
    # As bits: nccl4py would make bfloat16 and float8 of a number only with one more package.
    bits = torch.tensor([reducing.factor], dtype=dtype, device="cpu").view(_BITS_OF[dtype.itemsize])
    op = comm.create_pre_mul_sum(bits.numpy(), datatype)
    custom.append(op)
    return op


_BITS_OF = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_FLOAT8 = {torch.float8_e4m3fn: "FLOAT8E4M3", torch.float8_e5m2: "FLOAT8E5M2"}
"""NCCL's own names; all others are torch's."""


def nccl_type(core: Any, dtype: torch.dtype) -> Any:
    """NCCL's name of a dtype that it has."""
    return core.NcclDataType[_FLOAT8.get(dtype) or dtype_name(dtype).upper()]
