"""From which lines of the program a graph of torch.compile has the call that it makes."""

from __future__ import annotations

import re
from itertools import islice
from types import FrameType
from typing import Any

_ENTRY = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_COLLECTIVES = "c10d"
"""In the name of every operator of torch.distributed's."""


def lines_in_graph(frame: FrameType) -> list[tuple[str, int, str]]:
    """File, line and function of all callers, the innermost first, for the frame of a graph's code
    that makes a call; none where that is not on record, or the graph is made otherwise than known.
    """
    try:
        values = frame.f_locals
        graph: Any = values.get("self")
        if type(values) is dict:
            values.clear()  # a copy, before Python 3.13, which would keep what the graph lets go
        first = getattr(graph, "_prologue_start", 0)
        index = getattr(graph, "_lineno_map", {})[frame.f_lineno - first]
        node = next(islice(graph.graph.nodes, index, None))
        if _COLLECTIVES not in str(node.target):
            return []
        entries = _ENTRY.findall(node.stack_trace)
    except Exception:
        return []
    return [(file, int(line), function) for file, line, function in reversed(entries)]
