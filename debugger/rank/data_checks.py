"""`--check nan,overflow`: looks at what is sent, and at what a sum comes to.

nan: a NaN in what a rank contributes; in what is added up or multiplied also an Inf, which a MIN, a
MAX or a mask that is only passed on may well have. overflow: an Inf or NaN in the result of a sum
to which everybody contributed finite numbers; it includes the check for nan, for otherwise nobody
could tell. A check reads every element, and waits for the device that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..record.signature import Signature
from ..record.wording import finding_line, place
from .own_findings import OwnFinding
from .recorder import GroupRecord, Known, Recorder
from .verdict import FindingRaised

CHECKS = "DISTDEBUG_CHECK"
NAN, OVERFLOW = "nan", "overflow"

ADDS = frozenset({"sum", "avg", "product", "premul_sum"})
"""Reduce ops to which an Inf is as wrong as a NaN."""
ROOT_GIVES = frozenset({"broadcast", "scatter"})
OUTPUT_FIRST = frozenset(
    {
        "allgather", "allgather_coalesced", "_allgather_base", "all_gather_single",
        "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "gather", "scatter",
        "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced", "alltoall",
        "alltoall_base", "all_to_all_single",
    }
)  # fmt: skip
"""Methods whose first argument is the output, and the second one the input."""
GIVE_NOTHING = frozenset({"barrier", "monitored_barrier", "recv", "recv_anysource"})

After = Callable[[], None]
Inspect = Callable[[str, tuple[Any, ...], Known, int], After | None]


def inspector(names: str, recorder: Recorder, record: GroupRecord) -> Inspect | None:
    """What looks at each call of the group; None where no check of this file is asked for."""
    asked = frozenset(filter(None, names.split(",")))
    if not asked & {NAN, OVERFLOW}:
        return None
    return Inspector(recorder, record, OVERFLOW in asked).before


class Inspector:
    """The checks of one group's calls on one rank."""

    def __init__(self, recorder: Recorder, record: GroupRecord, overflow: bool) -> None:
        self._recorder = recorder
        self._record = record
        self._overflow = overflow
        self._rank = record.ranks[record.group_rank]

    def before(self, method: str, args: tuple[Any, ...], known: Known, seq: int) -> After | None:
        """Look at what this rank contributes; what to call when the call is complete, if anything.

        `args` are those of the group's `method`. Raises the finding.
        """
        if method in GIVE_NOTHING or not args:
            return None
        signature = Signature.from_json(known.text)
        gives = signature.op not in ROOT_GIVES or signature.root == self._rank
        given = args[1] if method in OUTPUT_FIRST and len(args) > 1 else args[0]
        if gives:
            for index, tensor in enumerate(tensors_in(given)):
                wrong = _first_wrong(tensor, signature.reduce_op in ADDS)
                if wrong is not None:
                    self._raise_nan(signature, seq, index, tensor, wrong)
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
                where = self._place(signature, seq)
                message = (
                    f"the result of {signature}{where} has overflowed: it is "
                    f"{tensor.flatten()[wrong].item()} at element {wrong}, and all that was "
                    "contributed was finite"
                )
                self._raise("overflow", message, seq, self._record.ranks)

    def _raise_nan(
        self, signature: Signature, seq: int, index: int, tensor: Tensor, wrong: int
    ) -> None:
        value = tensor.flatten()[wrong].item()
        which = f" of tensor {index}" if len(signature.tensors) > 1 else ""
        message = (
            f"rank {self._rank} contributes {value} to {signature}"
            f"{self._place(signature, seq)}: element {wrong}{which} is the first that is wrong"
        )
        numbered = None if signature.peer is not None else seq
        self._raise("nan", message, numbered, (self._rank,))

    def _raise(self, kind: str, message: str, seq: int | None, culprits: tuple[int, ...]) -> None:
        finding = OwnFinding(self._record, seq, kind, message, culprits)
        finding.put_on_record(self._recorder, 0)
        raise FindingRaised(kind, finding_line(kind, message), own=True)

    def _place(self, signature: Signature, seq: int) -> str:
        if signature.peer is not None:
            return ""
        return f" {place(self._record.name, self._record.desc, seq)}"


def tensors_in(given: Any) -> Iterator[Tensor]:
    """The tensors in an argument of a method of ProcessGroup: one, a list, or lists of lists."""
    if isinstance(given, Tensor):
        yield given
    else:
        for one in given:
            yield from tensors_in(one)


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
