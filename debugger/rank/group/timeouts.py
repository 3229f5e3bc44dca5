"""Group timeouts stand still while a rank of this host is at a breakpoint.

What distcore waits for (its groups, the agreement at DETAIL, monitored barriers) asks here before
it gives up. gloo asks nobody, and what it has begun to wait for cannot be put off. So where a
breakpoint may come, gloo gets a timeout that never ends, and the group's own is kept here: with
every heartbeat the waits are looked at, and the group's connections are shut down when one has
lasted too long, which is what gloo does itself.

A rank may also be asked to stop while it runs. Then the groups that there are get such a timeout,
before the rank stops; a call that waits already keeps its own.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from os import getpid
from pathlib import Path
from time import monotonic_ns
from typing import Any

from distcore.base import deadline

from ...record.requests.supervision import any_asked, any_stop
from ..log.rank_log import report_own_fault
from ..record import call_site, waiting
from ..record.recorder import GroupRecord, Recorder
from ..torch_private.gloo import GlooSockets
from ..torch_private.groups import prolong
from . import outstanding

ASKING = ("DISTDEBUG_BREAK", "DISTDEBUG_PDB", "DISTDEBUG_TUI")
"""Variables that are set where the command line asked for breakpoints, or for the app, that may."""
_CALLS = ("breakpoint(", "set_trace(")


def expected() -> bool:
    """Whether this program may come to a breakpoint: the command line asks for some, or a module
    of the user's that is loaded calls for one."""
    return any(os.environ.get(name) for name in ASKING) or any(
        _mentions_breakpoint(file) for file in _files_of_the_user()
    )


def _files_of_the_user() -> Iterator[str]:
    """Yields the files of the loaded modules that are the user's. torch has thousands: modules of a
    package that is not the user's are passed over without a look."""
    looked_into: dict[str, bool] = {}
    for name in list(sys.modules):
        package = name.partition(".")[0]
        if package not in looked_into:
            file = _file_of(package)
            looked_into[package] = not file or call_site.frame_kind(file) == call_site.USER
        if looked_into[package]:
            file = _file_of(name)
            if file and call_site.frame_kind(file) == call_site.USER:
                yield file


def _file_of(module: str) -> str:
    return getattr(sys.modules.get(module), "__file__", None) or ""


@functools.cache
def _mentions_breakpoint(file: str) -> bool:
    return any(call in line for line in linecache.getlines(file) for call in _CALLS)


class Timeouts:
    """The time limits of this process's groups."""

    def __init__(self, recorder: Recorder, directory: Path, sockets: GlooSockets) -> None:
        self._recorder = recorder
        self._sockets = sockets
        self._directory = directory
        self._owner = getpid()
        self._off = False
        self._groups: dict[int, GroupRecord] = {}
        self._over: dict[int, int] = {}
        """By group, how many of its collectives are no longer under way."""
        self._waited_ns: dict[int, int] = {}
        self._looked_ns = monotonic_ns()
        self._pauses: list[tuple[float, float]] = []
        self._paused_since: float | None = None
        self._asked = False
        """A rank of this host has been asked to stop: it may be again."""
        self._left_alone: weakref.WeakKeyDictionary[GroupRecord, weakref.ref[Any]] = (
            weakref.WeakKeyDictionary()
        )
        """The groups whose timeout gloo keeps."""
        deadline.set_held(self.held_s)

    def take_over(self, record: GroupRecord, inner: Any) -> None:
        """Keep the timeout of this new group, if it is gloo's and a breakpoint may come."""
        if self._sockets.belong_to(record.name):
            if self._asked or expected():
                self._prolong(record, inner)
            else:
                self._left_alone[record] = weakref.ref(inner)

    def _prolong(self, record: GroupRecord, inner: Any) -> None:
        """Keep this group's timeout from now on, if it is gloo's."""
        if prolong(inner, waiting.ENDLESS):
            record.kept = True
            for calls in list(record.known.values()):
                for known in list(calls.values()):
                    if known.wait is waiting.whole:
                        known.wait = waiting.long
            self._groups[record.slot.index] = record

    # -- who is held ---------------------------------------------------------------------------

    def held_s(self, began: float, now: float) -> float:
        """Returns for how long of that time a rank was at a breakpoint."""
        self._look_for_stops(now)
        spans = list(self._pauses)
        if self._paused_since is not None:
            spans.append((self._paused_since, now))
        return sum(max(0.0, min(end, now) - max(start, began)) for start, end in spans)

    def _look_for_stops(self, now: float) -> bool:
        stands = any_stop(self._directory)
        since = self._paused_since
        if stands and since is None:
            self._paused_since = now
        elif since is not None and not stands:
            self._paused_since = None
            self._pauses.append((since, now))
        return stands

    # -- gloo ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Called with every heartbeat."""
        if self._off:
            return
        try:
            self._look()
        except Exception as error:
            self._off = True
            report_own_fault("keeping the timeouts of groups", error)

    def _look(self) -> None:
        if getpid() != self._owner:
            self._owner = getpid()
            self._groups.clear()  # in a forked child, these were its parent's
            self._left_alone.clear()
        now_ns = monotonic_ns()
        # Time in which this process could not run (it was stopped by a signal) is not counted.
        step_ns = min(now_ns - self._looked_ns, 10**9)
        self._looked_ns = now_ns
        stands = self._look_for_stops(now_ns / 1e9)
        if stands:
            step_ns = 0
        if not self._asked and (stands or any_asked(self._directory)):
            self._asked = True
            for left, made_group in list(self._left_alone.items()):
                inner = made_group()
                if inner is not None:
                    self._prolong(left, inner)
            self._left_alone.clear()
        if not self._groups:
            return
        made = {index: record.slot.issued for index, record in self._groups.items()}
        found = self._open()
        under_way = Counter(index for index, is_message in found.values() if not is_message)
        over = {index: issued - under_way[index] for index, issued in made.items()}
        moved = {index for index, ended in over.items() if self._over.get(index) != ended}
        self._over = over
        before, self._waited_ns = self._waited_ns, {}
        for number, (index, _) in found.items():
            fresh = number not in before or index in moved
            waited_ns = 0 if fresh else before[number] + step_ns
            self._waited_ns[number] = waited_ns
            record = self._groups.get(index)
            if record is not None and waited_ns >= record.timeout_s * 1e9:
                self._expire(record)

    def _open(self) -> dict[int, tuple[int, bool]]:
        """The calls that somebody waits for, or (collectives) that are under way; their groups, and
        whether they are messages."""
        writer = self._recorder.writer
        numbers = {number for _, number in writer.waited_for()}
        found = {}
        for number in numbers | set(outstanding.works):
            index, is_message = writer.group_of(number)
            if index in self._groups and (number in numbers or not is_message):
                found[number] = (index, is_message)
        return found

    def _expire(self, record: GroupRecord) -> None:
        """End the group's calls in gloo's own way, with its own words where we raise them."""
        del self._groups[record.slot.index]
        words = f"Timed out waiting {record.timeout_s * 1000:.0f}ms for operation to complete"
        writer = self._recorder.writer
        for ident, number in writer.waited_for():
            if writer.group_of(number)[0] == record.slot.index:
                self._recorder.waits.expired[ident] = words
        self._sockets.shut_down(record.name)
