"""nccl.core as distcore uses it: the same names and signatures, on CPU tensors over gloo.

Communicators connect in the background, as NCCL's do that are not blocking. What is asked of them
is done at once, on the caller's thread, but for sends, which nobody waits for; they say that it is
in progress all the same, and as NCCL's refuse the next call until they have been asked whether it
still is.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist

LIMIT = timedelta(seconds=60)
UNIQUE_ID_BYTES = 128


class NcclRedOp(IntEnum):
    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


class NcclDataType(IntEnum):
    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8E4M3 = 10
    FLOAT8E5M2 = 11


_TYPES = {
    torch.int8: NcclDataType.INT8,
    torch.uint8: NcclDataType.UINT8,
    torch.bool: NcclDataType.UINT8,
    torch.int32: NcclDataType.INT32,
    torch.uint32: NcclDataType.UINT32,
    torch.int64: NcclDataType.INT64,
    torch.uint64: NcclDataType.UINT64,
    torch.float16: NcclDataType.FLOAT16,
    torch.float32: NcclDataType.FLOAT32,
    torch.float64: NcclDataType.FLOAT64,
    torch.bfloat16: NcclDataType.BFLOAT16,
    torch.float8_e4m3fn: NcclDataType.FLOAT8E4M3,
    torch.float8_e5m2: NcclDataType.FLOAT8E5M2,
}


IN_PROGRESS = 7
POLLS = 2
"""How often a communicator that was asked for something says that it is in progress."""


class NCCLError(Exception):
    """Of nccl.bindings: what NCCL itself refuses."""


class NcclInvalid(Exception):
    def __init__(self, msg: str) -> None:
        self.msg = msg
        super().__init__(msg)


@dataclass(kw_only=True)
class NCCLConfig:
    blocking: bool | None = None
    split_share: bool | None = None
    comm_name: str | None = None


class UniqueId:
    """Here the path of a file in which the ranks find each other."""

    def __init__(self, _internal: Any = None) -> None:
        self._internal = _internal

    def __bytes__(self) -> bytes:
        return str(self._internal).encode().ljust(UNIQUE_ID_BYTES, b"\0")

    @staticmethod
    def from_bytes(b: bytes | bytearray | memoryview) -> UniqueId:
        assert len(b) == UNIQUE_ID_BYTES
        return UniqueId(bytes(b).rstrip(b"\0").decode())


def get_unique_id(empty: bool = False) -> UniqueId:
    assert not empty
    return UniqueId(Path(tempfile.gettempdir()) / f"fake-nccl-{uuid4().hex}")


def get_error_string(nccl_result: Any) -> str:
    return f"fake result {int(nccl_result)}"


@dataclass(frozen=True)
class VersionInfo:
    nccl4py: Any
    nccl_bindings: Any
    libnccl: Any


def get_version() -> VersionInfo:
    return VersionInfo("0", "0", "2.99.0 (fake)")


_group = threading.local()


def group_start() -> None:
    _group.depth = getattr(_group, "depth", 0) + 1
    if _group.depth == 1:
        _group.calls, _group.of = [], []


def group_end(*, simulate: bool = False) -> None:
    assert not simulate
    _group.depth -= 1
    if _group.depth == 0:
        calls, _group.calls = _group.calls, []
        # None of a group waits for another: all messages are under way before one is waited for.
        for wait in [call() for call in calls]:
            wait()
        for communicator in _group.of:
            communicator._polls = POLLS


def _do(communicator: Communicator, call: Callable[[], Callable[[], object]]) -> None:
    if getattr(_group, "depth", 0):
        _group.calls.append(call)
        _group.of.append(communicator)
    else:
        call()()
        communicator._polls = POLLS


class CustomRedOp:
    def __init__(self, comm: Any, scalar_ptr: Any, datatype: Any, residence: Any) -> None:
        self.scalar, self.datatype = scalar_ptr, datatype
        self.open = True

    def close(self) -> None:
        self.open = False


class Communicator:
    def __init__(self, ptr: int | None = None) -> None:
        self._gloo: Any = None
        self._error: int = 0
        self._connecting: threading.Thread | None = None
        self._splits = 0
        self._resources: list[CustomRedOp] = []
        self._polls = 0
        self._filled_in_by: Communicator | None = None
        self._children: list[Communicator] = []
        self._null = False
        self.ended = ""

    def _check_valid(self, operation: str) -> None:
        if self.ended or self._null or self._filled_in_by is not None:
            raise NcclInvalid(f"Cannot {operation}: Communicator not initialized")

    def _ready(self, operation: str) -> None:
        self._check_valid(operation)
        if self._polls or self._connecting is not None:
            raise NCCLError(f"InvalidArgument (4): {operation} before the call before it was taken")

    @classmethod
    def init(
        cls, nranks: int, rank: int, unique_id: Any, config: NCCLConfig | None = None
    ) -> Communicator:
        assert config is not None
        assert config.blocking is False
        made = cls()
        made._path = str(unique_id._internal)
        made._connect(nranks, rank, made._path)
        return made

    _path: str

    def _connect(self, size: int, rank: int, path: str) -> None:
        def connect() -> None:
            store = dist.FileStore(path, size)
            self._gloo = dist.ProcessGroupGloo(store, rank, size, LIMIT)

        self._connecting = threading.Thread(target=connect, daemon=True)
        self._connecting.start()

    def split(
        self, color: int | None = None, key: int = 0, config: NCCLConfig | None = None
    ) -> Communicator:
        self._ready("split")
        self._splits += 1
        mine = torch.tensor([-1 if color is None else color, key, self._gloo.rank()])
        every = [torch.empty_like(mine) for _ in range(self._gloo.size())]
        self._gloo.allgather([every], [mine]).wait()
        made = type(self)()
        if color is not None:
            peers = sorted(one.tolist() for one in every if int(one[0]) == color)
            made._path = f"{self._path}-{self._splits}-{color}"
            made._connect(len(peers), peers.index(mine.tolist()), made._path)
        made._null = color is None
        made._filled_in_by = self
        self._children.append(made)
        self._polls = POLLS
        return made

    def destroy(self) -> None:
        self._ready("destroy")
        self.ended = "destroyed"
        self._gloo = None

    def abort(self) -> None:
        self.ended = "aborted"
        self._gloo = None

    def finalize(self) -> None:
        self._ready("finalize")
        self._polls = POLLS

    def get_last_error(self) -> str:
        return ""

    def get_async_error(self) -> int:
        self._check_valid("get async error")
        if self._connecting is not None:
            if self._connecting.is_alive():
                return IN_PROGRESS
            self._connecting = None
        if self._polls:
            self._polls -= 1
            return IN_PROGRESS
        for child in self._children:
            child._filled_in_by = None
        self._children = []
        return self._error

    def create_pre_mul_sum(self, scalar: Any, datatype: Any = None) -> CustomRedOp:
        self._ready("create_pre_mul_sum")
        assert scalar.size == 1
        made = CustomRedOp(self, torch.from_numpy(scalar.copy()), datatype, None)
        self._resources.append(made)
        return made

    # -- what moves --------------------------------------------------------------------------------

    def _check(self, *tensors: torch.Tensor) -> None:
        self._ready("communicate")
        if len({tensor.dtype for tensor in tensors}) > 1:
            raise NcclInvalid("Dtype mismatch")
        for tensor in tensors:
            assert tensor.dim() == 1
            assert tensor.is_contiguous()
            if tensor.dtype not in _TYPES:
                raise NcclInvalid(f"Unsupported torch dtype {tensor.dtype}")

    def _gathered(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        raw = tensor.view(torch.uint8)
        every = [torch.empty_like(raw) for _ in range(self._gloo.size())]
        self._gloo.allgather([every], [raw]).wait()
        return [one.view(tensor.dtype) for one in every]

    def _reduced(self, tensor: torch.Tensor, op: Any) -> torch.Tensor:
        every = [_wide(one) for one in self._gathered(tensor)]
        if isinstance(op, CustomRedOp):
            assert op.open
            assert op.datatype is _TYPES[tensor.dtype]
            factor = _wide(op.scalar.view(tensor.dtype))
            every = [one * factor for one in every]
        total = every[0]
        for one in every[1:]:
            total = _COMBINE[op if isinstance(op, NcclRedOp) else NcclRedOp.SUM](total, one)
        if op is NcclRedOp.AVG:
            floats = total.is_floating_point()
            total = torch.div(total, len(every), rounding_mode=None if floats else "trunc")
        return total.to(tensor.dtype)

    def allreduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Any,
        *,
        stream: Any = None,
        config: Any = None,
    ) -> None:
        self._check(sendbuf, recvbuf)
        _do(self, lambda: _now(recvbuf.copy_, self._reduced(sendbuf, op)))

    def reduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Any,
        root: int | None = None,
        *,
        stream: Any = None,
        config: Any = None,
    ) -> None:
        self._check(sendbuf)

        def call() -> Callable[[], object]:
            total = self._reduced(sendbuf, op)
            return _now(recvbuf.copy_, total) if root == self._gloo.rank() else _nothing

        _do(self, call)

    def reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Any,
        *,
        stream: Any = None,
        config: Any = None,
    ) -> None:
        self._check(sendbuf, recvbuf)
        rank, count = self._gloo.rank(), recvbuf.numel()
        assert sendbuf.numel() == count * self._gloo.size()

        def call() -> Callable[[], object]:
            return _now(recvbuf.copy_, self._reduced(sendbuf, op)[rank * count :][:count])

        _do(self, call)

    def allgather(
        self, sendbuf: Any, recvbuf: Any, *, stream: Any = None, config: Any = None
    ) -> None:
        self._check(sendbuf, recvbuf)
        assert recvbuf.numel() == sendbuf.numel() * self._gloo.size()
        _do(self, lambda: _now(recvbuf.copy_, torch.cat(self._gathered(sendbuf))))

    def broadcast(
        self, sendbuf: Any, recvbuf: Any, root: int, *, stream: Any = None, config: Any = None
    ) -> None:
        self._check(recvbuf)
        _do(self, lambda: _now(recvbuf.copy_, self._gathered(recvbuf)[root]))

    def send(self, sendbuf: Any, peer: int, *, stream: Any = None) -> None:
        self._check(sendbuf)

        def call() -> Callable[[], object]:
            copy = sendbuf.view(torch.uint8).clone()
            work = self._gloo.send([copy], peer, 0)
            self._sent = [*getattr(self, "_sent", [])[-64:], (work, copy)]
            return _nothing

        _do(self, call)

    def recv(self, recvbuf: Any, peer: int, *, stream: Any = None) -> None:
        self._check(recvbuf)

        def call() -> Callable[[], object]:
            return self._gloo.recv([recvbuf.view(torch.uint8)], peer, 0).wait  # type: ignore[no-any-return]

        _do(self, call)


def _now(function: Callable[[Any], object], value: Any) -> Callable[[], object]:
    function(value)
    return _nothing


def _nothing() -> None:
    pass


_UNSIGNED = {torch.uint32: torch.int64, torch.uint64: torch.int64}


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In a dtype that torch reduces on the CPU."""
    if tensor.dtype.itemsize == 1 and tensor.is_floating_point():
        return tensor.float()
    return tensor.to(_UNSIGNED.get(tensor.dtype, tensor.dtype))


_COMBINE: dict[NcclRedOp, Callable[..., torch.Tensor]] = {
    NcclRedOp.SUM: torch.add,
    NcclRedOp.AVG: torch.add,
    NcclRedOp.PROD: torch.mul,
    NcclRedOp.MAX: torch.maximum,
    NcclRedOp.MIN: torch.minimum,
}


def names() -> Sequence[str]:
    """What distcore uses of nccl.core."""
    return (
        "Communicator",
        "NCCLConfig",
        "NcclDataType",
        "NcclRedOp",
        "UniqueId",
        "get_error_string",
        "get_unique_id",
        "get_version",
        "group_end",
        "group_start",
    )
