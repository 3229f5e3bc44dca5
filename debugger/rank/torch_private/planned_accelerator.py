"""A fake accelerator: a program that asks for `cuda` gets answers, and its tensors are on the CPU.

Where a tensor is made on a device, or moved to one, it stays in main memory, and says that it is
there (see `planned_devices`). What torch.cuda and torch.accelerator are asked about themselves is
answered as of idle GPUs: nothing on streams ever has to be waited for.

What is captured into a graph is done, once, as the capture makes its calls once. A replay makes no
call that the program makes, on a real device neither; it writes what the capture has written, with
values that nobody has here.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from sys import _getframe
from types import FrameType
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...record.signature import DTYPES
from . import planned_kernels
from .planned_devices import CPU, DevicePlaces, answer, asked_by_torch
from .probe import Private, WatchedPart, Wrapped, c10d, instead, patch

_TYPES: dict[str, torch.dtype] = {
    f"{row.scalar}Tensor": getattr(torch, name)
    for name, row in DTYPES.items()
    if not name.startswith("complex")
}
_NAMES = {dtype: f"torch.cuda.{name}" for name, dtype in _TYPES.items()}


class _OldType(type):
    """`dtype`: of the tensors that it makes, on the device that is current."""

    places: ClassVar[DevicePlaces]
    dtype: torch.dtype

    def __call__(cls, *given: Any, device: Any = None) -> Any:
        where = "cuda" if device is None else device
        if given and not all(isinstance(one, int) for one in given):
            return torch.tensor(given[0], dtype=cls.dtype, device=where)
        return torch.empty(given or (0,), dtype=cls.dtype, device=where)

    def __instancecheck__(cls, instance: Any) -> bool:
        is_there = isinstance(instance, Tensor) and cls.places.of(instance) != CPU
        return is_there and instance.dtype is cls.dtype


def _answer_for_types(places: DevicePlaces) -> None:
    """Makes the types of tensors answer for their places in this process."""
    _OldType.places = places
    by_name = {}
    for name, dtype in _TYPES.items():
        title = f"torch.cuda.{name}"
        made = _OldType(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
        by_name[title] = made
        setattr(torch.cuda, name, made)

    def type_of(
        usual: Wrapped, tensor: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any
    ) -> Any:
        wanted = by_name.get(dtype, dtype) if isinstance(dtype, str) else dtype
        if isinstance(wanted, _OldType):
            return tensor.to("cuda", wanted.dtype, non_blocking=non_blocking)
        if wanted is None and places.of(tensor) != CPU:
            return _NAMES.get(tensor.dtype) or usual(tensor)
        return usual(tensor, dtype, non_blocking, **kwargs)

    def set_default_tensor_type(usual: Wrapped, wanted: Any) -> None:
        found = by_name.get(wanted, wanted) if isinstance(wanted, str) else wanted
        if isinstance(found, _OldType):
            torch.set_default_dtype(found.dtype)
            torch.set_default_device("cuda")
        else:
            usual(wanted)

    instead(Tensor, "type", type_of)
    instead(torch, "set_default_tensor_type", set_default_tensor_type)


_TORCH = os.path.join(os.path.dirname(str(torch.__file__)), "")
_FRONT = tuple(
    os.path.join(_TORCH, *names)
    for names in (
        ("distributed", "distributed_c10d.py"),
        ("distributed", "c10d_logger.py"),
        ("overrides.py",),
    )
)
"""The places through which calls of a program come."""


class _Idle:
    """Has nothing to do."""

    def query(self) -> bool:
        return True

    def nothing(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs


class FakeStream(_Idle):
    """A stream. As a context it is the current one within."""

    current: ClassVar[list[FakeStream]] = []
    """The current ones, the innermost last."""
    numbers: ClassVar[Iterator[int]] = itertools.count(1)
    number = 0

    def __init__(self, device: Any = None, priority: int = 0, **others: Any) -> None:
        del others
        self.device = torch.device("cuda", torch.cuda.current_device())
        if isinstance(device, torch.device) and device.index is not None:
            self.device = device
        self.priority = priority
        self.number = next(self.numbers)
        self.device_index = self.device.index
        self.device_type = 1  # as torch counts them
        self.cuda_stream = self.stream_id = 0

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream=0x0>"

    def __enter__(self) -> FakeStream:
        self.current.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        del error
        if len(self.current) > 1:
            self.current.pop()

    def record_event(self, event: Any = None) -> Any:
        return FakeEvent() if event is None else event

    def is_capturing(self) -> bool:
        return False

    wait_event = wait_stream = synchronize = _Idle.nothing


class FakeEvent(_Idle):
    """An event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.cuda_event = self.event_id = 0

    def __repr__(self) -> str:
        return "<torch.cuda.Event 0x0>"

    def elapsed_time(self, other: Any) -> float:
        """In milliseconds, of work that takes no time."""
        del other
        return 1.0

    record = wait = synchronize = _Idle.nothing


