"""`--check nan,overflow,nan-origin`: looks at what is sent, and at what a sum comes to.

nan: a NaN in what a rank contributes; in what is added up or multiplied also an Inf, which a MIN, a
MAX or a mask that is only passed on may well have. overflow: an Inf or NaN in the result of a sum
to which everybody contributed finite numbers; it includes the check for nan, for otherwise nobody
could tell. A check reads every element, and waits for the device that has them.

Once the program scales its loss (GradScaler) nothing is asked of reductions: gradients overflow on
purpose then, and the step is left out.

From 2.15 on torch looks for a NaN itself, where TORCH_DIST_NAN_CHECK is 1: what it refuses then is
the same finding, with the rank and the element that torch does not name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...record.ops import op_of
from ...record.signature import SUMS, Signature
from ..log import rank_log
from ..log.rank_log import is_interruption, report_own_fault
from ..record.describe import METHODS, first_wrong, tensors_in
from ..record.exception_text import text_of
from ..record.recorder import GroupRecord, Known, OwnFinding, Recorder
from ..torch_private.training import on_loss_scaling

if TYPE_CHECKING:
    from .nan_origin import NanOrigin

NAN, OVERFLOW = NAMES = ("nan", "overflow")
NAN_ORIGIN = "nan-origin"

ADDS = SUMS | {"product"}
"""Reduce ops to which an Inf is as wrong as a NaN."""
REFUSED_BY_TORCH = "NaN found in input tensor"
After = Callable[[], None]
Inspect = Callable[[str, tuple[Any, ...], Known, int], After | None]


class LossScaling:
    """Whether this process scales its loss."""

    def __init__(self) -> None:
        self.seen = False
        self._watched = False

    def watch(self) -> None:
        """Begins to look for it."""
        if not self._watched:
            self._watched = True
            on_loss_scaling(self._scales)

    def _scales(self) -> None:
        if not self.seen:
            text = "the check of data leaves out reductions: a GradScaler is in use"
            rank_log.write(text, "info")
        self.seen = True


def inspector(
    asked: frozenset[str],
    recorder: Recorder,
    record: GroupRecord,
    scaling: LossScaling,
    origin: NanOrigin | None = None,
) -> Inspect | None:
    """Returns what looks at each call of the group; None where no check of this file is asked
    for. `origin` tells where a NaN was made, where that is asked for."""
    if not asked & {NAN, OVERFLOW}:
        return None
    scaling.watch()
    if origin is not None:
        origin.watch()

    def before(method: str, args: tuple[Any, ...], known: Known, seq: int) -> After | None:
        """Look at what this rank contributes; what to call when the call is complete, if anything.

        `args` are those of the group's `method`. Tells the finding.
        """
        if METHODS[method].given(args) is None:
            return None
        signature = Signature.from_json(known.text)
        if origin is not None:
            origin.calls(sys._getframe(0))
        if signature.reduce_op and scaling.seen:
            return None
        reduced = signature.reduce_op in ADDS
        found = _contributed(record, method, args, signature, seq, reduced, origin)
        if found is not None:
            found.report(recorder, recorder.safe_site(sys._getframe(0)))
            return None
        sums = OVERFLOW in asked and reduced
        if not (sums or origin) or signature.op == "send":
            return None
        if signature.op == "reduce" and signature.root != record.ranks[record.group_rank]:
            return None
        outputs = list(tensors_in(args[0]))

        def after() -> None:
            if origin is not None:
                origin.receives(f"{signature}{record.place_of(signature, seq)[0]}", outputs)
            for tensor in outputs if sums else ():
                wrong = first_wrong(tensor, True)
                if wrong is not None:
                    where, _ = record.place_of(signature, seq)
                    message = (
                        f"the result of {signature}{where} has overflowed: it is "
                        f"{tensor.flatten()[wrong].item()} at element {wrong}, and all that was "
                        "contributed was finite"
                    )
                    found = OwnFinding(record, seq, "overflow", message, record.ranks)
                    found.report(recorder, recorder.safe_site(sys._getframe(0)))
                    return

        return after

    return before


def refused(
    error: BaseException, method: str, args: tuple[Any, ...], group: GroupRecord, known: Known
) -> None:
    """A call was refused with this error, and taken back. Where torch did so for a NaN, the error
    is a finding, which goes on record if nobody catches it: a program may."""
    if not isinstance(error, RuntimeError) or REFUSED_BY_TORCH not in text_of(error):
        return
    try:
        signature = Signature.from_json(known.text)
        found = _contributed(group, method, args, signature, group.slot.issued, inf_too=False)
        if found is not None:
            error.finding = found  # type: ignore[attr-defined]
    except Exception as fault:
        if is_interruption(fault):
            raise
        report_own_fault("the search for the NaN that torch has refused", fault)


def _contributed(
    record: GroupRecord,
    method: str,
    args: tuple[Any, ...],
    signature: Signature,
    seq: int,
    inf_too: bool,
    origin: NanOrigin | None = None,
) -> OwnFinding | None:
    """The first NaN (or Inf) of what this rank contributes to the call, if there is one."""
    rank = record.ranks[record.group_rank]
    if op_of(signature.op).root == "src" and signature.root != rank:
        return None
    for index, tensor in enumerate(tensors_in(METHODS[method].given(args))):
        wrong = first_wrong(tensor, inf_too)
        if wrong is None:
            continue
        value = tensor.flatten()[wrong].item()
        which = f" of tensor {index}" if len(signature.tensors) > 1 else ""
        where, numbered = record.place_of(signature, seq)
        message = (
            f"rank {rank} contributes {value} to {signature}{where}: "
            f"element {wrong}{which} is the first that is wrong"
        )
        whence = origin.found(value) if origin is not None else ""
        return OwnFinding(record, numbered, "nan", message, (rank,), origin=whence)
    return None
