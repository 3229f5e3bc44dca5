"""On which of the pretended devices each tensor is, where all of them are in main memory.

The program, and the libraries that it uses, are told the devices that they asked for; torch's own
code is told the truth, for it acts by it. What a device is given is a copy there, as on a machine
that has one; the result of an operator is where its arguments are.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable
from sys import _getframe
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import planned_kernels
from .operator_calls import MarkedStorages, storage_address, tensors_of
from .probe import Private, WatchedPart, Wrapped, after, instead

CPU = -1
_CUDA = re.compile(r"cuda(:\d+)?")
_CPU = torch.device("cpu")
_HERE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2))
_OWN = tuple(
    os.path.join(folder, "")
    for folder in (
        os.path.dirname(str(torch.__file__)),
        os.path.join(_HERE, "rank"),
        os.path.join(os.path.dirname(_HERE), "distcore"),
    )
)
_OURS = os.path.join(_HERE, "rank", "")
_PARSED = "_parse_to"
"""The function by which a module reads what it is to be moved to."""
_FSDP = os.path.join(os.path.dirname(str(torch.__file__)), "distributed", "fsdp", "")
_NEWER_FSDP = os.path.join("", "_fully_shard", "")
_CALLS_BY_DEVICE = frozenset({"shard_dim_alltoall"})
"""Functions of torch's that make other calls on GPUs, which need none."""
_MOVES = frozenset({"to", "cuda", "cpu", "type_as"})
_MAKES = frozenset(
    {"tensor", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "arange", "eye"}
)
"""Functions whose results are new memory, on the CPU where nothing else is said."""


DEFAULT_DEVICES = WatchedPart(
    "planned_default_devices",
    "what is made on a default device is refused where GPUs are pretended",
    Private("torch.utils._device", "_device_constructors", (), called=True),
    Private(
        "torch.utils._device",
        "DeviceContext.__torch_function__",
        ("self", "func", "types", "args", "kwargs"),
    ),
)
SPARSE = WatchedPart(
    "planned_sparse",
    "a sparse tensor does not say which of the pretended GPUs it is on",
    Private("torch", "Tensor._values"),
)


class _Mark(NamedTuple):
    place: int
    size_bytes: int


def asked_by_torch(frame: FrameType) -> bool:
    """Whether this is torch's code, or ours: not the program, nor a library of its. The older FSDP
    is as a library: it is for GPUs alone, and does all that it does on the one that it finds."""
    file = frame.f_code.co_filename
    return file.startswith(_OWN) and not (file.startswith(_FSDP) and _NEWER_FSDP not in file)


