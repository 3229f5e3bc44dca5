"""Puts on record what a wrapper pairs by position: DDP and FSDP bring the first tensor of each rank
together, then the second, whatever these are called there.

Each rank notes its order once, and sends nothing: readers compare it, as they do calls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from ...record.notes import PairedNote
from ...record.signature import hash64
from ..log.rank_log import report_own_fault
from ..record.recorder import Recorder

_MOST_TEXT = 1 << 14
_MOST_NOTES = 32
"""Together half of what the record has room for."""


class PositionPairing:
    """The pairing by position in this process's wrappers."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._noted: set[tuple[object, ...]] = set()

    def made(self, model: Any) -> None:
        """A model of DDP was made."""
        ignored = model.parameters_to_ignore
        named = (row for row in model.module.named_parameters() if row[0] not in ignored)
        self.pair("DistributedDataParallel", model.process_group, named)

    def pair(self, wrapper: str, group: Any, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """A wrapper pairs these tensors with those of the group's other ranks, in their order."""
        record = getattr(group, "_record", None)
        if record is None or len(record.ranks) < 2 or len(self._noted) == _MOST_NOTES:
            return
        try:
            rows = []
            for name, one in named:  # `heads.rain.weight float32[1,8]`
                dtype, shape = str(one.dtype).removeprefix("torch."), ",".join(map(str, one.shape))
                frozen = "" if one.requires_grad else " frozen"
                rows.append((name, f"{name} {dtype}[{shape}]{frozen}"))
            order = hash64(tuple(text for _, text in rows))
            identity = (record.name, record.incarnation)
            key = (wrapper, identity, record.slot.issued, order)
            if key not in self._noted:  # the layers of a model are alike
                self._noted.add(key)
                names = hash64(tuple(sorted(name for name, _ in rows)))
                text = "\n".join(text for _, text in rows)[:_MOST_TEXT]
                note = PairedNote(*key, names=names, rows=text, count=len(rows))
                self._recorder.note(note, "", self._recorder.site(sys._getframe(1)))
        except Exception as error:
            report_own_fault("comparing what is paired by position", error)
