"""torch's operators as they are called on one thread: what each reads and writes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .modules import Wrapped
from .probe import Part, Private, patch

_MODES = "torch.utils._python_dispatch"
OPERATOR_CALLS = Part(
    "reads_in_flight",
    "buffers that are read between an asynchronous call and its wait() are not noticed",
    Private(_MODES, "TorchDispatchMode.__torch_dispatch__", ("self", "func", "types", "args")),
    Private(_MODES, "TorchDispatchMode.supports_higher_order_operators"),
    Private(_MODES, "TorchDispatchMode._should_skip_dynamo", (), called=True),
    Private("torch._C", "_len_torch_dispatch_stack", (), called=True),
    Private("torch._C", "_get_schema"),
)
_OF_METADATA = frozenset({"is_pinned", "record_stream", "set_"})
"""Operators that look at no element of the tensors that they are given; and those that make another
one like it, which `_looks_at_metadata` knows by their names."""

Look = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


class Unnoticed:
    """Mixed into a mode of ours: torch and the compiler go on as without it."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this, the first operator would load the compiler. It leaves us alone."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile works below the mode, too."""
        return True


def calls_with(look: Look) -> Any:
    """A mode, for one thread: while it is entered, `look(operator, args, kwargs)` comes before each
    operator. None where torch cannot."""
    return _mode_class()(look) if OPERATOR_CALLS.works else None


@functools.cache
def on_reads_past_operators(look: Callable[[Any], None]) -> None:
    """From now on `look(tensor)` comes before what reads all of a tensor without an operator that a
    mode sees: to print it, where torch leaves all modes, and to make a list of it."""

    def make(original: Wrapped) -> Wrapped:
        def read(self: Any, *args: Any, **kwargs: Any) -> Any:
            look(self)
            return original(self, *args, **kwargs)

        return read

    for name in ("__repr__", "tolist"):
        patch(torch.Tensor, name, make)


def depth() -> int:
    """How many such modes this thread is in, the program's own counted."""
    private: Any = torch._C
    return int(private._len_torch_dispatch_stack())


@functools.cache
def _mode_class() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    base: Any = TorchDispatchMode

    class Calls(Unnoticed, base):  # type: ignore[misc]
        def __init__(self, look: Look) -> None:
            super().__init__()
            self._look = look

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            given = kwargs or {}
            self._look(func, args, given)
            return func(*args, **given)

    return Calls


def accesses(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Any, str]]:
    """The arguments at whose elements this call looks, where they are tensors or hold some: each
    with "read" or "written"."""
    if getattr(operator, "namespace", "") != "aten":
        return  # of communication, or made by somebody else
    parameters = accesses_of(operator)
    if parameters is None:
        return
    for place, (name, how) in enumerate(parameters):
        given = args[place] if place < len(args) else kwargs.get(name)
        if given is not None:
            yield given, how


@functools.cache
def accesses_of(operator: Any) -> tuple[tuple[str, str], ...] | None:
    """By place, each parameter's name, and what the operator does to the elements of what it is
    given; None for an operator that looks at none: one that makes a view, or one of metadata."""
    name, _, overload = str(operator.name()).partition(".")
    if _looks_at_metadata(name.removeprefix("aten::")):
        return None
    private: Any = torch._C
    schema = private._get_schema(name, overload)
    results = [one.alias_info for one in schema.returns]
    if results and all(one is not None and not one.is_write for one in results):
        return None  # views
    return tuple(
        (one.name, "written" if one.alias_info is not None and one.alias_info.is_write else "read")
        for one in schema.arguments
    )


def _looks_at_metadata(name: str) -> bool:
    return name in _OF_METADATA or name.endswith("_like") or name.startswith("new_")
