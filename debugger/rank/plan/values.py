"""Follows values that are not known through the program: between tensors, into numbers, and in the
objects that ranks send each other.

A pickle for a file holds the numbers that stand in, as any program's; one for another rank of the
plan says of which of them nothing is known, and is longer by so much.
"""

from __future__ import annotations

import functools
import json
import operator
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from distcore.base.buffers import bytes_of

from ..torch_private.operator_calls import (
    BELOW_OTHERS,
    Operator,
    before_backward,
    operator_of,
    tensors_of,
    watch_thread,
)
from ..torch_private.planned_accelerator import FakeGraph
from ..torch_private.planned_devices import DevicePlaces
from ..torch_private.planning import ask_sizes
from ..torch_private.probe import instead
from ..torch_private.probe import within as inside
from .numbers import (
    LIKELY,
    LOST,
    SIZE,
    Decisions,
    UndecidedInteger,
    UndecidedNumber,
    known_as,
    plain,
    teach,
    teach_numpy,
    unknown_in,
)
from .taint import OWN, OperatorCall, Taint, content, mixed, within


def pickler_for_ranks(taint: Taint) -> type[pickle.Pickler]:
    """The pickler by which torch is to write the objects that this process sends to other ranks."""
    Taint.of_process = taint

    class Pickler(pickle.Pickler):
        def reducer_override(self, given: Any) -> Any:
            if isinstance(given, UndecidedNumber):
                return unknown_number, (plain(given),)
            if isinstance(given, Tensor) and taint and taint.has(given):
                tensor: Any = given
                function, arguments, *state = tensor.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
                return unknown_tensor, (function, arguments), *state
            return NotImplemented

    return Pickler


def unknown_number(value: float) -> Any:
    """The number as it arrives."""
    Taint.of_process.begin()
    return known_as(value, UndecidedNumber.of_process)


def unknown_tensor(function: Any, arguments: tuple[Any, ...]) -> Tensor:
    """The tensor as it arrives."""
    found: Tensor = function(*arguments)
    Taint.of_process.add(found)
    return found


_SHAPED_BY_VALUES = frozenset(
    {"nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive"}
    | {"unique_dim_consecutive", "repeat_interleave", "bincount"}
)
_SHAPED_BY_NUMBERS = frozenset(
    {"arange", "range", "linspace", "logspace", "one_hot", "chunk", "split", "unflatten"}
)
_AGREED_BYTES = 1 << 16
"""The most bytes of unknown values that are the same, when read, on ranks that have made them of
the same."""
_READS = ("item", "tolist", "__bool__", "__int__", "__index__", "__float__", "numpy", "__array__")


Agree = Callable[[str, str, bytes], bytes]
"""Returns the value given first for this name, by whichever rank (see `Exchange.agreed`)."""


