"""A forked child must not use its parent's groups: their connections and threads are not its.

Children that never touch a group (DataLoader workers) are fine and stay silent. A child that makes
a group of its own becomes a rank of its own, with a record of its own.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from ...record.layout import Role
from ...record.writer import FlightWriter
from ..record.errors import FindingRaised
from ..record.recorder import Recorder, report_own_fault
from ..torch_private import gloo_sockets
from . import gpu_completion, outstanding

_groups: weakref.WeakSet[Any] = weakref.WeakSet()
_revive: Callable[[Role], None] | None = None


def watch_group(group: Any) -> None:
    """This group must not be used by forked children."""
    _groups.add(group)


def observe(
    recorder: Recorder,
    directory: Path,
    identity: Callable[[], Mapping[str, Any]],
    begin: Callable[[], None],
) -> None:
    """From now on forked children are told apart. `identity` says what a record says of its
    process; `begin` starts the threads of a new rank."""

    def in_child() -> None:
        global _revive
        parent = recorder.writer.rank
        recorder.writer.detach()
        outstanding.forget()
        gpu_completion.forget()
        gloo_sockets.forget()

        def revive(role: Role) -> None:
            path = directory / "ranks" / f"pid-{os.getpid()}.flight"
            recorder.start(FlightWriter(path, role=role), identity())
            begin()

        _revive = revive
        for group in list(_groups):
            group.forbid(_refusal(recorder, parent))

    os.register_at_fork(after_in_child=in_child)


def revive(recorder: Recorder, role: Role = Role.UNKNOWN) -> None:
    """Give a forked child a record of its own, if it has none."""
    if recorder.writer.detached and _revive is not None:
        _revive(role)


def _refusal(recorder: Recorder, parent: int) -> Callable[[str], NoReturn]:
    def refuse(op: str) -> NoReturn:
        message = (
            f"a forked child (pid {os.getpid()}) of rank {parent} called {op} on a process group "
            "of its parent; start children with the 'spawn' method, or make a group in the child"
        )
        try:
            revive(recorder, Role.FORKED_CHILD)
            site = recorder.site(sys._getframe(3))
            recorder.note("forked", message, site, parent_rank=parent, op=op)
        except Exception as error:
            report_own_fault("reporting a forked child", error)
        raise FindingRaised("forked", message)

    return refuse
