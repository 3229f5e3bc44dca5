"""Tensors that an engine cannot take as they lie in memory: copied in before, back after.

Engines take contiguous tensors of some kinds of devices. Everything else (views with gaps, lazily
conjugated or negated ones, tensors of another device) gets a copy in main memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def _plain_on_a_gpu(tensor: Any) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.layout is _strided
        and tensor.is_cuda
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
EITHER = DeviceReach(
    ("cpu", "cuda"),
    (),
    lambda tensor: _plain_in_main_memory(tensor) or _plain_on_a_gpu(tensor),
)
GPU_ONLY = DeviceReach(("cuda",), (), _plain_on_a_gpu)


@dataclass(frozen=True, slots=True)
class Staged:
    """A tensor and its stand-in. `ready`: an event before which it must not be copied."""

    original: Tensor
    scratch: Tensor
    reads: bool
    writes: bool
    ready: Any = None

    def load(self) -> None:
        if self.ready is not None:
            self.ready.synchronize()
        if self.reads:
            self.scratch.copy_(self.original)

    def store(self) -> None:
        if self.writes:
            # Blocking also for a GPU: when the call is over, every stream may read the result.
            self.original.copy_(self.scratch)


class Staging:
    """The copies of one call's tensors; true when there are any."""

    __slots__ = ("_copies", "_inference", "_is_plain")

    def __init__(self, reach: DeviceReach = MAIN_MEMORY) -> None:
        self._is_plain = reach.is_plain
        self._copies: list[Staged] = []
        self._inference = False

    def __bool__(self) -> bool:
        return bool(self._copies)

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
                copy.load()

    def store(self) -> None:
        """Copy back what the call wrote."""
        with torch.inference_mode(self._inference), torch.no_grad():
            for copy in self._copies:
                copy.store()

    def around(self, body: Callable[[Any], object]) -> Callable[[Any], object]:
        """The call's body with the copying before and after; the body itself if there is none."""
        if not self._copies:
            return body

        def staged(net: Any) -> None:
            self.load()
            body(net)
            self.store()

        return staged


def around(staging: Staging | None, body: Callable[[Any], object]) -> Callable[[Any], object]:
    """`Staging.around`, where there may be none."""
    return body if staging is None else staging.around(body)
