"""A fake accelerator: a program that asks for `cuda` gets answers, and its tensors are on the CPU.

Devices keep the names that the program gives them; where a tensor is made on one, or moved to one,
it stays in main memory. What torch.cuda is asked about itself is answered as of idle GPUs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import planned_batch_norm
from .modules import Wrapped, dist
from .probe import patch

Adapt = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
_CUDA = re.compile(r"cuda(:\d+)?")
_CPU = torch.device("cpu")
_MEMORY_BYTES = 80 << 30
_NCCL_VERSION = (2, 27, 5)
_CUDA_VERSION = "12.8"
_COUNTERS = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "utilization",
    "temperature",
    "power_draw",
    "clock_rate",
    "device_memory_used",
)
_OF_NVTX = (
    "rangePushA",
    "rangePop",
    "rangeStartA",
    "rangeEnd",
    "markA",
    "deviceRangeStart",
    "deviceRangeEnd",
)
_NOTHING = (
    "synchronize",
    "empty_cache",
    "init",
    "ipc_collect",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "set_per_process_memory_fraction",
)


def is_asked_for(script: str) -> bool:
    """Whether this program names NCCL."""
    try:
        with open(script, "rb") as file:
            return b"nccl" in file.read(1 << 20).lower()
    except OSError:
        return False


class FakeStream:
    """A stream, or an event: nothing on it ever has to be waited for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        self.cuda_stream = self.stream_id = self.priority = 0

    def __repr__(self) -> str:
        return "<FakeStream>"

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *error: Any) -> None:
        del error

    def record_event(self, event: Any = None) -> Any:
        return event or FakeStream()

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        del other
        return 1.0

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    record = wait = wait_event = wait_stream = synchronize = _nothing


