"""Memory of this process with values that only stand in for those of a real run, and the origins of
these: a call that gives all ranks the same, and the operators and known values since.

Where two ranks have made the same of the same, a real run has the same value on both, whatever it
is. So it has an origin: a number that is the same on these ranks and on no others. It is known how
a value came about, and not the value: a loss that each rank has computed itself, of the same data
and of parameters that all have reduced, has one origin on all ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..torch_private.operator_calls import MarkedStorages, Operator, tensors_of
from .numbers import UndecidedNumber, plain

OWN = b""
"""The origin of what may be another value on each rank."""
_MOST_BYTES = 1 << 20
"""The most bytes of a known tensor that are read whole; of a larger one its ends say which it
is."""

OriginOf = Callable[[Tensor], bytes | None]
"""Returns the origin of memory that holds values which are not known; None of any other."""


class _NoOrigin(Exception):
    """The call has an argument of which it cannot be told whether other ranks have the same."""


def mixed(*parts: bytes | str | int) -> bytes:
    """Returns one origin of several; `OWN`, which no other rank has, where one of them is that."""
    digest = hashlib.blake2b(digest_size=8)
    for one in parts:
        if one == OWN:
            return OWN
        data = one if isinstance(one, bytes) else str(one).encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.digest()


def within(tensor: Tensor) -> str:
    """Returns which part of its memory a tensor is, and how it is read."""
    return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.storage_offset()}"


class OperatorCall:
    """A call of an operator, before it is made; then `of(found)` has the origin of each tensor
    that it has made or written."""

    def __init__(
        self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], origin_of: OriginOf
    ) -> None:
        self._args, self._kwargs = args, kwargs
        self._operator = operator
        self._origin_of = origin_of
        self._overwritten = {id(one) for one in operator.overwritten_in(args, kwargs)}
        generator: Any = torch.default_generator
        self._seed = _bytes_of_state(generator.get_state()) if operator.is_seeded else b""
        # Each tensor of a list of the same operator's has come of those at its own place.
        foreach = "._foreach_" in operator.text and _is_list(args[0])
        self._by_place = len(args[0]) if foreach else 0
        self._columns = {
            id(one) for one in args if foreach and _is_list(one) and len(one) == self._by_place
        }
        places: Iterable[int | None] = range(self._by_place) if self._by_place else [None]
        self._origins = [self._of_place(place) for place in places]

    def whole(self) -> bytes:
        """The origin of what it gives, where that is one thing."""
        return mixed(*self._origins)

    def of(self, found: Any) -> Iterator[tuple[Tensor, bytes]]:
        """Each tensor that it has made or written."""
        for what, tensors in (
            ("made", tensors_of(found)),
            ("written", self._operator.written_in(self._args, self._kwargs)),
        ):
            for at, one in enumerate(tensors):
                place = at % self._by_place if self._by_place else 0
                yield one, mixed(self._origins[place], what, at)

    def _of_place(self, place: int | None) -> bytes:
        digest = hashlib.blake2b(self._operator.text.encode() + self._seed, digest_size=8)
        try:
            for one in (*self._args, *sorted(self._kwargs.items())):
                self._add(digest, one, place)
        except (_NoOrigin, RuntimeError, NotImplementedError, RecursionError):
            return OWN
        return digest.digest()

    def _add(self, digest: Any, given: Any, place: int | None) -> None:
        match given:
            case Tensor():
                if id(given) not in self._overwritten:
                    digest.update(self._of_tensor(given))
                digest.update(within(given).encode())
            case list() | tuple():
                if place is not None and id(given) in self._columns:
                    self._add(digest, given[place], None)
                    return
                digest.update(b"[")
                for one in given:
                    self._add(digest, one, None)
                digest.update(b"]")
            case torch.device():
                digest.update(given.type.encode())
            case UndecidedNumber():
                digest.update(repr(plain(given)).encode())
            case None | bool() | int() | float() | complex() | str():
                digest.update(repr(given).encode() + b",")
            case torch.dtype() | torch.layout() | torch.memory_format():
                digest.update(repr(given).encode())
            case torch.Generator():
                digest.update(_bytes_of_state(given.get_state()))
            case _:
                raise _NoOrigin

    def _of_tensor(self, tensor: Tensor) -> bytes:
        origin = self._origin_of(tensor)
        if origin is None:
            return content(tensor)
        if origin == OWN:
            raise _NoOrigin
        return origin


def content(tensor: Tensor) -> bytes:
    """Returns what tells the elements of a known tensor from others. Raises `RuntimeError` where it
    has none to be read."""
    if tensor.is_meta or not tensor.numel():
        return b"none"
    if tensor.layout is not torch.strided:
        raise RuntimeError("not strided")
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    length = (last + 1) * tensor.element_size()
    digest = hashlib.blake2b(str(length).encode(), digest_size=8)
    half = _MOST_BYTES // 2
    if length <= _MOST_BYTES:
        digest.update(ctypes.string_at(tensor.data_ptr(), length))
    else:
        digest.update(ctypes.string_at(tensor.data_ptr(), half))
        digest.update(ctypes.string_at(tensor.data_ptr() + length - half, half))
    return digest.digest()


def _is_list(given: Any) -> bool:
    return isinstance(given, list | tuple) and all(isinstance(one, Tensor) for one in given)


def _bytes_of_state(state: Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())


class Taint:
    """The values of this process's tensors that are not known."""

    of_process: ClassVar[Taint]
    """The one for values that another rank has sent."""

    def __init__(self) -> None:
        self._marked: MarkedStorages[bytes] = MarkedStorages()
        self._everywhere = 0
        self.before_first: Callable[[], None] | None = None
        """Called once, before anything in this process is not known."""

    def __bool__(self) -> bool:
        return bool(self._marked)

    def begin(self) -> None:
        """Begins to follow values: one is about to be there that is not known."""
        first, self.before_first = self.before_first, None
        if first is not None:
            first()

    def has(self, tensor: Tensor) -> bool:
        """Whether it holds a value that is not known."""
        if self._everywhere:
            return True
        return bool(self._marked) and self._marked.of(tensor) is not None

    @contextlib.contextmanager
    def everywhere(self) -> Iterator[None]:
        """Counts nothing as known, within."""
        self._everywhere += 1
        try:
            yield
        finally:
            self._everywhere -= 1

    def origin(self, tensor: Tensor) -> bytes | None:
        """Returns what the values came of, which are not known (see `origins`); None where they
        are."""
        found = self._marked.of(tensor)
        return OWN if found is None and self._everywhere else found

    def add(self, tensor: Tensor, origin: bytes = OWN) -> None:
        """Its values are not known from now on, and came of this."""
        if self.before_first is not None:
            self.begin()
        if origin != OWN and not _is_whole(tensor):
            kept = self._marked.of(tensor)
            origin = mixed(origin if kept is None else mixed(kept, origin), within(tensor))
        self._marked.put(tensor, origin)

    def drop(self, tensor: Tensor) -> None:
        """All of its memory holds real values from now on; of a part of a larger one nothing is
        concluded for the rest, which stays as it is."""
        if self._marked.of(tensor) is not None and _is_whole(tensor):
            self._marked.drop(tensor)


def _is_whole(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
