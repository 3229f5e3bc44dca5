"""The one way to describe, compare, print and weigh a call: the signature, which of its fields must
agree, and the one table of dtypes.

Ranks of a group that call the same collective must agree on some fields of it and may differ in
others: a root's list exists on the root alone, the splits of an all-to-all agree pair by pair.
`ops.OPS` is the one table that says so.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from math import prod
from typing import Any, NamedTuple

from .ops import op_of
from .safe_files import whole

Shape = tuple[int, ...]
Tensor = tuple[str, Shape]  # dtype without "torch.", sizes

ANY_SOURCE = -1
REDUCE_OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
SUMS = frozenset({"sum", "avg", "premul_sum"})
"""Reduce ops that add up what the ranks contribute; all but the first scale it, too."""
MASK = (1 << 64) - 1
MOST_DIMENSIONS = 256
"""torch itself takes 64 in most places."""
CHAIN_STEP = 0x2C1B3C6D
"""The running hash of a sequence is a polynomial in it, mod 2**64, with the 64-bit hashes of its
values for coefficients. Odd, so that nothing is lost of what was before, and below 2**30: Python
multiplies by such a number in half the time."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The description of a call as a rank made it. Ranks (`root`, `peer`) are global ranks.

    `tensors` are the principal ones: what the rank contributes, or, where it contributes
    nothing (scatter, recv), what it receives. `others` are the tensors on the other side.
    `sends` and `receives` are element counts per group rank (all-to-all only). `device` is the
    tensors' device type where the group has another backend for each, and "" elsewhere.
    """

    op: str
    tensors: tuple[Tensor, ...] = ()
    others: tuple[Tensor, ...] = ()
    reduce_op: str = ""
    root: int | None = None
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()
    peer: int | None = None
    tag: int = 0
    device: str = ""

    def __str__(self) -> str:
        parts = []
        if self.root is not None:
            parts.append(f"{op_of(self.op).root or 'root'}={self.root}")
        if self.reduce_op:
            parts.append(self.reduce_op)
        if self.peer is not None:
            word = "dst" if self.op == "send" else "src"
            parts.append(f"{word}={'any' if self.peer == ANY_SOURCE else self.peer}")
        if self.tensors:
            parts.append(describe_tensors(self.tensors))
        if self.tag:
            parts.append(f"tag={self.tag}")
        if self.sends and not _even(self.sends):
            parts.append(f"sends={list(self.sends)}")
        if self.receives and not _even(self.receives):
            parts.append(f"receives={list(self.receives)}")
        return f"{self.op}({', '.join(parts)})"

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dtype for dtype, _ in self.tensors)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(shape for _, shape in self.tensors)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(prod(shape) for _, shape in self.tensors)

    def to_json(self) -> str:
        """A compact JSON list, in the order of the fields; trailing defaults are left out."""
        row = [getattr(self, name) for name in self.__slots__]
        while len(row) > 1 and row[-1] == _DEFAULTS[len(row) - 1]:
            row.pop()
        return json.dumps(row, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """The inverse of `to_json`. Raises ValueError on anything else."""
        try:
            row = json.loads(text)
            row += _DEFAULTS[len(row) :]
            return cls(
                op=str(row[0]),
                tensors=_tensors(row[1]),
                others=_tensors(row[2]),
                reduce_op=str(row[3]),
                root=None if row[4] is None else whole(row[4]),
                sends=tuple(whole(n) for n in row[5]),
                receives=tuple(whole(n) for n in row[6]),
                peer=None if row[7] is None else whole(row[7]),
                tag=whole(row[8]),
                device=str(row[9]),
            )
        except (TypeError, IndexError, KeyError, OverflowError) as error:
            raise ValueError(f"not a signature: {text[:80]!r}") from error


_DEFAULTS = [one.default for one in fields(Signature)]


def describe_tensors(tensors: tuple[Tensor, ...]) -> str:
    """`float32[4,8]`, `3 x float32[8]`, or `float32[8], int64[2], ... (9 tensors)`."""
    words = [f"{dtype}[{','.join(map(str, shape))}]" for dtype, shape in tensors]
    if len(words) > 1 and len(set(words)) == 1:
        return f"{len(words)} x {words[0]}"
    if len(words) > 3:
        return f"{', '.join(words[:3])}, ... ({len(words)} tensors)"
    return ", ".join(words)


def agreement_key(signature: Signature) -> tuple[object, ...]:
    """The fields that every rank of the group must give alike for the call to be right."""
    rule = op_of(signature.op)
    key: list[object] = [signature.op]
    if rule.root:
        key.append(signature.root)
    if rule.reduces:
        key.append(signature.reduce_op)
    if rule.counts:
        key += [signature.dtypes, _agreeing_counts(signature)]
    elif rule.splits:
        key.append(tuple(sorted(set(signature.dtypes))))
    if signature.device:
        key.append(signature.device)
    return tuple(key)


def exact_key(signature: Signature) -> tuple[object, ...]:
    """`agreement_key` and the shapes: equal counts in another shape are only suspicious."""
    rule = op_of(signature.op)
    shapes = _agreeing_shapes(signature) if rule.counts else ()
    return (*agreement_key(signature), shapes)


def disagreement(one: Signature, other: Signature) -> str | None:
    """The finding kind for two signatures at one sequence number; None where they agree: of several
    differences the one that decides whether data can be exchanged at all."""
    return next(iter(disagreements(one, other)), None)


def disagreements(one: Signature, other: Signature) -> Iterator[str]:
    """The finding kinds of all differences, the one that decides first.

    Splits of an all-to-all are a matter of pairs: see `split_contribution`.
    """
    rule = op_of(one.op)
    if one.op != other.op:
        yield "op_mismatch"
        return
    if rule.root and one.root != other.root:
        yield "root_mismatch"
    if rule.counts and _agreeing_counts(one) != _agreeing_counts(other):
        yield "shape_mismatch"
    dtypes = (rule.counts or rule.splits) and set(one.dtypes) != set(other.dtypes)
    if dtypes or one.device != other.device:
        yield "dtype_mismatch"  # to torch a tensor's type is both: torch.cuda.FloatTensor
    if rule.reduces and one.reduce_op != other.reduce_op:
        yield "reduce_op_mismatch"


def gravity(one: Signature, other: Signature) -> int:
    """The smaller, the more the two differ: where ranks disagree in several ways, that of the
    smallest decides what the call's finding is. In the order of `disagreements`."""
    differ = (
        one.op != other.op,
        one.root != other.root,
        _agreeing_counts(one) != _agreeing_counts(other),
        set(one.dtypes) != set(other.dtypes) or one.device != other.device,
        one.reduce_op != other.reduce_op,
        True,
    )
    return differ.index(True)


