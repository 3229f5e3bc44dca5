"""An all-to-all in which one rank sends other numbers of rows than its peers expect.

What a rank sends to itself never leaves the process, so no backend compares it: it must agree, or
memory would be overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from .call import Call
from .context import CannotHappen


def change_split(call: Call, to: Sequence[int] | None) -> Call:
    """Move a row from what one peer gets to what another does; `to`: the rows of all peers."""
    if call.op == "all_to_all":
        return _in_lists(call, to)
    if call.op != "all_to_all_single":
        raise CannotHappen(f"{call.op} has no splits", here=True)
    output, given, out_splits, in_splits, *rest = _with_splits(call)
    sends = _chosen(call, in_splits, to)
    receives = list(out_splits)
    own = call.group.rank()
    receives[own] = sends[own]
    return call.changed(
        _rows(output, sum(receives)), _rows(given, sum(sends)), receives, sends, *rest
    )


def split_shape(call: Call, to: Sequence[int] | None) -> Call:
    """An input with another number of rows, for an all-to-all of one tensor."""
    output, given, out_splits, in_splits, *rest = _with_splits(call)
    rows = int(to[0]) if to else sum(in_splits) + 1
    if to and tuple(to[1:]) != tuple(given.shape[1:]):
        raise CannotHappen(f"the rows of {call.op} keep their shape: only their number changes")
    peer = (call.group.rank() + 1) % call.group.size()
    sends = list(in_splits)
    sends[peer] += rows - sum(sends)
    if sends[peer] < 0 or peer == call.group.rank():
        raise CannotHappen(f"its other splits leave no room for {rows} rows", here=True)
    return call.changed(output, _rows(given, rows), list(out_splits), sends, *rest)


def _with_splits(call: Call) -> list[Any]:
    """The arguments, with splits where the program gave none."""
    output, given, out_splits, in_splits, *rest = call.given
    size = call.group.size()
    even_out = [output.shape[0] // size] * size
    even_in = [given.shape[0] // size] * size
    return [output, given, list(out_splits) or even_out, list(in_splits) or even_in, *rest]


def _in_lists(call: Call, to: Sequence[int] | None) -> Call:
    outputs, inputs, *rest = call.given
    if any(tensor.dim() == 0 for tensor in inputs):
        raise CannotHappen("tensors without dimensions have no rows to move", here=True)
    before = [tensor.shape[0] for tensor in inputs]
    own = call.group.rank()
    sends = _chosen(call, before, to)
    changed = [_rows(one, count) for one, count in zip(inputs, sends, strict=True)]
    received = list(outputs)
    received[own] = _rows(outputs[own], sends[own])
    return call.changed(received, changed, *rest)


def _chosen(call: Call, before: Sequence[int], to: Sequence[int] | None) -> list[int]:
    if to is not None:
        if len(to) != len(before) or list(to) == list(before):
            raise CannotHappen(
                f"this {call.op} has {len(before)} splits, {list(before)}: give as many, and others"
            )
        return list(to)
    own = call.group.rank()
    others = [rank for rank in range(len(before)) if rank != own]
    giver = max(others, key=lambda rank: before[rank], default=own)
    if giver == own or not before[giver]:
        raise CannotHappen(f"this {call.op} sends no row that could go to another rank", here=True)
    taker = next((rank for rank in others if rank != giver), own)
    sends = list(before)
    sends[giver] -= 1
    sends[taker] += 1
    return sends


def _rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """A new tensor with so many rows, the first of them the tensor's."""
    shape = (rows, *tensor.shape[1:])
    made = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    count = min(prod(shape), tensor.numel())
    made.view(-1)[:count] = tensor.detach().reshape(-1)[:count]
    return made