@dataclass(eq=False)
class Values:
    """The values of this process. `devices`: those that are pretended, where the program is to have
    any."""

    _taint: Taint
    _decisions: Decisions
    _agree: Agree
    _devices: DevicePlaces | None
    _captured: list[Tensor] | None = None
    _reading: threading.local = field(default_factory=threading.local)

    def follow(self) -> None:
        """From now on, in all threads that Python starts. As long as everything is known there is
        nothing to follow, which makes the building of a model five times as fast."""
        teach(self._decisions)
        if self._devices is not None:
            FakeGraph.captures = self
        if "numpy" in sys.modules:
            teach_numpy(sys.modules["numpy"])
        for name in _READS:
            self._patch_read(name)
        for name in ("__repr__", "__str__", "__format__"):
            inside(Tensor, name, lambda *_, **__: self._decisions.unheard())
        taint = self._taint
        ask_sizes(
            lambda size: operator.index(size) if isinstance(size, UndecidedInteger) else size,
            lambda: taint.before_first is not None,
        )
        taint.before_first = functools.partial(watch_thread, self)
        if self._devices is not None or not BELOW_OTHERS.works:
            taint.begin()
        else:
            before_backward(taint.begin)
        original = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            taint.begin()  # for what becomes unknown in that thread, and is looked at in this one
            usual = thread.run

            def run() -> None:
                watch_thread(self)
                usual()

            thread.run = run  # type: ignore[method-assign]
            original(thread)

        threading.Thread.start = start  # type: ignore[assignment, method-assign]

    # -- operators -----------------------------------------------------------------------------

    def operator(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any]
    ) -> Any:
        __tracebackhide__ = True
        if self._devices is not None:
            call = functools.partial(self._devices.operator, func, args, kwargs, call)
        if self._captured is None:
            return self._followed(func, args, kwargs, call)
        found = self._followed(func, args, kwargs, call)
        self._captured += [*tensors_of(found), *operator_of(func).written_in(args, kwargs)]
        return found

    def _followed(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any]
    ) -> Any:
        __tracebackhide__ = True
        taint = self._taint
        if not taint:
            return call()
        unknown = [one for one in tensors_of((args, kwargs)) if taint.has(one)]
        if not unknown:
            return call()
        known = operator_of(func)
        if known.gives_number:
            if getattr(self._reading, "depth", 0):
                return call()  # of which it is told elsewhere
            origin = OperatorCall(known, args, kwargs, taint.origin).whole()
            return self._value(known.name, self._alike(origin, call()))
        if known.written is None:
            return call()
        if self._is_shaped_by_values(known, args):
            for one in unknown:
                self._be_alike(one)
            self._decisions.depends(f"a shape that {known.name} makes of values that are not known")
        if known.overwrites and not any(taint.has(one) for one in tensors_of((args[1:], kwargs))):
            found = call()
            for one in tensors_of(args[:1]):
                taint.drop(one)
            return found
        origins = OperatorCall(known, args, kwargs, taint.origin)
        found = call()
        for one, origin in origins.of(found):
            taint.add(one, origin)
        return found

    def _alike(self, origin: bytes, found: Any) -> Any:
        """A number that came of values which are not known: the same on all ranks that made it of
        the same."""
        if origin == OWN or not isinstance(found, bool | int | float):
            return found
        said = self._agree(origin.hex(), type(found).__name__, json.dumps(found).encode())
        return json.loads(said)

    def _be_alike(self, tensor: Tensor) -> None:
        """A small tensor is about to be looked at: it holds what all have that made it of the
        same."""
        origin = self._taint.origin(tensor)
        plain_one = tensor.layout is torch.strided and tensor.is_contiguous()
        if not origin or tensor.is_meta or not plain_one or not 0 < tensor.nbytes <= _AGREED_BYTES:
            return
        held = bytes_of(tensor)
        said = self._agree(origin.hex(), within(tensor), bytes(held))
        if len(said) == len(held):
            held[:] = said

    def capture_begins(self) -> None:
        self._captured = []

    def capture_ends(self) -> list[Tensor]:
        written, self._captured = self._captured or [], None
        return written

    def replayed(self, written: list[Tensor]) -> None:
        for one in written:
            self._taint.add(one)

    def _is_shaped_by_values(self, known: Operator, args: tuple[Any, ...]) -> bool:
        if known.name == "index":
            return any(
                one.dtype in (torch.bool, torch.uint8) and self._taint.has(one)
                for one in tensors_of(args[1:])
            )
        return known.name in _SHAPED_BY_VALUES or known.shapes

    def _value(self, name: str, found: Any) -> Any:
        """A number that leaves the tensors, within torch."""
        if isinstance(found, bool):
            return self._decisions.condition(found, "a comparison of values that are not known")
        self._decisions.depends(f"{name} of a value that is not known, within torch")
        return found

    def communication(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any]
    ) -> Any:
        """Its results are marked by the group; the copies that it makes of its arguments are not
        seen, so while it runs all is unknown where one of them is."""
        __tracebackhide__ = True
        if self._devices is not None:
            call = functools.partial(self._devices.operator, func, args, kwargs, call)
        if not any(self._taint.has(one) for one in tensors_of((args, kwargs))):
            return call()
        with self._taint.everywhere():
            return call()

    # -- Python --------------------------------------------------------------------------------

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        __tracebackhide__ = True
        name = getattr(func, "__name__", "")
        decisions = unknown_in(args) or (unknown_in(kwargs) if kwargs else None)
        if decisions is None:
            found = self._call(func, args, kwargs)
            if self._taint:
                self._beside_operators(name, found, args)
            return found
        alone = not any(self._taint.has(one) for one in tensors_of((args, kwargs)))
        found = self._with_numbers(func, name, args, kwargs)
        for one in tensors_of(found):
            if not one.is_meta:
                dense = one.layout is torch.strided and type(one) in (Tensor, Parameter)
                # The numbers are the same on all ranks that made them of the same.
                self._taint.add(one, mixed(content(one)) if alone and dense else OWN)
        if name.endswith("_") or name == "__setitem__" or name.startswith("__i"):
            for one in tensors_of(args[:1]):
                self._taint.add(one)
        return found

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        __tracebackhide__ = True
        devices = self._devices
        return func(*args, **kwargs) if devices is None else devices.call(func, args, kwargs)

    def _with_numbers(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call that is given numbers which are not known. A size or an index asks them, and they
        tell; where torch wants a number it wants one of Python's."""
        __tracebackhide__ = True
        if name in _SHAPED_BY_NUMBERS:
            self._decisions.depends(SIZE)
        else:
            try:
                found = self._call(func, args, kwargs)
                if found is not NotImplemented:
                    return found
            except (TypeError, RuntimeError):
                pass  # which is the program's own, if it comes again
        known = {key: plain(one) for key, one in kwargs.items()}
        return self._call(func, tuple(map(plain, args)), known)

    def _beside_operators(self, name: str, found: Any, args: tuple[Any, ...]) -> None:
        """Follows the values of a tensor that go by other ways than operators."""
        if name == "__deepcopy__":
            for given, one in zip(tensors_of(args[:1]), tensors_of(found), strict=False):
                if self._taint.has(given):
                    self._taint.add(one, self._taint.origin(given) or OWN)
        elif name in LIKELY and isinstance(found, Tensor) and self._is_unknown(found):
            origin = self._taint.origin(found) or OWN
            with torch.no_grad():
                found.fill_(LIKELY[name])
            self._taint.add(found, origin)

    def _patch_read(self, name: str) -> None:
        def read(original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if not self._taint or not self._is_unknown(tensor):
                return original(tensor, *args, **kwargs)
            if not getattr(self._reading, "depth", 0):
                self._be_alike(getattr(tensor, "_local_tensor", tensor))
            self._reading.depth = getattr(self._reading, "depth", 0) + 1
            try:
                found = original(tensor, *args, **kwargs)
            finally:
                self._reading.depth -= 1
            if self._reading.depth:
                return found
            return self._read(name, found)

        instead(Tensor, name, read)

    def _is_unknown(self, tensor: Any) -> bool:
        local = getattr(tensor, "_local_tensor", None)
        try:
            return self._taint.has(tensor if local is None else local)
        except Exception:
            return False

    def _read(self, name: str, found: Any) -> Any:
        decisions = self._decisions
        match name:
            case "item" | "tolist":
                return known_as(found, decisions)
            case "__bool__":
                return decisions.condition(found, "a condition on a tensor that is not known")
            case "__int__" | "__index__":
                decisions.depends("an integer made of a tensor whose value is not known")
                return found
            case "__float__":
                decisions.depends("float() of a tensor whose value is not known: use item()")
                return found
        decisions.depends(LOST)
        return found
