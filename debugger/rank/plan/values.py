"""Follows values that are not known through the program: between tensors, and into numbers."""

from __future__ import annotations

import functools
import operator
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..torch_private.planned_devices import Places
from ..torch_private.planned_graphs import FakeGraph
from ..torch_private.planned_operators import (
    Watching,
    looks_at_elements,
    tensors_of,
    watch_thread,
    written_by,
)
from ..torch_private.planned_sizes import ask_sizes
from .decisions import Decisions
from .numbers import (
    LIKELY,
    LOST,
    SIZE,
    UndecidedFloat,
    UndecidedInteger,
    known_as,
    plain,
    teach,
    unknown_in,
)
from .taint import Taint
from .to_numpy import teach_numpy

_OVERWRITES = frozenset(
    {"zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
    | {"cauchy_", "geometric_", "log_normal_", "eye_"}
)
"""Operators whose first argument keeps nothing of what it held."""
_SHAPED_BY_VALUES = frozenset(
    {"nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive"}
    | {"unique_dim_consecutive", "repeat_interleave", "bincount"}
)
_SHAPED_BY_NUMBERS = frozenset(
    {"arange", "range", "linspace", "logspace", "one_hot", "chunk", "split", "unflatten"}
)
_READS = ("item", "tolist", "__bool__", "__int__", "__index__", "__float__", "numpy", "__array__")


class Values(Watching):
    """Of this process. `devices`: those that are pretended, where the program is to have any."""

    def __init__(
        self,
        taint: Taint,
        decisions: Decisions,
        devices: Places | None = None,
    ) -> None:
        self._taint = taint
        self._decisions = decisions
        self._devices = devices
        self._captured: list[Tensor] | None = None
        self._reading = threading.local()

    def __repr__(self) -> str:
        return f"<Values: {self._taint!r}, {self._decisions!r}>"

    def follow(self) -> None:
        """From now on, in all threads that Python starts."""
        teach(self._decisions)
        if self._devices is not None:
            FakeGraph.captures = self
        if "numpy" in sys.modules:
            teach_numpy(sys.modules["numpy"])
        for name in _READS:
            self._patch_read(name)
        for name in ("__repr__", "__str__", "__format__"):
            self._patch_print(name)
        ask_sizes(_known_size)
        original = threading.Thread.run

        def run(thread: threading.Thread) -> None:
            watch_thread(self)
            original(thread)

        threading.Thread.run = run  # type: ignore[assignment, method-assign]
        watch_thread(self)

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
        self._captured += [*tensors_of(found), *written_by(func, args, kwargs)]
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
        name = func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else str(func)
        if torch.Tag.data_dependent_output in getattr(func, "tags", ()):
            return self._value(name, call())
        if not looks_at_elements(func):
            return call()
        if self._is_shaped_by_values(func, name, args):
            self._decisions.depends(f"a shape that {name} makes of values that are not known")
        found = call()
        if name in _OVERWRITES:
            target = args[0]
            if not any(taint.has(one) for one in tensors_of((args[1:], kwargs))):
                taint.drop(target)
            else:
                taint.add(target)
            return found
        for one in tensors_of(found):
            taint.add(one)
        for one in written_by(func, args, kwargs):
            taint.add(one)
        return found

    def capture_begins(self) -> None:
        self._captured = []

    def capture_ends(self) -> list[Tensor]:
        written, self._captured = self._captured or [], None
        return written

    def replayed(self, written: list[Tensor]) -> None:
        for one in written:
            self._taint.add(one)

    def _is_shaped_by_values(self, func: Any, name: str, args: tuple[Any, ...]) -> bool:
        if name == "index":
            return self._by_mask(args)
        return name in _SHAPED_BY_VALUES or torch.Tag.dynamic_output_shape in func.tags

    def _by_mask(self, args: tuple[Any, ...]) -> bool:
        return any(
            one.dtype in (torch.bool, torch.uint8) and self._taint.has(one)
            for one in tensors_of(args[1:])
        )

    def _value(self, name: str, found: Any) -> Any:
        """A number that leaves the tensors: to Python, which is told elsewhere; or within torch."""
        if getattr(self._reading, "depth", 0):
            return found
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
        found = self._with_numbers(func, name, args, kwargs)
        for one in tensors_of(found):
            if not one.is_meta:
                self._taint.add(one)
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
        """What follows from the values of a tensor by other ways than operators."""
        if name == "__deepcopy__":
            if any(self._taint.has(one) for one in tensors_of(args[:1])):
                for one in tensors_of(found):
                    self._taint.add(one)
        elif name in LIKELY and isinstance(found, Tensor) and self._is_unknown(found):
            with torch.no_grad():
                found.fill_(LIKELY[name])
            self._taint.add(found)

    def _patch_read(self, name: str) -> None:
        kind: Any = Tensor
        original = getattr(kind, name)

        @functools.wraps(original)
        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if not self._taint or not self._is_unknown(tensor):
                return original(tensor, *args, **kwargs)
            self._reading.depth = getattr(self._reading, "depth", 0) + 1
            try:
                found = original(tensor, *args, **kwargs)
            finally:
                self._reading.depth -= 1
            if self._reading.depth:
                return found
            return self._read(name, found)

        setattr(kind, name, read)

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

    def _patch_print(self, name: str) -> None:
        kind: Any = Tensor
        original = getattr(kind, name)

        @functools.wraps(original)
        def show(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            with self._decisions.unheard():
                return original(tensor, *args, **kwargs)

        setattr(kind, name, show)


def _known_size(given: Any) -> Any:
    return operator.index(given) if isinstance(given, UndecidedInteger) else given


__all__ = ["UndecidedFloat", "Values"]
