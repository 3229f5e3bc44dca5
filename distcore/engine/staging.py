"""The tensors of a call as engines take them: whole, as the parts of one tensor, or as copies.

Engines take contiguous tensors of some kinds of devices. Everything else (views with gaps, lazily
conjugated or negated ones, tensors of another device) gets a copy in main memory, which is filled
before the call and copied back after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_strided = torch.strided


def _plain_in_main_memory(tensor: Any) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.layout is _strided
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def is_plain(tensor: Any) -> bool:
    """Whether it is dense, contiguous, and what its elements say, wherever it is."""
    return (
        isinstance(tensor, Tensor)
        and tensor.layout is _strided
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


@dataclass(frozen=True)
class DeviceReach:
    """The kinds of devices whose tensors an engine takes: as they lie, and as copies."""

    devices: tuple[str, ...]
    staged: tuple[str, ...]
    is_plain: Callable[[Tensor], bool]
    """Whether the engine can take it as it is."""

    def __contains__(self, device_type: str) -> bool:
        return device_type in self.devices or device_type in self.staged

    @property
    def named(self) -> str:
        """`the CPU or a CUDA device`"""
        words = {"cpu": "the CPU", "cuda": "a CUDA device"}
        return " or ".join(words.get(one, one) for one in (*self.devices, *self.staged))


MAIN_MEMORY = DeviceReach(("cpu",), ("cuda",), _plain_in_main_memory)
EITHER = DeviceReach(("cpu", "cuda"), (), lambda one: is_plain(one) and (one.is_cpu or one.is_cuda))
GPU_ONLY = DeviceReach(("cuda",), (), lambda one: is_plain(one) and one.is_cuda)


@dataclass(frozen=True, slots=True)
class Staged:
    """A tensor and its stand-in. `ready`: an event before which it must not be copied."""

    original: Tensor
    scratch: Tensor
    reads: bool
    writes: bool
    ready: Any = None


class Staging:
    """The copies of one call's tensors."""

    __slots__ = ("_copies", "_inference", "_is_plain")

    def __init__(self, reach: DeviceReach = MAIN_MEMORY) -> None:
        self._is_plain = reach.is_plain
        self._copies: list[Staged] = []
        self._inference = False

    def take(self, tensor: Tensor, reads: bool, writes: bool) -> Tensor:
        """The tensor, or what the engine shall work on in its place."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        if self._is_plain(tensor):
            return tensor
        scratch, ready = self._stand_in(tensor)
        self._copies.append(Staged(tensor, scratch, reads, writes, ready))
        self._inference = self._inference or tensor.is_inference()
        return scratch

    def _stand_in(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """Room for a tensor, and the event before which it must not be copied."""
        if tensor.is_cpu:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"), None
        # The copies run on the default stream of whatever thread has the call's turn: not
        # before what the caller's stream still has to do with this tensor.
        room = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        return room, torch.cuda.current_stream(tensor.device).record_event()

    def inputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """`take` for tensors that are read."""
        plain = self._is_plain
        return [t if plain(t) else self.take(t, True, False) for t in tensors]

    def outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """`take` for tensors that are written all over."""
        plain = self._is_plain
        return [t if plain(t) else self.take(t, False, True) for t in tensors]

    def load(self) -> None:
        """Copy in what the call reads."""
        with torch.inference_mode(self._inference), torch.no_grad():
            for copy in self._copies:
                if copy.ready is not None:
                    copy.ready.synchronize()
                if copy.reads:
                    copy.scratch.copy_(copy.original)

    def store(self) -> None:
        """Copy back what the call wrote."""
        with torch.inference_mode(self._inference), torch.no_grad():
            for copy in self._copies:
                if copy.writes:
                    # Blocking also for a GPU: when the call is over, every stream may read it.
                    copy.original.copy_(copy.scratch)

    def around(self, body: Callable[[Any], object]) -> Callable[[Any], object]:
        """The call's body with the copying before and after; the body itself if there is none."""
        if not self._copies:
            return body

        def staged(net: Any) -> None:
            self.load()
            body(net)
            self.store()

        return staged


NO_COPIES = Staging()
"""The staging of a call whose tensors can all be taken as they are."""


class Parts(Sequence[Tensor]):
    """The parts of one contiguous tensor: flat, in its order, without gaps. It is cut when a part
    is accessed."""

    __slots__ = ("_counts", "_cut", "_size", "each", "whole")

    def __init__(self, whole: Tensor, counts: Sequence[int]) -> None:
        """`counts`: the elements of each part."""
        self.whole = whole
        self.each = -1
        self._size = len(counts)
        self._counts: Sequence[int] | None = counts
        self._cut: Sequence[Tensor] | None = None

    @classmethod
    def even(cls, whole: Tensor, size: int) -> Parts:
        """Returns `size` parts of one length, which is `each`; where the sizes were given, that is
        -1."""
        made = cls(whole, ())
        made.each = whole.numel() // size
        made._size = size
        made._counts = None
        return made

    @property
    def counts(self) -> Sequence[int]:
        """The elements of each part."""
        if self._counts is None:
            self._counts = [self.each] * self._size
        return self._counts

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._parts())

    def __getitem__(self, index: Any) -> Any:
        return self._parts()[index]

    def _parts(self) -> Sequence[Tensor]:
        if self._cut is None:
            if self.each < 0:
                flat = self.whole.view(-1)
                self._cut = flat.split(self.counts)  # type: ignore[no-untyped-call]
            else:
                self._cut = self.whole.view(self._size, self.each).unbind(0)
        return self._cut


def whole_of(tensors: Sequence[Tensor]) -> Tensor | None:
    """The tensor of which these are the parts. By the call, not by the addresses, so all ranks get
    the same answer: None for a list that the program gave."""
    return tensors.whole if isinstance(tensors, Parts) else None
