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

from ...errors.in_ranks import FindingRaised
from ...record.layout import Role
from ...record.notes import ForkedNote
from ...record.writing.writer import FlightWriter
from ..log.rank_log import report_own_fault
from ..record.recorder import Recorder
from ..torch_private.gloo import GlooSockets
from . import outstanding


class Forks:
    """The forks of this process: its groups, and what is to become of a child that uses one."""

    def __init__(self, recorder: Recorder, sockets: GlooSockets) -> None:
        self._recorder = recorder
        self._sockets = sockets
        self._groups: weakref.WeakSet[Any] = weakref.WeakSet()
        self._revive: Callable[[Role], None] | None = None
        self._of_own_ranks: list[Callable[[], None]] = []

    def watch_group(self, group: Any) -> None:
        """This group must not be used by forked children."""
        self._groups.add(group)

    def on_own_rank(self, adopt: Callable[[], None]) -> None:
        """`adopt` is called in a forked child that becomes a rank of its own, such as those of a
        launcher that has imported torch: what is the parent's must not be taken for its own."""
        self._of_own_ranks.append(adopt)

    def observe(
        self, directory: Path, identity: Callable[[], Mapping[str, Any]], begin: Callable[[], None]
    ) -> None:
        """From now on forked children are told apart. `identity` says what a record says of its
        process; `begin` starts the threads of a new rank."""

        def revive(role: Role) -> None:
            path = directory / "ranks" / f"pid-{os.getpid()}.flight"
            self._recorder.start(FlightWriter(path, role=role), identity())
            if role != Role.FORKED_CHILD:
                for adopt in self._of_own_ranks:
                    adopt()
            begin()

        def in_child() -> None:
            parent = self._recorder.writer.rank
            self._recorder.writer.detach()
            outstanding.forget()
            self._sockets.forget()
            self._revive = revive
            for group in list(self._groups):
                group.forbid(self._refusal(parent))

        os.register_at_fork(after_in_child=in_child)

    def revive(self, role: Role = Role.UNKNOWN) -> None:
        """Give a forked child a record of its own, if it has none."""
        if self._recorder.writer.detached and self._revive is not None:
            self._revive(role)

    def _refusal(self, parent: int) -> Callable[[str], NoReturn]:
        recorder = self._recorder

        def refuse(op: str) -> NoReturn:
            message = (
                f"a forked child (pid {os.getpid()}) of rank {parent} called {op} on a process "
                "group of its parent; start children with the 'spawn' method, or make a group in "
                "the child"
            )
            try:
                self.revive(Role.FORKED_CHILD)
                site = recorder.site(sys._getframe(3))
                recorder.note(ForkedNote(parent, op), message, site)
            except Exception as error:
                report_own_fault("reporting a forked child", error)
            raise FindingRaised("forked", message)

        return refuse
