"""`--check nan,overflow`: looks at what is sent, and at what a sum comes to.

nan: a NaN in what a rank contributes; in what is added up or multiplied also an Inf, which a MIN, a
MAX or a mask that is only passed on may well have. overflow: an Inf or NaN in the result of a sum
to which everybody contributed finite numbers; it includes the check for nan, for otherwise nobody
could tell. A check reads every element, and waits for the device that has them.

Once the program scales its loss (GradScaler) nothing is asked of reductions: gradients overflow on
purpose then, and the step is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...record.signature import SUMS, Signature
from .. import torch_private
from ..log import rank_log
from ..record.describe import METHODS, tensors_in
from ..record.findings import OwnFinding
from ..record.recorder import GroupRecord, Known, Recorder

NAN, OVERFLOW = NAMES = ("nan", "overflow")

ADDS = SUMS | {"product"}
"""Reduce ops to which an Inf is as wrong as a NaN."""
ROOT_GIVES = frozenset({"broadcast", "scatter"})
After = Callable[[], None]
Inspect = Callable[[str, tuple[Any, ...], Known, int], After | None]


class LossScaling:
    """Whether this process scales its loss."""

    def __init__(self) -> None:
        self.seen = False
        self._watched = False

    def watch(self) -> None:
        """From now on it is seen."""
        if not self._watched:
            self._watched = True
            torch_private.on_loss_scaling(self._scales)

    def _scales(self) -> None:
        if not self.seen:
            text = "the check of data leaves out reductions: a GradScaler is in use"
            rank_log.write(text, "info")
        self.seen = True


def inspector(
    asked: frozenset[str], recorder: Recorder, record: GroupRecord, scaling: LossScaling
) -> Inspect | None:
    """What looks at each call of the group; None where no check of this file is asked for."""
    if not asked & {NAN, OVERFLOW}:
        return None
    scaling.watch()
    return Inspector(recorder, record, scaling, OVERFLOW in asked).before


class Inspector:
    """The checks of one group's calls on one rank."""

    def __init__(
        self, recorder: Recorder, record: GroupRecord, scaling: LossScaling, overflow: bool
    ) -> None:
        self._recorder = recorder
        self._scaling = scaling
        self._record = record
        self._overflow = overflow
        self._rank = record.ranks[record.group_rank]

    def before(self, method: str, args: tuple[Any, ...], known: Known, seq: int) -> After | None:
        """Look at what this rank contributes; what to call when the call is complete, if anything.

        `args` are those of the group's `method`. Tells the finding.
        """
        given = METHODS[method].given(args)
        if given is None:
            return None
        signature = Signature.from_json(known.text)
        if signature.reduce_op and self._scaling.seen:
            return None
        gives = signature.op not in ROOT_GIVES or signature.root == self._rank
        if gives:
            for index, tensor in enumerate(tensors_in(given)):
                wrong = _first_wrong(tensor, signature.reduce_op in ADDS)
                if wrong is not None:
                    self._tell_nan(signature, seq, index, tensor, wrong)
                    return None
        reduced = signature.reduce_op in ADDS
        if not (self._overflow and reduced):
            return None
        if signature.op == "reduce" and signature.root != self._rank:
            return None
        outputs = list(tensors_in(args[0]))
        return lambda: self._after(signature, seq, outputs)

    def _after(self, signature: Signature, seq: int, outputs: list[Tensor]) -> None:
        for tensor in outputs:
            wrong = _first_wrong(tensor, True)
            if wrong is not None:
                where, _ = self._record.place_of(signature, seq)
                message = (
                    f"the result of {signature}{where} has overflowed: it is "
                    f"{tensor.flatten()[wrong].item()} at element {wrong}, and all that was "
                    "contributed was finite"
                )
                self._tell("overflow", message, seq, self._record.ranks)
                return

    def _tell_nan(
        self, signature: Signature, seq: int, index: int, tensor: Tensor, wrong: int
    ) -> None:
        value = tensor.flatten()[wrong].item()
        which = f" of tensor {index}" if len(signature.tensors) > 1 else ""
        where, numbered = self._record.place_of(signature, seq)
        message = (
            f"rank {self._rank} contributes {value} to {signature}{where}: "
            f"element {wrong}{which} is the first that is wrong"
        )
        self._tell("nan", message, numbered, (self._rank,))

    def _tell(self, kind: str, message: str, seq: int | None, culprits: tuple[int, ...]) -> None:
        finding = OwnFinding(self._record, seq, kind, message, culprits)
        finding.report(self._recorder, self._recorder.safe_site(sys._getframe(1)))


def _first_wrong(tensor: Tensor, inf_too: bool) -> int | None:
    """The first element that is NaN (or infinite)."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_sparse:
        return None
    with torch.no_grad():
        if tensor.element_size() == 1:
            tensor = tensor.to(torch.float16)  # torch cannot ask eight bits
        wrong = tensor.isfinite().logical_not() if inf_too else tensor.isnan()
        if not wrong.any():
            return None
        return int(wrong.flatten().nonzero()[0].item())
