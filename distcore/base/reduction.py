"""The reduce ops: one table of ops and dtypes, and the arithmetic on bytes.

Nothing here starts threads of torch: every operation is cut into pieces that torch computes on the
calling thread. A parallel region per piece costs more than it gains, and where several ranks share
a host it stalls all of them (a 256 KiB sum took milliseconds instead of 11 microseconds).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from .buffers import bytes_of, tensor_over
from .call_text import REDUCE_OPS

Elementwise = Callable[..., Tensor]
Consume = Callable[[memoryview, int], None]

SERIAL_ELEMENTS = 32768
"""torch computes up to this many elements on the calling thread (its grain size)."""

SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Two's complement: sums, products and bits of unsigned numbers are those of signed ones.
UNSIGNED_AS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
# Complex numbers add by their parts.
COMPLEX_AS = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}

BITS = ("BAND", "BOR", "BXOR")
_ELEMENTWISE: dict[str, Elementwise] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
NAMES = tuple(_ELEMENTWISE)
"""All reduce ops, as torch calls them."""
# A bool is a byte of 0 or 1; torch's bitwise operations on bytes are vectorised, those on bool not.
_LOGICAL: dict[str, Elementwise] = {
    "SUM": torch.bitwise_or,
    "MAX": torch.bitwise_or,
    "BOR": torch.bitwise_or,
    "PRODUCT": torch.bitwise_and,
    "MIN": torch.bitwise_and,
    "BAND": torch.bitwise_and,
    "BXOR": torch.bitwise_xor,
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduce op on elements of one dtype. Made by `reduction_for`.

    The arithmetic is in the element's own type, as with gloo: float16 and bfloat16 round after each
    step, integers wrap around. AVG divides the sum by the number of ranks: integers towards zero
    (gloo refuses them; NCCL does the same). bool is 0 or 1: SUM, MAX and BOR are "or", PRODUCT, MIN
    and BAND "and", BXOR "not equal", as with gloo. MIN and MAX pass NaN on.

    left op right and right op left may differ in the sign of a zero (MIN, MAX) and in which NaN
    comes out. Where several ranks compute the same result, they must put the operands in the same
    order to get the same bits.
    """

    op: str
    dtype: torch.dtype
    item_bytes: int
    computed_as: torch.dtype
    function: Elementwise
    factor: complex | None = None
    divides: bool = False

    def __repr__(self) -> str:
        by = "" if self.factor is None else f" by {self.factor}"
        return f"<Reduction {self.op.lower()}{by} of {str(self.dtype).removeprefix('torch.')}>"

    # -- on tensors: contiguous, on the CPU, of this dtype ---------------------------------------

    def prepare(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns this rank's contribution: the tensor itself, or for PREMUL_SUM the tensor times
        the factor, in `out` (which may be the tensor) or in new memory."""
        if self.factor is None:
            return tensor
        if out is None:
            out = torch.empty_like(tensor)
        source, target = bytes_of(tensor), bytes_of(out)
        step = SERIAL_ELEMENTS * self.item_bytes
        for start in range(0, len(source), step):
            product = tensor_over(target[start : start + step], self.dtype)
            torch.mul(
                tensor_over(source[start : start + step], self.dtype), self.factor, out=product
            )
        return out

    def combine(self, into: Tensor, other: Tensor) -> None:
        """into = into op other, element by element."""
        own = bytes_of(into)
        self.merge(own, bytes_of(other), own)

    def finish(self, tensor: Tensor, size: int) -> None:
        """Completes the reduction in place once the parts of `size` ranks are combined: AVG
        divides."""
        if self.divides:
            self.finish_bytes(bytes_of(tensor), size)

    # -- on their bytes --------------------------------------------------------------------------

    def merge(self, left: memoryview, right: memoryview, out: memoryview) -> None:
        """out = left op right. All of one length; `out` may be one of the two."""
        computed_as = self.computed_as
        step = SERIAL_ELEMENTS * computed_as.itemsize
        if len(out) <= step:
            a, b = tensor_over(left, computed_as), tensor_over(right, computed_as)
            target = a if out is left else b if out is right else tensor_over(out, computed_as)
            self.function(a, b, out=target)
            return
        for start in range(0, len(out), step):
            a = tensor_over(left[start : start + step], computed_as)
            b = tensor_over(right[start : start + step], computed_as)
            if out is left:
                target = a
            elif out is right:
                target = b
            else:
                target = tensor_over(out[start : start + step], computed_as)
            self.function(a, b, out=target)

    def folding(self, own: memoryview, out: memoryview | None = None) -> Consume:
        """Takes a message piece by piece: out = own op message (`out` is `own` unless given)."""
        merge = self.merge

        def in_place(piece: memoryview, offset: int) -> None:
            mine = own[offset : offset + len(piece)]
            merge(mine, piece, mine)

        def elsewhere(piece: memoryview, offset: int) -> None:
            assert out is not None
            end = offset + len(piece)
            merge(own[offset:end], piece, out[offset:end])

        return in_place if out is None or out is own else elsewhere

    def finish_bytes(self, data: memoryview, size: int) -> None:
        """`finish` on bytes."""
        if not self.divides:
            return
        computed_as = self.computed_as
        rounding = None if computed_as.is_floating_point else "trunc"
        step = SERIAL_ELEMENTS * computed_as.itemsize
        for start in range(0, len(data), step):
            tensor_over(data[start : start + step], computed_as).div_(size, rounding_mode=rounding)


KNOWN: dict[tuple[int, torch.dtype], Reduction] = {}
"""The reductions that were made so far, by the number of the op; but those with a factor, which
each op has for itself."""


def reduction_for(
    op: ReduceOp | ReduceOp.RedOpType, dtype: torch.dtype, backend_name: str = "tcp"
) -> Reduction:
    """The reduction that `op` asks for on tensors of `dtype`.

    | dtype                                     | ops                                            |
    |-------------------------------------------|------------------------------------------------|
    | int8 to int64, uint8                      | all; the factor of PREMUL_SUM is a whole number |
    | uint16, uint32, uint64                    | SUM, PRODUCT, BAND, BOR, BXOR                  |
    | bool                                      | all but AVG, PREMUL_SUM                        |
    | float16, bfloat16, float32, float64       | all but BAND, BOR, BXOR                        |
    | complex64, complex128                     | SUM, AVG, PREMUL_SUM                           |
    | complex32                                 | SUM, AVG                                       |

    Raises TypeError, naming op, dtype and `backend_name`, for everything else.
    """
    # A number for both kinds of op; PREMUL_SUM cannot be compared, and each has its own factor.
    key = (hash(op), dtype)
    made = KNOWN.get(key)
    if made is None:
        made = _make(op, dtype, backend_name)
        if made.factor is None:
            KNOWN[key] = made
    return made


def op_name(op: object) -> str | None:
    """ "SUM" of ReduceOp.SUM, and so on; None of what is no reduce op."""
    return _NAMES.get(hash(op)) if isinstance(op, ReduceOp | ReduceOp.RedOpType) else None


def _make(op: object, dtype: torch.dtype, backend_name: str) -> Reduction:
    name = op_name(op)
    if name is None:
        raise TypeError(f"backend {backend_name}: {op!r} is no reduce op; use one of dist.ReduceOp")
    reason = _refusal(name, dtype)
    if reason:
        raise TypeError(f"backend {backend_name} cannot reduce {dtype} with {name}: {reason}")
    function = _ELEMENTWISE[name]
    computed_as = UNSIGNED_AS.get(dtype) or COMPLEX_AS.get(dtype) or dtype
    if dtype is torch.bool:
        function, computed_as = _LOGICAL[name], torch.uint8
    factor = None
    if name == "PREMUL_SUM":
        factor = premul_factor(op, dtype, backend_name)
    return Reduction(
        name, dtype, dtype.itemsize, computed_as, function, factor, divides=name == "AVG"
    )


_NAMES = {number: name.upper() for number, name in REDUCE_OPS.items()}


def _refusal(op: str, dtype: torch.dtype) -> str | None:
    """Why the two do not go together; None when they do."""
    if dtype in SIGNED or dtype is torch.uint8:
        return None
    if dtype is torch.bool:
        return f"a bool has no {op}" if op in ("AVG", "PREMUL_SUM") else None
    if dtype in FLOATS:
        return "only integers and bool have bits to combine" if op in BITS else None
    if dtype in COMPLEX_AS:
        if op in ("SUM", "AVG") or (op == "PREMUL_SUM" and dtype is not torch.complex32):
            return None
        return "complex numbers have SUM and AVG, complex64 and complex128 also PREMUL_SUM"
    if dtype in UNSIGNED_AS:
        if op in ("SUM", "PRODUCT", *BITS):
            return None
        return "torch has no such arithmetic for it on the CPU; SUM, PRODUCT and bits work"
    return "elements of this dtype can be moved, not reduced"


def premul_factor(op: object, dtype: torch.dtype, backend_name: str) -> complex:
    """The factor of a PREMUL_SUM, in a form that torch.mul takes for `dtype`."""
    where = f"backend {backend_name}: PREMUL_SUM of {dtype}"
    picklable: Any = op  # which torch's annotations leave out
    state = picklable.__getstate__() if isinstance(op, ReduceOp) else None
    if not isinstance(state, tuple) or len(state) != 2:
        raise TypeError(
            f"{where} needs a factor: make the op with torch.distributed._make_nccl_premul_sum"
        )
    given: Any = state[1]
    if isinstance(given, Tensor):
        given = given.item()  # torch takes tensors of one element only
    if isinstance(given, complex) and not dtype.is_complex:
        raise TypeError(f"{where}: the factor {given} is complex")
    if not (dtype.is_floating_point or dtype.is_complex):
        if not float(given).is_integer():
            raise TypeError(f"{where}: the factor {given} is not a whole number")
        given = int(given)
    return cast("complex", given)
