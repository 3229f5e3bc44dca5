"""Torch's own tools that the layer stands in for: the debug level, the debugger, the compiler; and
the lines of the program in a graph of torch.compile's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from itertools import islice
from types import FrameType
from typing import Any

from ...hook.loading import when_imported
from .probe import DIST, Private, WatchedPart, dist, patch

_PDB = "_make_distributed_pdb" if hasattr(dist, "_make_distributed_pdb") else "_DistributedPdb"
"""The name that torch has for it since 2.13, or had before."""
PDB = WatchedPart(
    "torch_breakpoint",
    "torch.distributed.breakpoint is torch's own",
    Private(DIST, _PDB),
)
_RULES = "torch._dynamo.trace_rules"
UNCOMPILED = WatchedPart(
    "compiled_programs",
    "torch.compile may look into the groups that stand before a program's own",
    Private(_RULES, "SKIP_DIRS", kind=list),
    Private(_RULES, "_recompile_re", (), called=True),
)


def keep_uncompiled(directories: list[str]) -> None:
    """Let torch.compile leave alone the code in these directories, when it is ever loaded. It would
    else look into groups that a compiled program's C++ code calls, and fail."""

    def add(rules: Any) -> None:
        if UNCOMPILED.works:
            try:
                rules.SKIP_DIRS.extend(directories)
                rules._recompile_re()
            except Exception as error:
                UNCOMPILED.switch_off(f"torch.compile was not told: {error!r}")

    when_imported("torch._dynamo.trace_rules", add)


@PDB
def on_breakpoint(make_pdb: Callable[[], Any]) -> None:
    """Let `torch.distributed.breakpoint` stop in what `make_pdb` makes."""
    patch(dist, _PDB, lambda _original: lambda: make_pdb())


def take_debug_level(
    current: Callable[[], str], choose: Callable[[str], None], choose_default: Callable[[], None]
) -> str:
    """Make the public functions of the debug level answer `current()` and call `choose(name)`.
    torch's own code goes on asking its own level, which stays below DETAIL; that level's name now.

    `choose_default` is what set_debug_level_from_env does where the variable is not set.
    """
    levels = dist.DebugLevel
    own_set, own_get, own_from_env = (
        dist.set_debug_level,
        dist.get_debug_level,
        dist.set_debug_level_from_env,
    )

    def set_debug_level(level: Any) -> None:
        own_set(levels.INFO if level == levels.DETAIL else level)
        choose(level.name)

    def set_debug_level_from_env() -> None:
        if "TORCH_DISTRIBUTED_DEBUG" in os.environ:
            own_from_env()
            set_debug_level(own_get())
        else:
            own_set(levels.INFO if found == levels.DETAIL else found)
            choose_default()

    found = own_get()
    if found == levels.DETAIL:
        own_set(levels.INFO)  # the program has set the variable before it imported torch
    patch(dist, "get_debug_level", lambda _own: lambda: getattr(levels, current()))
    patch(dist, "set_debug_level", lambda _own: set_debug_level)
    patch(dist, "set_debug_level_from_env", lambda _own: set_debug_level_from_env)
    return str(found.name)


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