class FakeDevice(contextlib.nullcontext[None]):
    """A `torch.cuda.device`: which one is current changes nothing here."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self.idx = _index(device)


_GENERATOR: Any = torch.Generator


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class CpuGenerator(torch.Generator, metaclass=_AnyGenerator):
    """A `torch.Generator`, whatever device it is asked for."""

    def __new__(cls, device: Any = "cpu") -> Any:
        del device
        return _GENERATOR.__new__(cls, "cpu")


def pretend(devices: int) -> Adapt:
    """Answer for torch.cuda with so many devices. What it returns turns a function's call into one
    on the CPU: (function, args, kwargs) -> the same."""
    cuda: Any = torch.cuda
    current = [int(os.environ.get("LOCAL_RANK", "0")) % devices]
    properties = types.SimpleNamespace(
        name="planned", total_memory=_MEMORY_BYTES, major=9, minor=0, multi_processor_count=132
    )

    def set_device(device: Any) -> None:
        index = _index(device)
        if index >= devices:
            raise RuntimeError(f"CUDA error: invalid device ordinal ({index} of {devices})")
        if index >= 0:
            current[0] = index

    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "device_count": lambda: devices,
        "current_device": lambda: current[0],
        "set_device": set_device,
        "get_device_name": lambda *_: properties.name,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (properties.major, properties.minor),
        "is_bf16_supported": lambda *_, **__: True,
        "mem_get_info": lambda *_: (_MEMORY_BYTES, _MEMORY_BYTES),
        "memory_stats": _answering({}),
        "memory_summary": lambda *_, **__: "",
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)] * devices,
        "can_device_access_peer": lambda *_: True,
        "get_arch_list": lambda: ["sm_90"],
        "memory_snapshot": lambda *_, **__: [],
        "device_of": lambda *_: contextlib.nullcontext(),
        "initial_seed": lambda: torch.initial_seed(),
        "current_stream": lambda *_: FakeStream(),
        "default_stream": lambda *_: FakeStream(),
        "stream": lambda *_: contextlib.nullcontext(),
        "device": FakeDevice,
        "is_current_stream_capturing": lambda: False,
        "Stream": FakeStream,
        "Event": FakeStream,
    }
    # One function for each: torch's compiler keeps a table of them.
    answers |= {name: _answering(0) for name in _COUNTERS}
    answers |= {name: _answering(None) for name in _NOTHING}
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    patch(dist.distributed_c10d, "is_nccl_available", lambda _: lambda: True)
    patch(dist.distributed_c10d, "init_process_group", _without_its_device(devices))
    patch(torch.nn.parallel.DistributedDataParallel, "__init__", _without_devices)
    from torch.distributed import device_mesh

    patch(device_mesh.DeviceMesh, "__init__", _mesh_on_the_cpu)
    planned_batch_norm.on_the_cpu()
    patch(torch, "load", _loading_to_the_cpu)
    patch(torch.autocast, "__init__", _autocast_on_the_cpu)
    setattr(cuda.nccl, "version", lambda: _NCCL_VERSION)  # noqa: B010
    fake = types.SimpleNamespace(**{name: _answering(0) for name in _OF_NVTX})
    setattr(cuda.nvtx, "_nvtx", fake)  # noqa: B010
    for name in ("start", "stop"):
        setattr(cuda.profiler, name, _answering(None))
    setattr(cuda.memory, "_record_memory_history", _answering(None))  # noqa: B010
    setattr(torch, "Generator", CpuGenerator)  # noqa: B010
    version: Any = torch.version
    version.cuda = version.cuda or _CUDA_VERSION
    return _on_the_cpu


def _loading_to_the_cpu(original: Wrapped) -> Wrapped:
    def load(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        mapped = map_location if callable(map_location) else _CPU
        return original(file, mapped, *args, **kwargs)

    return load


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    index: int | None = torch.device(device).index
    return -1 if index is None else index


def _without_its_device(devices: int) -> Callable[[Wrapped], Wrapped]:
    """torch has no accelerator that a group could be bound to."""

    def make(original: Wrapped) -> Wrapped:
        def init_process_group(
            backend: str | None = None, *args: Any, device_id: Any = None, **kwargs: Any
        ) -> Any:
            if device_id is not None:
                if not 0 <= _index(device_id) < devices:
                    raise ValueError(f"device_id {device_id} is none of {devices} devices")
                backend = backend or "nccl"
            return original(backend, *args, **kwargs)

        return init_process_group

    return make


def _without_devices(original: Wrapped) -> Wrapped:
    def construct(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = {**kwargs, "device_ids": None, "output_device": None}
        original(self, module, *args[2:], **kwargs)

    return construct


def _autocast_on_the_cpu(original: Wrapped) -> Wrapped:
    """To the type that it would have on a GPU."""

    def construct(
        self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda":
            dtype = torch.get_autocast_dtype("cuda") if dtype is None else dtype
            device_type = "cpu"
        original(self, device_type, dtype, *args, **kwargs)

    return construct


def _mesh_on_the_cpu(original: Wrapped) -> Wrapped:
    """What is spread over a mesh must be on devices of its kind."""

    def construct(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return construct


def _on_the_cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func is torch.device:
        return func, args, kwargs  # the program's own name for it
    name = getattr(func, "__name__", "")
    if name in ("cuda", "pin_memory") and args and isinstance(args[0], Tensor):
        return Tensor.to, (args[0], _CPU), {}
    moved = tuple(map(_moved, args))
    if name == "to" and len(moved) > 1 and type(moved[1]) is int:
        moved = (moved[0], _CPU, *moved[2:])
    given = {key: _moved(one) for key, one in kwargs.items()} if kwargs else kwargs
    if type(given.get("device")) is int:
        given["device"] = _CPU
    if given.get("pin_memory") is True:
        given["pin_memory"] = False
    return func, moved, given


@functools.singledispatch
def _moved(given: Any) -> Any:
    return given


@_moved.register
def _(given: torch.device) -> Any:
    return _CPU if given.type == "cuda" else given


@_moved.register
def _(given: str) -> Any:
    return "cpu" if _CUDA.fullmatch(given) else given