def hash64(key: object) -> int:
    """A 64-bit hash of a key of strings, numbers and tuples; the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")


def place_key(sites: Iterable[tuple[str, int, str, str]]) -> int:
    """Returns the number by which the place of a call is compared, which is the same on all hosts,
    wherever the program lies there, and never 0. `sites`: file, line, function, and the line of a
    package that it led to, of the user's line and those that led to it, innermost first."""
    return hash64([(*re.split(r"[/\\]", file)[-2:], *others) for file, *others in sites]) or 1


def agreement_hash(signature: Signature) -> int:
    """Returns what a call adds to the chain of its group."""
    return hash64(agreement_key(signature))


def exact_hash(signature: Signature) -> int:
    """The same with the shapes; equal to it where they say no more than the counts do, as those of
    one dimension, which gradients in buckets have: such a call adds nothing to the group's `exact`,
    of which each other one adds its hash `2 * seq + 1` times."""
    rule = op_of(signature.op)
    flat = not rule.counts or all(len(shape) == 1 for shape in _agreeing_shapes(signature))
    return hash64((agreement_key if flat else exact_key)(signature))


def split_contribution(signature: Signature, group_rank: int) -> int:
    """This rank's share in the pair balance of an all-to-all.

    What rank a sends to b is added on a and what b expects from a is subtracted on b, so that
    over all ranks of the group the shares add up to 0 (mod 2**64) exactly when every pair agrees.
    A rank multiplies its share by `2 * seq + 1`, so that calls do not cancel each other.
    """
    if not op_of(signature.op).splits:
        return 0
    total = 0
    for peer, count in enumerate(signature.sends):
        total += hash64((group_rank, peer, count))
    for peer, count in enumerate(signature.receives):
        total -= hash64((peer, group_rank, count))
    return total & MASK


