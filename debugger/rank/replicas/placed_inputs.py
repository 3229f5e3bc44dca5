"""The tensors that a program declares to be replicated, by `DTensor.from_local()`: inputs of layers
that are cut into shards. torch believes it, and computes with what each rank has.

The first ones of each step are read, for what differs there makes all behind it differ.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..log.rank_log import report_own_fault
from ..torch_private import training
from . import declarations, quantities
from .quantities import Axis

MOST_INPUTS = 8
LEAST_ELEMENTS = 8
"""A loss may be the rank's own, whatever it is said to be."""
SAMPLES = 64
_DEPTH = 8


@dataclass(frozen=True, slots=True)
class PlacedInput:
    """A reading of one tensor; `module`: in whose forward it was made."""

    value: int
    samples: Sequence[float]
    dtype: str
    numel: int
    storage: int
    module: weakref.ref[nn.Module] | None

    def name(self) -> str:
        """Returns the module's name in the model, or its class."""
        module = self.module() if self.module is not None else None
        if module is None:
            return ""
        for root in declarations.roots(declarations.modules()):
            for name, one in root.named_modules():
                if one is module and name:
                    return str(name)
        return type(module).__name__


class PlacedInputs:
    """The inputs of the step that this process works on, by axis. `is_due`: whether they are put on
    record, after so many steps."""

    def __init__(self, is_due: Callable[[int], bool]) -> None:
        self._is_due = is_due
        self._steps = 0
        self._off = False
        self.are_used = False
        """Whether the program makes such tensors."""
        self._inputs: dict[Axis, list[PlacedInput]] = {}
        self._heard: Counter[Axis] = Counter()

    def observe(self) -> None:
        """Begin."""
        training.on_local_tensors(self._hear)

    def _hear(self, made: Any) -> None:
        self.are_used = True
        if self._off or not self._is_due(self._steps) or not torch.is_grad_enabled():
            return
        if torch.compiler.is_compiling() or training.capturing():
            return
        try:
            for axis in quantities.axes_of(made):
                self._heard[axis] += 1
                inputs, local = self._inputs.setdefault(axis, []), quantities.part(made, axis)
                if local is None or local.numel() < LEAST_ELEMENTS or len(inputs) == MOST_INPUTS:
                    continue
                (value,), samples = quantities.read(None, [local], None, False, 1, [SAMPLES])
                dtype = str(local.dtype).removeprefix("torch.")
                storage, module = local.untyped_storage().data_ptr(), _module()
                one = PlacedInput(value, samples, dtype, local.numel(), storage, module)
                inputs.append(one)
        except Exception as error:
            self._off = True
            report_own_fault("reading inputs that are replicated", error)

    def take(
        self, parameters: Collection[torch.Tensor]
    ) -> dict[Axis, tuple[int, list[PlacedInput]]]:
        """Returns the inputs of this step, of how many in all, and begins the next one. One that
        became a parameter is none."""
        taken, self._inputs = self._inputs, {}
        heard, self._heard = self._heard, Counter()
        self._steps += 1
        local = [quantities.local(one) for one in parameters] if taken else []
        known = {one.untyped_storage().data_ptr() for one in local if one is not None}
        return {
            axis: (heard[axis], chosen)
            for axis, inputs in taken.items()
            if (chosen := [one for one in inputs if one.storage not in known])
        }


def _module() -> weakref.ref[nn.Module] | None:
    """The module for which this is called: torch's styles of parallel layers call it `mod`."""
    frame = sys._getframe(1)
    for _ in range(_DEPTH):
        for name in ("mod", "self"):
            found = frame.f_locals.get(name)
            if isinstance(found, nn.Module):
                return weakref.ref(found)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None
