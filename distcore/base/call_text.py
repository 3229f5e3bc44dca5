"""The text of a call: the words that the ranks must agree on, and that their errors show.

Only what must be equal on all ranks is in it: `all_reduce(sum, float32[1024])`, with element
counts, for equal counts in another shape are no mistake; no splits, for they differ by pair; no
PREMUL_SUM factor, for each rank may have its own. Roots are global ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from zlib import crc32

import torch
import torch.distributed as dist

REDUCE_OPS: dict[int, str] = {
    int(member.value): name.lower() for name, member in dist.ReduceOp.RedOpType.__members__.items()
}
"""By torch's number of the op, which is also the hash of its ReduceOp objects."""

_LISTED = 8
"""The most tensors of a list that are printed; a checksum stands for the rest."""


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`"""
    return str(dtype).removeprefix("torch.")


@lru_cache(maxsize=4096)
def reducing(name: str, op: int, dtype: torch.dtype, count: int) -> str:
    """`all_reduce(sum, float32[1024])`; `op` is torch's number."""
    return f"{name}({REDUCE_OPS.get(op, op)}, {dtype_name(dtype)}[{count}])"


@lru_cache(maxsize=4096)
def moving(name: str, dtype: torch.dtype, count: int) -> str:
    """`all_gather(float32[5])`"""
    return f"{name}({dtype_name(dtype)}[{count}])"


@lru_cache(maxsize=4096)
def rooted(name: str, role: str, root: int, dtype: torch.dtype, count: int) -> str:
    """`broadcast(src=0, float32[12])`; `root` is a global rank, `role` src or dst."""
    return f"{name}({role}={root}, {dtype_name(dtype)}[{count}])"


@lru_cache(maxsize=4096)
def reducing_to(root: int, op: int, dtype: torch.dtype, count: int) -> str:
    """`reduce(dst=0, sum, float32[12])`; `root` is a global rank."""
    return f"reduce(dst={root}, {REDUCE_OPS.get(op, op)}, {dtype_name(dtype)}[{count}])"


@lru_cache(maxsize=256)
def uncounted(name: str, dtype: torch.dtype) -> str:
    """`all_to_all_single(float32)`"""
    return f"{name}({dtype_name(dtype)})"


def of_list(name: str, op: int | None, dtype: torch.dtype, counts: Sequence[int]) -> str:
    """`all_gather(float32[5])`, or `all_gather(float32[5, 3])` for a list of tensors that differ in
    size, in the ranks' order."""
    if len(set(counts)) == 1:
        return (
            moving(name, dtype, counts[0]) if op is None else reducing(name, op, dtype, counts[0])
        )
    reduced = "" if op is None else f"{REDUCE_OPS.get(op, op)}, "
    return f"{name}({reduced}{dtype_name(dtype)}[{_shortened([str(c) for c in counts])}])"


def coalesced(name: str, op: int | None, facts: Sequence[tuple[torch.dtype, int]]) -> str:
    """`all_reduce_coalesced(sum, 3 x float32[4], int64[1])`"""
    reduced = "" if op is None else f"{REDUCE_OPS.get(op, op)}, "
    return f"{name}({reduced}{_coalesced(tuple(facts))})"


@lru_cache(maxsize=256)
def _coalesced(facts: tuple[tuple[torch.dtype, int], ...]) -> str:
    parts = []
    for (dtype, count), run in groupby(facts):
        times = sum(1 for _ in run)
        one = f"{dtype_name(dtype)}[{count}]"
        parts.append(one if times == 1 else f"{times} x {one}")
    return _shortened(parts)


def _shortened(parts: Sequence[str]) -> str:
    if len(parts) <= _LISTED:
        return ", ".join(parts)
    rest = ", ".join(parts[_LISTED:])
    return (
        ", ".join(parts[:_LISTED])
        + f", and {len(parts) - _LISTED} more (checksum {crc32(rest.encode()):08x})"
    )


@lru_cache(maxsize=4096)
def tensor(dtype: torch.dtype, count: int) -> str:
    """`float32[4]`"""
    return f"{dtype_name(dtype)}[{count}]"


@lru_cache(maxsize=4096)
def message(name: str, peer: int | None, tag: int, what: str) -> str:
    """`send(dst=1, float32[4], tag=0)`; `peer` is a global rank, None any; `what`: `tensor`'s."""
    role = "dst" if name == "send" else "src"
    whom = "any" if peer is None else peer
    return f"{name}({role}={whom}, {what}, tag={tag})"