def _agreeing_counts(signature: Signature) -> tuple[int, ...]:
    """Element counts on which all ranks must agree.

    An all_gather whose outputs differ in size is legal where the backend allows it: then each
    rank contributes its own size, and all must agree on the sizes of the outputs.
    """
    outputs = _uneven_outputs(signature)
    return tuple(map(prod, outputs)) if outputs else signature.counts


def _agreeing_shapes(signature: Signature) -> tuple[Shape, ...]:
    """The shapes behind `_agreeing_counts`."""
    return _uneven_outputs(signature) or signature.shapes


def _uneven_outputs(signature: Signature) -> tuple[Shape, ...]:
    """The outputs of an all_gather that are meant to differ in size; () for every other call."""
    if signature.op != "all_gather":
        return ()
    outputs = tuple(shape for _, shape in signature.others)
    return () if _even(tuple(map(prod, outputs))) else outputs


def _even(counts: tuple[int, ...]) -> bool:
    return len(set(counts)) <= 1


def _tensors(rows: Any) -> tuple[Tensor, ...]:
    if any(len(sizes) > MOST_DIMENSIONS for _, sizes in rows):
        raise ValueError("a tensor has too many dimensions")
    return tuple((str(dtype), tuple(map(whole, sizes))) for dtype, sizes in rows)


class Dtype(NamedTuple):
    """`scalar` is torch's name of it in C++, which dumps, traces and errors show."""

    item_bytes: int
    scalar: str


DTYPES: dict[str, Dtype] = {
    "float64": Dtype(8, "Double"),
    "float32": Dtype(4, "Float"),
    "float16": Dtype(2, "Half"),
    "bfloat16": Dtype(2, "BFloat16"),
    "complex128": Dtype(16, "ComplexDouble"),
    "complex64": Dtype(8, "ComplexFloat"),
    "int64": Dtype(8, "Long"),
    "int32": Dtype(4, "Int"),
    "int16": Dtype(2, "Short"),
    "int8": Dtype(1, "Char"),
    "uint8": Dtype(1, "Byte"),
    "bool": Dtype(1, "Bool"),
}
"""Those that all backends know."""
_NAMES = {row.scalar: name for name, row in DTYPES.items()}
_BYTES = {
    word: row.item_bytes for name, row in DTYPES.items() for word in (row.scalar.lower(), name)
}
_BITS = re.compile(r"\d+")


def scalar_of(dtype: str) -> str:
    """Returns torch's name in C++; of a dtype that the table does not have, its name in Python."""
    row = DTYPES.get(dtype)
    return dtype if row is None else row.scalar


def name_of(scalar: str) -> str:
    """Returns the inverse of `scalar_of`; other libraries dump names in small letters."""
    return _NAMES.get(scalar, scalar.lower())


@functools.lru_cache(maxsize=256)
def item_bytes(dtype: str) -> int:
    """Returns the bytes of one element: 4 of float32, 1 of float8_e4m3fn; 0 where none is told."""
    known = _BYTES.get(dtype)
    if known is not None:
        return known
    found = _BITS.search(dtype)
    return 0 if found is None else max(int(found[0][:4]) // 8, 1)


def tensors_bytes(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes of all tensors together."""
    return sum(item_bytes(dtype) * prod(shape) for dtype, shape in tensors)


def larger_side_bytes(signature: Signature) -> int:
    """The larger of what a rank contributes to the call and what it receives: what has to move
    before the call can be over for it."""
    return max(tensors_bytes(signature.tensors), tensors_bytes(signature.others))


def call_bytes(signature: Signature) -> int:
    """Returns the bytes that a rank contributes to the call or, where it contributes nothing,
    receives."""
    return tensors_bytes(signature.tensors)
