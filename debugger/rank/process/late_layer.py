"""The layer of a process that ran without it until now: hooks on its groups, a record, a heartbeat.

It says in the run directory how far it is (`record.requests.late_install`), and does nothing to the
program but look: no verdict is raised here, no signal is caught, no timeout is changed, and no
group is replaced. Where the install is given up before all ranks have come, its hooks are taken out
again.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...record.limits import POLL_EVERY_S
from ...record.requests import late_install
from ...record.requests.late_install import HOOKED, PAST, RECORDING, Answer
from ...record.writing.flight_file import place_of_this_process
from ...record.writing.writer import FlightWriter
from ..group import outstanding
from ..group.hooked_group import NOT_SEEN, HookedGroup
from ..group.outstanding import UnwaitedWork
from ..limits import SELDOM_S, SOON_S
from ..log.rank_log import report_own_fault
from ..record.recorder import Recorder, identity
from ..torch_private import group_hooks
from ..torch_private.gloo import GlooSockets
from .exceptions import Exceptions
from .exits import Exits
from .heartbeat import Heartbeat
from .main_thread import MainThread, MainThreadCall, others_in_torch
from .verdict import VerdictWatch


def begin(run: str) -> None:
    """Install it, in a thread of its own, for as long as that takes. Raises RuntimeError with a
    sentence where it cannot be."""
    directory = Path(run)
    why = group_hooks.unhooked()
    if why:
        raise RuntimeError(why)
    layer = LateLayer(directory)
    try:
        layer.come()
    except BaseException:
        layer.go()
        raise


class LateLayer:
    """Everything that observes this process. `directory`: of the run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        found = group_hooks.found_groups()
        self._backends = sorted({one.backend for one in found})
        if not os.environ.get("TORCH_FR_BUFFER_SIZE", "1").strip("0 "):
            raise RuntimeError(_NO_RING)
        group_hooks.recorded(self._backends)  # raises where there is none
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        writer = FlightWriter(place_of_this_process(directory))
        self.recorder = Recorder(writer, identity())
        self.recorder.claim(
            self.rank, self.world_size, int(os.environ.get("LOCAL_RANK", -1)), 0, "installed", True
        )
        writer.take_name(directory / "ranks" / f"{self.rank}.flight")
        self.groups: dict[Any, HookedGroup] = {}
        self._hooked_ns = 0
        self._paused_ms = 0.0
        self._in = False
        main_thread = MainThread()  # which is asked nothing: no verdict is raised here
        verdict = VerdictWatch(directory, main_thread, GlooSockets())
        exceptions = Exceptions(self.recorder, [])
        self._exits = Exits(self.recorder, exceptions, verdict, None)
        self._unwaited = UnwaitedWork(self.recorder)
        self._heartbeat = Heartbeat(self.recorder, self._unwaited, lambda: None)

    # -- coming --------------------------------------------------------------------------------

    def come(self) -> None:
        """Set the hooks, say so, and begin to record with the other ranks."""
        if not self._in_main_thread(self._hook, self._is_wanted):
            self.go()
            return
        ring = group_hooks.recorded(self._backends)
        # Keeps what torch's flight recorder has of the time before, for its later diagnosis.
        with contextlib.suppress(Exception):
            dumps = group_hooks.dumped(self._backends)
            largest = max(dumps, key=len, default=b"")
            if largest:
                (self.directory / PAST / f"dump_{self.rank}").write_bytes(largest)
        seen = {}
        for name in [one.found.name for one in list(self.groups.values())]:
            # A group that was unused for long: the ranks that use it next tell.
            unused = ring.wrapped and name not in ring.entries
            seen[name] = 0 if unused else ring.last_before(name, self._hooked_ns)
        self._say(HOOKED, seen)
        start = None
        while start is None and self._is_wanted():
            start = late_install.started(self.directory)
            if start is None:
                time.sleep(POLL_EVERY_S)
        if start is None:
            self.go()
            return
        self.recorder.part_off("calls", f"not seen by torch's hooks: {NOT_SEEN}", said=True)
        self._exits.observe()
        atexit.register(self._end)
        if multiprocessing.parent_process() is not None:
            # Its process object has come past what `Exits` would put around it.
            multiprocessing.util.Finalize(None, self._end_of_child, exitpriority=0)
        os.register_at_fork(after_in_child=self._in_child)
        self._heartbeat.start()
        self._record_from(start)

    def _hook(self) -> None:
        """Sets the hooks, in the main thread, where no thread makes a call."""
        for found in group_hooks.found_groups():
            self._take(found)
        group_hooks.on_new_groups(self._take_new)
        group_hooks.on_destroyed(self._destroyed)
        self._hooked_ns = time.time_ns()
        self._in = True

    def _take(self, found: group_hooks.FoundGroup) -> None:
        record = self.recorder.new_group(
            found.name, found.desc, found.ranks, found.group.rank(), found.backend, None
        )
        if record is None:
            raise RuntimeError(f"there is no room in a record for its groups ({found.name!r})")
        made = HookedGroup(self.recorder, found, record)
        made.hook()
        self.groups[found.group] = made
        self.recorder.group_ready(record)

    def _take_new(self) -> None:
        """A group was made, of which nobody has made a call yet. Raises nothing."""
        try:
            for found in group_hooks.found_groups():
                if self._in and found.group not in self.groups:
                    if group_hooks.is_python_group(found.group):
                        self.recorder.recording_is_off(f"recording of group {found.name!r}")
                        continue
                    self._take(found)
                    self._backends = sorted({*self._backends, found.backend})
        except Exception as error:
            self.recorder.recording_is_off("recording of new groups")
            report_own_fault("recording of new groups", error)

    def _destroyed(self, group: Any) -> None:
        """Raises nothing."""
        with contextlib.suppress(Exception):
            for one in list(self.groups):
                if group is None or one is group:
                    made = self.groups.pop(one)
                    made.unhook()
                    self.recorder.group_destroyed(made.record)

    def _record_from(self, start: dict[str, int]) -> None:
        """Each group begins as soon as this rank has made the calls that others had made when they
        came by their hooks."""
        began_s = time.monotonic()
        announced = False
        while True:
            behind = [one for one in list(self.groups.values()) if not one.live]
            if behind:
                ring = group_hooks.recorded(self._backends)
                for one in behind:
                    self._begin_group(one, ring, start.get(one.found.name, 0))
            if not announced and all(one.live for one in list(self.groups.values())):
                announced = True
                self._say(RECORDING, {})
            # New groups begin at their first call: there is nothing to wait for, but this thread.
            soon = not announced and time.monotonic() - began_s < SOON_S
            time.sleep(POLL_EVERY_S if soon or behind else SELDOM_S)
            if not self._in:
                return

    def _begin_group(self, one: HookedGroup, ring: group_hooks.Ring, after: int) -> None:
        name = one.found.name
        if one.overflowed:
            self.recorder.recording_is_off(
                f"recording of group {name!r}, of which too much came at once,"
            )
            one.live = True
        elif ring.last(name) >= after:
            moment_ns = ring.end_of(name, after)
            if moment_ns is None:  # the ring has come round since
                self.recorder.recording_is_off(f"recording of group {name!r}")
                one.switch_off()
                one.live = True
            else:
                one.begin_after(moment_ns)
        else:
            one.forget_before(ring.end_of(name, after) or 0)

    # -- what is said --------------------------------------------------------------------------

    def _say(self, state: str, seen: dict[str, int]) -> None:
        members = {one.found.name: one.found.ranks for one in list(self.groups.values())}
        late_install.answer(
            self.directory,
            Answer(
                os.getpid(), state, self.rank, self.world_size, "", seen, members, self._paused_ms
            ),
        )

    def _is_wanted(self) -> bool:
        return late_install.is_wanted(self.directory)

    # -- leaving -------------------------------------------------------------------------------

    def _in_main_thread(self, act: Any, is_wanted: Any) -> bool:
        call = MainThreadCall(act, is_wanted)
        done = call.wait()
        self._paused_ms += call.took_ms
        if call.error is not None:
            raise RuntimeError(f"hooks could not be set: {call.error!r}")
        return done

    def go(self) -> None:
        """Nothing of it is left but code that nobody calls."""
        self._in = False
        for one in list(self.groups.values()):
            one.switch_off()
        if self.groups:
            until_s = time.monotonic() + SOON_S
            self._in_main_thread(self._unhook, lambda: time.monotonic() < until_s)

    def _unhook(self) -> None:
        for one in list(self.groups.values()):
            one.unhook()
        self.groups.clear()

    def _end(self) -> None:
        """The program has ended: a hook that torch drops after Python has gone would end badly."""
        self._in = False
        with contextlib.suppress(Exception):
            if not others_in_torch():
                self._unhook()
        self._heartbeat.stop()

    def _end_of_child(self) -> None:
        """Ends the record of a process of multiprocessing's, which runs no `atexit`; called while
        what its target has raised is on its way."""
        with contextlib.suppress(Exception):
            self._end()
            self._exits.ended(sys.exc_info()[1])

    def _in_child(self) -> None:
        """This is a forked process, whose groups and record are its parent's."""
        self._in = False
        self.recorder.writer.detach()
        outstanding.forget()
        for one in list(self.groups.values()):
            one.switch_off()


_NO_RING = (
    "torch's flight recorder is off in it (TORCH_FR_BUFFER_SIZE=0): without its count of the calls "
    "so far nobody knows which calls of two ranks belong together"
)