class DevicePlaces:
    """The places of this process's tensors, on so many devices. `current` is the one that the
    program has chosen. A place is a device's index, or `CPU`."""

    def __init__(self, devices: int, current: int) -> None:
        self.devices = devices
        self.current = current
        self._marked: MarkedStorages[_Mark] = MarkedStorages()
        self._most_bytes: dict[int, int] = {}
        self._left_there: MarkedStorages[bool] = MarkedStorages()

    def of(self, tensor: Tensor) -> int:
        """Returns the place of a tensor. One that is spread over a mesh is on its devices, if
        nothing else is known: torch has made it on the CPU."""
        found = self._marked.of(_inner(tensor))
        if found is not None:
            return found.place
        return self.current if _of_mesh(tensor) == "cuda" else CPU

    def put(self, tensor: Tensor, place: int) -> None:
        """Moves a tensor to a place."""
        by_mesh = _of_mesh(tensor) == "cuda"
        tensor = _inner(tensor)
        if tensor.is_meta:
            return
        if place == CPU and not by_mesh:
            self._marked.drop(tensor)
        else:
            with contextlib.suppress(RuntimeError, NotImplementedError):
                self._marked.put(tensor, _Mark(place, tensor.untyped_storage().nbytes()))

    def is_surely_on_the_cpu(self, tensor: Tensor) -> bool:
        """The program has made it there, and nothing has moved it since. Of what torch has made, or
        has come by other ways, that is not known."""
        inner = _inner(tensor)
        return self._left_there.of(inner) is not None and self.of(tensor) == CPU

    def device(self, place: int) -> torch.device:
        return _CPU if place == CPU else torch.device("cuda", place)

    def allocated_bytes(self, place: int) -> int:
        """Returns how much the tensors take that are there now."""
        total = sum(one.size_bytes for one in self._marked.alive() if one.place == place)
        self._most_bytes[place] = max(total, self._most_bytes.get(place, 0))
        return total

    def most_allocated_bytes(self, place: int) -> int:
        """The most of them at any time when this was asked for."""
        self.allocated_bytes(place)
        return self._most_bytes[place]

    def forget_most(self, place: int) -> None:
        self._most_bytes.pop(place, None)

    def index(self, device: Any) -> int:
        """The place that a device stands for. Raises RuntimeError where there is no such device."""
        if isinstance(device, Tensor):
            return self.of(device)
        if device is None:
            return self.current
        if not isinstance(device, int):
            found = torch.device(device)
            if found.type != "cuda":
                return CPU
            chosen: int | None = found.index
            device = self.current if chosen is None else chosen
        if device >= self.devices:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal ({device} of {self.devices} in this plan)"
            )
        return int(device)

    # -- calls from Python ---------------------------------------------------------------------

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function as the program calls it, made where its tensors really are."""
        __tracebackhide__ = True
        name = getattr(func, "__name__", "")
        if func is torch.device:  # the program's own name for it
            if len(args) == 1 and type(args[0]) is int:
                return torch.device("cuda", args[0])
            return func(*args, **kwargs)
        if name == _PARSED:
            args = (*map(_device_of_number, args[:1]), *args[1:])
            if "device" in kwargs:
                kwargs = {**kwargs, "device": _device_of_number(kwargs["device"])}
            return func(*args, **kwargs)
        if name == planned_kernels.NAME and args and _of_mesh(args[0]) == "cuda":
            func = functools.partial(planned_kernels.as_on_a_device, func)
        place = self._asked(name, args, kwargs)
        given = args
        if name in ("cuda", "pin_memory") and args and isinstance(args[0], Tensor):
            func, args, kwargs = Tensor.to, (args[0], _CPU), {}
        else:
            args, kwargs = self._on_the_cpu(name, args, kwargs)
        found = func(*args, **kwargs)
        if name in _MAKES and place in (None, CPU) and type(found) is Tensor and _by_program():
            self._left_there.put(found, True)
        if place is not None:
            return self._moved(found, given, place)
        if self._marked and (not name.endswith("_") or name.endswith("__")):
            self._inherit(found, args, kwargs)
        return found

    def _asked(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """The place that a call names; None where it names none."""
        if name == "cpu":
            return CPU
        if name == "cuda":
            device = args[1] if len(args) > 1 else kwargs.get("device")
            return self.index(device)
        second = args[1] if name in _MOVES and len(args) > 1 else None
        if isinstance(second, Tensor | int) and not isinstance(second, bool):
            return self.index(second)
        other = kwargs.get("other") if name in _MOVES else None
        for one in (*args, kwargs.get("device"), other):
            is_name = type(one) is str and (one == "cpu" or _CUDA.fullmatch(one) is not None)
            if type(one) is torch.device or is_name:
                named = torch.device(one).type
                return self.index(one) if named in ("cuda", "cpu") else None
        if type(kwargs.get("device")) is int:
            return self.index(kwargs["device"])
        return self.of(other) if isinstance(other, Tensor) else None

    def _on_the_cpu(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        moved = tuple(map(_really, args))
        if name == "to" and len(moved) > 1 and type(moved[1]) is int:
            moved = (moved[0], _CPU, *moved[2:])
        given = {key: _really(one) for key, one in kwargs.items()} if kwargs else kwargs
        if type(given.get("device")) is int:
            given["device"] = _CPU
        if given.get("pin_memory") is True:
            given["pin_memory"] = False
        return moved, given

    def _moved(self, found: Any, given: Any, place: int) -> Any:
        """The result, at the place that was asked for: a copy, where it is what was given."""
        there = {storage_address(_inner(one)) for one in tensors_of(given)}
        if isinstance(found, Tensor):
            if self.of(found) != place and not _inner(found).is_meta:
                if storage_address(_inner(found)) in there:
                    found = found.clone()
                self.put(found, place)
            return found
        for one in tensors_of(found):
            if storage_address(_inner(one)) not in there:
                self.put(one, place)
        return found

    # -- operators -----------------------------------------------------------------------------

    def operator(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any]
    ) -> Any:
        """An operator, below Python: of a program that is compiled, or of torch's own code."""
        __tracebackhide__ = True
        device = kwargs.get("device")
        if type(device) is torch.device and device.type == "cuda":
            place = self.index(device)
            found = func(*args, **{**kwargs, "device": _CPU, "pin_memory": None})
            for one in tensors_of(found):
                self.put(one, place)
            return found
        found = call()
        if self._marked and getattr(func, "__name__", "").partition(".")[0] != "copy_":
            self._inherit(found, args, kwargs)
        return found

    def _inherit(self, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        place = CPU
        for one in tensors_of(found):
            if self.of(one) != CPU:
                continue
            if place == CPU:
                places = (self.of(each) for each in tensors_of((args, kwargs)))
                place = next((each for each in places if each != CPU), CPU)
                if place == CPU:
                    return
            self.put(one, place)


def _by_program() -> bool:
    """Whether it is the program, or a library of its, that makes this call."""
    frame: FrameType | None = _getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame is not None and not asked_by_torch(frame)


def _inner(tensor: Tensor) -> Tensor:
    """Returns the tensor that holds the elements of this one."""
    if tensor.layout is torch.sparse_coo and SPARSE.works:
        return Tensor._values(tensor)
    if type(tensor) is Tensor:
        return tensor
    for name in ("_local_tensor", "elem"):
        held = getattr(tensor, name, None)
        if isinstance(held, Tensor):
            return _inner(held)
    return tensor


def _of_mesh(tensor: Tensor) -> str:
    """The kind of devices of the mesh that it is spread over; "" where it is over none."""
    if type(tensor) is Tensor:
        return ""
    mesh = getattr(tensor, "device_mesh", None)
    return "" if mesh is None else _asked_for(mesh)


def _asked_for(mesh: Any) -> str:
    """The kind of devices that the program asked for."""
    whole = getattr(mesh, "_root_mesh", None) or mesh  # a part of one is made by torch
    return str(getattr(whole, "asked_for", "cuda"))


def _device_of_number(device: Any) -> Any:
    """A number alone is a GPU's."""
    return torch.device("cuda", device) if type(device) is int else device


def _really(given: Any) -> Any:
    """The device where that really is which is on this one."""
    if isinstance(given, torch.device):
        return _CPU if given.type == "cuda" else given
    return "cpu" if isinstance(given, str) and _CUDA.fullmatch(given) else given


def answer(places: DevicePlaces) -> None:
    """Makes tensors, meshes and what is loaded answer for their places."""
    kind: Any = Tensor

    def place_of(tensor: Any, frame: FrameType) -> int:
        return CPU if asked_by_torch(frame) else places.of(tensor)

    def getter(name: str, told: Callable[[int], Any]) -> Any:
        original = getattr(kind, name)

        def get(tensor: Any) -> Any:
            found = original.__get__(tensor)
            place = place_of(tensor, _getframe(1))
            return found if place == CPU else told(place)

        return property(get, doc=original.__doc__)

    kind.device = getter("device", places.device)
    kind.is_cuda = getter("is_cuda", lambda _: True)
    kind.is_cpu = getter("is_cpu", lambda _: False)
    index_of = kind.get_device

    def get_device(tensor: Any) -> Any:
        place = place_of(tensor, _getframe(1))
        return index_of(tensor) if place == CPU else place

    kind.get_device = get_device
    kind.record_stream = lambda *_, **__: None

    def load(
        original: Wrapped, file: Any, map_location: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        mapped = map_location if callable(map_location) else _CPU
        found = original(file, mapped, *args, **kwargs)
        if isinstance(map_location, str | torch.device):
            place = places.index(map_location)
            for one in tensors_of(found):
                places.put(one, place)
        return found

    instead(torch, "load", load)
    _meshes(places)
    _defaults(places)


@DEFAULT_DEVICES
def _defaults(places: DevicePlaces) -> None:
    """A default device is given to functions where we do not hear of them any more."""
    from torch.utils import _device

    home: Any = _device

    def function(
        original: Wrapped,
        self: Any,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        __tracebackhide__ = True
        given = kwargs or {}
        makes = self.device.type == "cuda" and func in home._device_constructors()
        if not makes or given.get("device") is not None:
            return original(self, func, types, args, given)
        return places.call(func, args, {**given, "device": self.device})

    instead(home.DeviceContext, "__torch_function__", function)


def _meshes(places: DevicePlaces) -> None:
    """Makes meshes of devices on the CPU: what is spread over a mesh must be on devices of its
    kind. torch gets one of the CPU, the program finds the one that it asked for."""
    from torch.distributed import device_mesh

    kind: Any = device_mesh.DeviceMesh

    def construct(
        original: Wrapped, self: Any, device_type: str, *args: Any, **kwargs: Any
    ) -> None:
        self.asked_for = device_type
        original(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    instead(kind, "__init__", construct)
    usual = kind.device_type

    def device_type(mesh: Any) -> str:
        frame = _getframe(1)
        if asked_by_torch(frame) and frame.f_code.co_name not in _CALLS_BY_DEVICE:
            return str(usual.__get__(mesh))
        return _asked_for(mesh)

    kind.device_type = property(device_type, doc=usual.__doc__)
    from torch.distributed.tensor import DTensor

    after(DTensor, "to_local", lambda made, one, *_, **__: places.put(made, places.of(one)))
