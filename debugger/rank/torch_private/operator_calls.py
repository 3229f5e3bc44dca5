"""torch's operators as they are called on one thread: what each reads and writes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .probe import Private, WatchedPart, Wrapped, patch

_MODES = "torch.utils._python_dispatch"
OPERATOR_CALLS = WatchedPart(
    "reads_in_flight",
    "buffers that are read between an asynchronous call and its wait() are not noticed",
    Private(_MODES, "TorchDispatchMode.__torch_dispatch__", ("self", "func", "types", "args")),
    Private(_MODES, "TorchDispatchMode.supports_higher_order_operators"),
    Private(_MODES, "TorchDispatchMode._should_skip_dynamo", (), called=True),
    Private("torch._C", "_len_torch_dispatch_stack", (), called=True),
    Private("torch._C", "_get_schema"),
)
SAVING = WatchedPart(
    "reads_of_saving",
    "buffers that are saved between an asynchronous call and its wait() are not noticed",
    Private("torch._C", "PyTorchFileWriter.write_record"),
)
_OF_METADATA = frozenset({"is_pinned", "record_stream", "set_"})
"""Operators that look at no element of the tensors that they are given; and those that make another
one like it, which `_looks_at_metadata` knows by their names."""
_IN_PART = ("diag", "embedding", "gather", "index", "masked_", "put", "scatter", "take", "trace")
"""The beginnings of the names of operators that may look at some elements of their first argument
alone."""

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
def on_reads_past_operators(
    look: Callable[[Any, bool], None], gave: Callable[[Any, Any], None]
) -> None:
    """From now on `look(what, whole)` comes before what reads a tensor or a storage without an
    operator that a mode sees: to make a list of it, to print it (a large one in part), for which
    torch leaves all modes, and to save it. `gave(tensor, other)` comes after a tensor has given its
    memory to numpy, or to another library."""

    def reading(whole: bool, place: int = 0) -> Callable[[Wrapped], Wrapped]:
        def make(original: Wrapped) -> Wrapped:
            def read(*args: Any, **kwargs: Any) -> Any:
                if len(args) > place:
                    look(args[place], whole)
                return original(*args, **kwargs)

            return read

        return make

    def giving(original: Wrapped) -> Wrapped:
        def give(self: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                kwargs.get("copy") is True
            ):  # numpy.array(tensor): asked once more without, if refused
                look(self, True)
            given = original(self, *args, **kwargs)
            gave(self, given)
            return given

        return give

    patch(torch.Tensor, "tolist", reading(whole=True))
    patch(torch.Tensor, "__repr__", reading(whole=False))
    patch(torch.UntypedStorage, "__getitem__", reading(whole=False))
    for name in ("numpy", "__array__", "__dlpack__"):
        patch(torch.Tensor, name, giving)
    if SAVING.works:
        private: Any = torch._C
        patch(private.PyTorchFileWriter, "write_record", reading(whole=False, place=2))


def depth() -> int:
    """Returns how many such modes this thread is in, the program's own counted."""
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
) -> Iterator[tuple[Any, str, bool]]:
    """The arguments at whose elements this call looks, where they are tensors or hold some: each
    with "read" or "written", and whether that is each element."""
    if getattr(operator, "namespace", "") != "aten":
        return  # of communication, or made by somebody else
    parameters = accesses_of(operator)
    if parameters is None:
        return
    in_part = operator.name().removeprefix("aten::").lstrip("_").startswith(_IN_PART)
    for place, (name, how) in enumerate(parameters):
        given = args[place] if place < len(args) else kwargs.get(name)
        if given is not None:
            yield given, how, bool(place) or not in_part


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