def current(*device: Any) -> FakeStream:
    """The one that the program is in."""
    del device
    if not FakeStream.current:
        first = FakeStream()
        first.number = 0
        FakeStream.current.append(first)
    return FakeStream.current[-1]


def number_at(frame: FrameType | None) -> int:
    """The number of the stream of a call that is made below this frame; -1 where torch's own code
    makes it, whose streams are those of the CPU here."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not asked_by_torch(frame):
            return FakeStream.current[-1].number if FakeStream.current else 0
        if file.startswith(_TORCH) and not file.startswith(_FRONT):
            return -1
        frame = frame.f_back
    return -1


def default(*device: Any) -> FakeStream:
    """The one that it began in."""
    current(*device)
    return FakeStream.current[0]


def choose(stream: Any) -> None:
    """Makes this stream the current one."""
    current()
    if stream is not None:
        FakeStream.current.append(stream)


def within(stream: Any) -> Any:
    """A context in which it is in this one."""
    current()
    return contextlib.nullcontext() if stream is None else stream


_pools = itertools.count(1)


class FakeGraph(_Idle):
    """A `torch.cuda.CUDAGraph`."""

    captures: ClassVar[Any]
    """Keeps what operators write, from `capture_begins()` to `capture_ends()`, which returns it;
    `replayed(written)` tells that this has been written again."""

    def __init__(self, keep_graph: bool = False) -> None:
        del keep_graph
        self._written: list[Tensor] = []
        self._pool: Any = None

    def __repr__(self) -> str:
        return f"<torch.cuda.CUDAGraph: {len(self._written)} tensors>"

    def capture_begin(self, pool: Any = None, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self._pool = pool or new_pool()
        self.captures.capture_begins()

    def capture_end(self) -> None:
        self._written = self.captures.capture_ends()

    def replay(self) -> None:
        self.captures.replayed(self._written)

    def reset(self) -> None:
        self._written = []

    def pool(self) -> Any:
        return self._pool

    instantiate = debug_dump = enable_debug_mode = register_generator_state = _Idle.nothing


def new_pool() -> tuple[int, int]:
    """A name for the memory of graphs."""
    return (0, next(_pools))


ACCELERATOR = WatchedPart(
    "planned_accelerator",
    "what names the accelerator where GPUs are pretended says that it is the CPU",
    Private("torch._C", "_get_accelerator"),
)
_MEMORY_BYTES = 80 << 30
_NCCL_VERSION = (2, 27, 5)
_NCCL_TIMEOUT = timedelta(minutes=10)
_CUDA_VERSION = "12.8"
_COUNTERS = ("utilization", "temperature", "power_draw", "clock_rate")
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
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "set_per_process_memory_fraction",
)


class FakeDevice:
    """A `torch.cuda.device`: another one is current within."""

    def __init__(self, places: DevicePlaces, device: Any) -> None:
        self.idx = places.current if device is None else places.index(device)
        self.prev_idx = -1
        self._places = places

    def __enter__(self) -> None:
        self.prev_idx = self._places.current
        if self.idx >= 0:
            self._places.current = self.idx

    def __exit__(self, *error: Any) -> None:
        del error
        self._places.current = self.prev_idx


_GENERATOR: Any = torch.Generator


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class CpuGenerator(torch.Generator, metaclass=_AnyGenerator):
    """A `torch.Generator`, whatever device it is asked for."""

    def __new__(cls, device: Any = "cpu") -> Any:
        del device
        return _GENERATOR.__new__(cls, "cpu")


def pretend(devices: int) -> DevicePlaces:
    """Answer for torch.cuda with so many devices. What it returns makes the calls of functions and
    operators on the CPU, and knows which device each tensor is said to be on."""
    places = DevicePlaces(devices, int(os.environ.get("LOCAL_RANK", "0")) % devices)
    _answer_for_accelerators(places, _answer_for_cuda(places))
    answer(places)
    if not isinstance(c10d.default_pg_nccl_timeout, timedelta):
        c10d.default_pg_nccl_timeout = _NCCL_TIMEOUT
    patch(c10d, "is_nccl_available", lambda _: lambda: True)

    def init_process_group(
        original: Wrapped,
        backend: str | None = None,
        *args: Any,
        device_id: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Binds the group to no accelerator: torch has none."""
        if device_id is not None and places.index(device_id) != CPU:
            backend = backend or "nccl"
        return original(backend, *args, **kwargs)

    instead(c10d, "init_process_group", init_process_group)
    instead(torch.nn.parallel.DistributedDataParallel, "__init__", _without_devices)
    planned_kernels.attention_on_the_cpu()
    planned_kernels.batch_norm_on_the_cpu()
    planned_kernels.random_on_the_cpu()
    own: Any = torch._C
    own._host_emptyCache = lambda *_: None  # a graph asks for it
    cuda: Any = torch.cuda
    for owner in (cuda, cuda.graphs):
        owner.CUDAGraph, owner.graph_pool_handle = FakeGraph, new_pool
    _answer_for_types(places)
    # Answers for autocast on GPUs with that of the CPU.
    kind: Any = torch
    instead(torch.autocast, "__init__", _autocast_on_the_cpu)
    is_on, its_type = kind.is_autocast_enabled, kind.get_autocast_dtype
    kind.is_autocast_enabled = lambda device="cuda": is_on("cpu" if device == "cuda" else device)
    kind.get_autocast_dtype = lambda device: its_type(
        "cpu" if device == "cuda" and is_on("cpu") else device
    )
    kind.get_autocast_gpu_dtype = lambda: kind.get_autocast_dtype("cuda")
    setattr(torch, "Generator", CpuGenerator)  # noqa: B010
    version: Any = torch.version
    version.cuda = version.cuda or _CUDA_VERSION
    return places


