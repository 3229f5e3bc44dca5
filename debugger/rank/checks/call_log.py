"""At level trace (TORCH_CPP_LOG_LEVEL=INFO, debug level DETAIL): each call is in the rank's log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...record.signature import Signature
from ..log import rank_log
from ..record import call_site
from ..record.recorder import GroupRecord, Known


def before_calls(record: GroupRecord) -> Callable[..., None] | None:
    """Returns what logs each call of the group; None while the level says otherwise."""
    if rank_log.file_level() != "trace":
        return None
    group = record.shown_name

    def before(_method: str, _args: tuple[Any, ...], known: Known, seq: int) -> None:
        frame = call_site.find(sys._getframe(1))
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
        signature = Signature.from_json(known.text)
        fields: dict[str, Any] = {"group": group, "op": signature.op, "call": str(signature)}
        if known.channel is None:
            fields["seq"] = seq
        rank_log.write("call", "trace", **fields, **rank_log.at(place))

    return before
