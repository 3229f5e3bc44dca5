"""Makes the faults of the run's plan happen in this rank, each at its moment.

Loaded only where there is a plan: see `install`. What each fault does is in `process`, `data`,
`call` and `arguments`; when it is due, in `schedule`. A step is what `distdebug.step(n)` begins, or
in a program without it the nth `step()` of its optimisers; what is done to a call happens at the
first one from there on. What comes by the clock happens at the rank's next call or step, or at once
where it is the whole process's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from ...errors.in_ranks import FindingRaised
from ...faults import plan
from ...faults.injected import FaultWatch, InjectedLog
from ...faults.plan import Plan
from ...record.ops import POINT_TO_POINT
from ...record.runs.run_directory import FAULTS_ASKED
from ...record.safe_files import AddedLines, object_of
from ..group.wrap import Groups
from ..log import user_log
from ..log.rank_log import report_own_fault
from ..record import call_site, describe
from ..record.recorder import Recorder
from ..torch_private.groups import default_store
from ..torch_private.training import cannot_look, on_optimizer_steps
from . import data, links, process
from .arguments import change
from .call import WAYS, CannotHappen, Context, InjectedCall, InjectedGroup, make_postponed
from .schedule import Armed, CallCounts

MOST_REQUEST_BYTES = 1 << 16
_DATA = frozenset({"nan", "inf", "bitflip"})


def begin(recorder: Recorder, directory: Path, groups: Groups) -> Injector | None:
    """Begins to inject the faults of the plan in this directory into these groups. Returns None
    where it has none, or none but faults of links, which `links` gives to distcore."""
    found = _observed(directory, groups)
    if found is None or all(one.action in links.ACTIONS for one in found.faults):
        return None
    injector = Injector(recorder, directory, found)
    groups.choose_class(InjectedGroup, injector.adopt)
    user_log.of_program.observer = injector.at_named_step
    on_optimizer_steps(injector.at_optimizer_step, lambda _optimizer: None)
    return injector


def extend(injector: Injector, directory: Path, groups: Groups) -> None:
    """The plan in this directory has more faults than when `injector` began."""
    found = _observed(directory, groups)
    if found is not None:
        injector.arm(found)


def _observed(directory: Path, groups: Groups) -> Plan | None:
    """The plan in this directory, whose faults of links distcore is given; None without one."""
    try:
        found = plan.load(directory)
        if found is not None:
            links.observe(found, directory, groups)
    except (OSError, ValueError, KeyError, TypeError) as error:
        report_own_fault("fault injection", error)
        return None
    return found


@dataclass(frozen=True, slots=True)
class Due:
    """The faults at a call, which is the group's collective number `seq` (None: a message)."""

    seq: int | None
    faults: Sequence[Armed]