def count_only(devices: int) -> None:
    """Say that there are so many, to a process that only starts a rank for each."""
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: devices


def _answer_for_cuda(places: DevicePlaces) -> dict[str, Any]:
    cuda: Any = torch.cuda
    properties = types.SimpleNamespace(
        name="planned",
        total_memory=_MEMORY_BYTES,
        major=9,
        minor=0,
        multi_processor_count=132,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        gcnArchName="",
        uuid="planned",
        L2_cache_size=50 << 20,
    )

    def set_device(device: Any) -> None:
        index = places.index(device)
        if index >= 0:
            places.current = index

    def of_memory(told: Callable[[int], Any]) -> Callable[..., Any]:
        return lambda device=None, *_, **__: told(places.index(device))

    def statistics(place: int) -> dict[str, int]:
        now, most = places.allocated_bytes(place), places.most_allocated_bytes(place)
        kinds = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
        rows = {f"{kind}.all.{row}": now for kind in kinds for row in ("current", "allocated")}
        rows |= {f"{kind}.all.peak": most for kind in kinds}
        return rows | {"num_alloc_retries": 0, "num_ooms": 0}

    states = [torch.zeros(16, dtype=torch.uint8) for _ in range(places.devices)]
    allocated = of_memory(places.allocated_bytes)
    most = of_memory(places.most_allocated_bytes)
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "_lazy_init": lambda: None,
        "device_count": lambda: places.devices,
        "current_device": lambda: places.current,
        "set_device": set_device,
        "get_device_name": lambda *_: properties.name,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (properties.major, properties.minor),
        "is_bf16_supported": lambda *_, **__: True,
        "is_tf32_supported": lambda *_, **__: True,
        "mem_get_info": of_memory(lambda one: (_MEMORY_BYTES - allocated(one), _MEMORY_BYTES)),
        "memory_allocated": allocated,
        "memory_reserved": allocated,
        "device_memory_used": allocated,
        "max_memory_allocated": most,
        "max_memory_reserved": most,
        "reset_peak_memory_stats": of_memory(places.forget_most),
        "reset_max_memory_allocated": of_memory(places.forget_most),
        "memory_stats": of_memory(statistics),
        "memory_summary": lambda *_, **__: "",
        "get_rng_state": lambda *_: states[places.current].clone(),
        "get_rng_state_all": lambda: [one.clone() for one in states],
        "can_device_access_peer": lambda *_: True,
        "get_arch_list": lambda: ["sm_90"],
        "memory_snapshot": lambda *_, **__: [],
        "device_of": lambda *_: contextlib.nullcontext(),
        "initial_seed": lambda: torch.initial_seed(),
        "current_stream": current,
        "default_stream": default,
        "set_stream": choose,
        "stream": within,
        "device": functools.partial(FakeDevice, places),
        "is_current_stream_capturing": lambda: False,
        "Stream": FakeStream,
        "ExternalStream": FakeStream,
        "Event": FakeEvent,
        "default_generators": (torch.default_generator,) * places.devices,
    }
    # One function for each: torch's compiler keeps a table of them.
    answers |= {name: _answering(0) for name in _COUNTERS}
    answers |= {name: _answering(None) for name in _NOTHING}
    for name, answer_ in answers.items():
        setattr(cuda, name, answer_)
        if hasattr(cuda.memory, name):
            setattr(cuda.memory, name, answer_)
    setattr(cuda.nccl, "version", lambda: _NCCL_VERSION)  # noqa: B010
    fake = types.SimpleNamespace(**{name: _answering(0) for name in _OF_NVTX})
    setattr(cuda.nvtx, "_nvtx", fake)  # noqa: B010
    for name in ("start", "stop"):
        setattr(cuda.profiler, name, _answering(None))
    setattr(cuda.memory, "_record_memory_history", _answering(None))  # noqa: B010
    setattr(torch, "Stream", FakeStream)  # noqa: B010
    setattr(torch, "Event", FakeEvent)  # noqa: B010
    return answers


def _answer_for_accelerators(places: DevicePlaces, of_cuda: dict[str, Any]) -> None:
    """torch's own code finds none: what it would do with one is done on the CPU. Functions that
    `torch.accelerator` has by the same names as `torch.cuda` answer the same."""
    home: Any = getattr(torch, "accelerator", None)
    if home is None:
        return
    cuda: Any = torch.cuda

    def telling(torch_finds: Any, program_finds: Any) -> Callable[..., Any]:
        return lambda *_, **__: torch_finds if asked_by_torch(_getframe(1)) else program_finds

    answers = of_cuda | {
        "current_accelerator": telling(None, torch.device("cuda")),
        "is_available": telling(False, True),
        "device_count": telling(0, places.devices),
        "current_device_index": cuda.current_device,
        "current_device_idx": cuda.current_device,
        "set_device_index": cuda.set_device,
        "set_device_idx": cuda.set_device,
        "device_index": cuda.device,
        "get_memory_info": cuda.mem_get_info,
        "get_device_capability": lambda *_: {"supported_dtypes": set()},
    }
    for name, found in answers.items():
        if hasattr(home, name):
            setattr(home, name, found)
    if ACCELERATOR.works:
        own: Any = torch._C
        own._get_accelerator = lambda *_: torch.device("cuda")  # for what it names only


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _without_devices(original: Wrapped, self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
    kwargs = {**kwargs, "device_ids": None, "output_device": None}
    original(self, module, *args[2:], **kwargs)


def _autocast_on_the_cpu(
    original: Wrapped, self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any
) -> None:
    """Casts to the type that it would have on a GPU."""
    if device_type == "cuda":
        dtype = torch.get_autocast_dtype("cuda") if dtype is None else dtype
        device_type = "cpu"
    original(self, device_type, dtype, *args, **kwargs)