class Injector:
    """The injector of this process. It counts what the program does; the plan's faults of other
    ranks are not its business."""

    def __init__(self, recorder: Recorder, directory: Path, faults: Plan) -> None:
        self._recorder = recorder
        self._directory = directory
        self._groups: list[weakref.ref[InjectedGroup]] = []
        """The groups of this process, in the order in which they were made."""
        self._start()
        self.arm(faults)

    def _start(self) -> None:
        """Begin, or begin anew in a forked child that is a rank of its own."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._armed: list[Armed] | None = None
        self._log: InjectedLog | None = None
        self._counts = CallCounts()
        self._steps = 0
        self._steps_are_named = False
        self._began_s: float | None = None
        self._requests = AddedLines(self._directory / FAULTS_ASKED, MOST_REQUEST_BYTES)
        self._off = False

    def arm(self, faults: Plan) -> None:
        """These are the plan's faults from now on; what was done of them already stays done."""
        own = tuple(one for one in faults.faults if one.action not in links.ACTIONS)
        with self._lock:
            self._plan = replace(faults, faults=own)
            self._awaited = {
                (one.arguments["until"], one.arguments["call"])
                for one in own
                if one.action == "hold"
            }
            self._armed = None

    # -- whose faults --------------------------------------------------------------------------

    def _faults(self) -> Sequence[Armed]:
        """Returns the faults of this rank, once it is known. A rank that the launcher has started
        again does not do again what happens once."""
        with self._lock:
            if self._armed is None:
                rank = self._recorder.writer.rank
                if rank < 0:
                    return ()
                entries = FaultWatch(self._directory).look()
                before = {one.fault for one in entries if one.rank == rank and not one.refused}
                self._armed = [Armed(fault) for fault in self._plan.of(rank)]
                for armed in self._armed:
                    armed.over = armed.single and armed.fault.number in before
                self._log = InjectedLog(self._directory, rank)
            return self._armed

    def _is_off(self) -> bool:
        return self._off or os.getpid() != self._pid

    def _fail(self, error: Exception) -> None:
        self._off = True
        report_own_fault("fault injection", error)

    # -- the groups ----------------------------------------------------------------------------

    def adopt(self, group: InjectedGroup) -> None:
        """A group was made, whose calls come here."""
        group.faults = self
        self._groups.append(weakref.ref(group))
        if group.is_default:
            if os.getpid() != self._pid:
                self._start()
            if self._began_s is None:
                self._began_s = time.monotonic()

    def siblings(self, group: InjectedGroup) -> list[InjectedGroup]:
        """The other groups of this rank that have more ranks than one."""
        return [one for one in self._usable() if one is not group and one.size() > 1]

    def _usable(self) -> list[InjectedGroup]:
        found = [one for reference in self._groups if (one := reference()) is not None]
        return [one for one in found if one.is_usable]

    # -- what happens in the rank --------------------------------------------------------------

    def at_call(self, call: InjectedCall) -> Due | None:
        """Returns what is due at this call of the program's; None: it is made as it is."""
        if self._is_off():
            return None
        try:
            with self._lock:
                seq = None
                if call.op not in POINT_TO_POINT:
                    seq = call.group.issued
                    call.group.issued += 1
                made = self._counts.add(call.op, seq, call.group.names, self._elapsed_s())
                armed = [one for one in self._faults() if one.at_call(made)]
                arrived = (self._recorder.writer.rank, made.number)
            if arrived in self._awaited:
                default_store().set(process.arrival(*arrived), b"")
        except Exception as error:
            self._fail(error)
            return None
        return Due(seq, armed) if armed or call.group.postponed else None

    def at_named_step(self, number: int) -> None:
        """The program says that a step begins."""
        self._steps_are_named = True
        self._at_step(number, sys._getframe(1))

    def at_optimizer_step(self, _optimizer: Any) -> None:
        """An optimiser's step begins; one within another's is a part of that."""
        frame = sys._getframe(1)
        if self._steps_are_named or self._is_off() or cannot_look(frame):
            return
        number = self._steps
        self._steps += 1
        self._at_step(number, frame)

    def _at_step(self, number: int, frame: FrameType | None) -> None:
        if self._is_off():
            return
        try:
            due = [
                one
                for one in self._faults()
                if one.at_step(number) or (one.waiting and not one.of_calls)
            ]
        except Exception as error:
            self._fail(error)
            return
        for one in due:
            if one.of_calls:
                one.waiting = True
            else:
                self._happen(one, call_site.find(frame), f"step {number}")

    def look(self) -> None:
        """Injects the faults whose time has come, and those that were asked for. Called with every
        heartbeat, on its thread."""
        if self._is_off():
            return
        try:
            faults = self._faults()
            if not faults:
                return  # or the rank is not known yet, and who asks is to be heard later
            asked = self._asked()
            due = [one for one in faults if one.at_time(self._elapsed_s())]
        except Exception as error:
            self._fail(error)
            return
        for one in (*due, *asked):
            if one.at_once:
                frame = call_site.of_thread(threading.main_thread().ident or 0)
                where = "when asked for" if one in asked else f"{self._elapsed_s():.1f} s"
                self._happen(one, frame, where)
            else:
                one.over = False
                one.waiting = True

    def _elapsed_s(self) -> float:
        return -1.0 if self._began_s is None else time.monotonic() - self._began_s

    def _asked(self) -> list[Armed]:
        """The faults that somebody wants to happen now."""
        numbers = [object_of(line).get("fault") for line in self._requests.new()]
        return [one for one in self._faults() if one.fault.number in numbers]

    # -- making it happen ----------------------------------------------------------------------

    def _happen(self, one: Armed, frame: FrameType | None, where: str, **more: Any) -> None:
        """Something that is done to the process or a parameter, not to a call."""
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)
        announce = partial(self._announce, one, where, place, **more)
        groups = reversed(self._usable())
        default = next((group for group in groups if "default_pg" in group.names), None)
        context = Context(one.fault.arguments, frame, self._recorder, announce, default)
        try:
            if one.fault.action in _DATA:
                data.damage_parameter(one.fault.action, one.fault.arguments, announce)
            else:
                process.ACTS[one.fault.action](context)
        except CannotHappen as error:
            self._refuse(one, error)
        except FindingRaised:
            raise
        except Exception as error:
            if call_site.raised_by_user(error):
                raise  # it was to be raised, or comes from a signal's handler
            self._fail(error)

    def make(self, call: InjectedCall, due: Due) -> Any:
        """Make the call as the faults will have it; in place of the group's own method."""
        frame = call_site.find(sys._getframe(1)) or call_site.of_thread(
            threading.main_thread().ident or 0
        )
        place = (frame.f_code.co_filename, frame.f_lineno or 0) if frame is not None else ("", 0)
        where = self._where(call, due.seq)
        more = {"group": call.group.names[-1], "seq": due.seq}
        way = None
        for one in due.faults:
            if not one.of_calls:
                self._happen(one, frame, where, **more)
                continue
            announce = partial(self._announce, one, where, place, **more)
            try:
                call, way = self._touched(one, call, way, announce)
            except CannotHappen as error:
                self._refuse(one, error)
            except Exception as error:
                self._fail(error)
        group = call.group
        work = call.make() if way is None else WAYS[way](call)
        if way != "reorder":
            make_postponed(group)
        return work

    @staticmethod
    def _touched(
        one: Armed, call: InjectedCall, way: str | None, announce: Any
    ) -> tuple[InjectedCall, str | None]:
        """The call with this fault in it, and how it is made then."""
        fault = one.fault
        if fault.action == "reorder" and call.group.postponed:
            return call, way  # it is the next one of such a call
        if fault.action in WAYS:
            announce()
            return call, way or fault.action
        if fault.action == "change":
            changed = change(call, fault.arguments["what"], fault.arguments.get("to"))
            announce()
            return changed, way
        rank = call.group.rank()
        data.damage_call(fault.action, fault.arguments, call.name, call.given, rank, announce)
        return call, way

    @staticmethod
    def _where(call: InjectedCall, seq: int | None) -> str:
        """The call in words."""
        try:
            facts = describe.METHODS[call.name].facts(call.given)
            signature = describe.signature(call.op, facts, call.group.ranks)
        except Exception:  # of a call that the backend will refuse: its own words are enough
            return call.op
        return str(signature) if seq is None else f"{signature} {call.group.place(seq)}"

    def _announce(self, one: Armed, where: str, place: tuple[str, int], **more: Any) -> None:
        one.has_happened()
        if self._log is not None:
            file, line = place
            self._log.add(one.fault.number, where, file=file, line=line, **more)

    def _refuse(self, one: Armed, error: CannotHappen) -> None:
        """Notes that the fault cannot happen: at this call, and is awaited further; or never, which
        ends the run."""
        if error.here and (one.waiting or not one.single):
            return
        one.over = True
        if self._log is not None:
            self._log.refuse(one.fault.number, str(error))
