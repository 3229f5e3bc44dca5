"""A group whose calls are seen through torch's hooks, and put on record from an agreed one on.

What a hook is told of a call is less than what the group in front of torch's sees: not the reduce
op, not the splits of an all-to-all, not the peer and tag of a message. Messages are left out, since
who has sent how many to whom before is not known either.

Ranks come by their hooks at different moments. Until it is known from which call on all of them
count, calls are kept here; then those before it are dropped, and the others put on record.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...record.layout import ASYNC_FLAG
from ...record.ops import OPS, POINT_TO_POINT, Pattern, op_type
from ...record.writing.slots import CallOrigin, ThreadSlot
from ..log.rank_log import report_own_fault
from ..record import describe
from ..record.recorder import Facts, GroupRecord, Known, Recorder
from ..torch_private import group_hooks
from ..torch_private.group_hooks import FoundGroup
from ..torch_private.training import capturing
from . import outstanding
from .outstanding import Followed

_MOST_KEPT = 100_000
HOOKED = {op_type(op).lstrip("_"): op for op in OPS if op not in POINT_TO_POINT}
"""By torch's name of an op in its hooks: ours. Others are no collectives on tensors."""
NOT_SEEN = "reduce ops, splits, messages (send and recv) and monitored barriers"


@dataclass(eq=False, repr=False)
class HookedWork:
    """The handle of a call, which the program waits for where nobody tells us: the heartbeat asks
    it whether the call is over."""

    _recorder: Recorder
    _number: int
    _work: Any
    _known: Known

    def __repr__(self) -> str:
        return f"<HookedWork of call {self._number}>"

    def poll(self) -> object:
        """Put on record that the call is complete, if it is."""
        writer = self._recorder.writer
        if self._number not in outstanding.works or not self._work.is_completed():
            return False
        outstanding.remove(self._number)
        error = outstanding.failure_of(self._work, self._known.streams)
        if error is not None:
            writer.break_off(self._number, None)
            self._recorder.failed(self._number, error)
        else:
            times = outstanding.times_ns(self._work) if self._known.streams else (0, 0)
            writer.finish(self._number, None, *times)
        return True


@dataclass(slots=True)
class _Kept:
    """A call from before the start is known; `number` once it is on record."""

    known: Known
    site: int
    made_ns: int
    number: int | None = None
    issued: bool = False
    work: Any = None


@dataclass(slots=True)
class _Begun:
    """A call on record that has not left the backend's function yet."""

    number: int
    thread: ThreadSlot
    known: Known
    op_id: int


class HookedGroup:
    """A group of this process that was found. `found`: the group; `record`: its place in the flight
    record."""

    def __init__(self, recorder: Recorder, found: FoundGroup, record: GroupRecord) -> None:
        self.found = found
        self.record = record
        self.live = False
        """Whether calls go on record at once."""
        self.overflowed = False
        self._recorder: Recorder | None = recorder
        self._lock = threading.RLock()
        self._kept: list[_Kept] = []
        self._open: dict[int, _Kept] = {}
        self._begun: dict[int, _Begun] = {}
        """By thread."""

    def __repr__(self) -> str:
        state = "live" if self.live else f"{len(self._kept)} calls kept"
        return f"<HookedGroup {self.found.name!r}: {state}>"

    def hook(self) -> None:
        """Begin to see calls; see `MainThreadCall` for where."""
        group_hooks.hook(self.found.group, self.before, self.after)

    def unhook(self) -> None:
        """See no more calls; the same holds."""
        self._recorder = None
        group_hooks.unhook(self.found.group)

    def switch_off(self, error: BaseException | None = None) -> None:
        """Put nothing on record any more; the hooks stay, and do nothing."""
        recorder, self._recorder = self._recorder, None
        if error is not None and recorder is not None:
            what = f"recording of group {self.found.name!r}"
            recorder.recording_is_off(what)
            report_own_fault(what, error)

    # -- the hooks -----------------------------------------------------------------------------

    def before(self, told: Any) -> None:
        """A call is about to enter the backend. Raises nothing."""
        recorder = self._recorder
        if recorder is None:
            return
        try:
            op = op_of(told, len(self.found.ranks))
            if op is None:
                return
            facts, group = facts_of(op, told), self.record
            known = group.known[op].get(facts)
            if known is None:
                by_device = "," in group.backend
                signature = describe.signature(op, facts, group.ranks, by_device)
                if OPS[op].form == (Pattern.ALL_TO_ALL, True):
                    signature = replace(signature, sends=(), receives=())
                known = recorder.know(group, signature, describe.on_cpu(facts), facts)
            site = recorder.site(sys._getframe(0))
            if not self.live:
                with self._lock:
                    if not self.live:
                        if len(self._kept) >= _MOST_KEPT:
                            self.overflowed = True
                            self.switch_off()
                        call = _Kept(known, site, time.time_ns())
                        self._kept.append(call)
                        self._open[told.op_id] = call
                        return
            ident = threading.get_ident()
            left = self._begun.pop(ident, None)
            if left is not None:
                # The backend has raised in place of making it: the other ranks never meet it.
                recorder.writer.take_back(left.number, self.record.slot, left.known)
                recorder.writer.break_off(left.number, left.thread)
            number, thread = recorder.writer.begin(
                self.record.slot, known, CallOrigin(site), ASYNC_FLAG
            )
            self._begun[ident] = _Begun(number, thread, known, told.op_id)
        except Exception as error:
            self.switch_off(error)

    def after(self, told: Any) -> None:
        """The backend has accepted it. Raises nothing."""
        recorder = self._recorder
        if recorder is None:
            return
        try:
            kept = self._open.pop(told.op_id, None)
            if kept is not None:
                with self._lock:
                    kept.issued, kept.work = True, told.work
                    if kept.number is not None:
                        self._follow(recorder, kept.number, kept.known, kept.work)
                return
            begun = self._begun.pop(threading.get_ident(), None)
            if begun is not None:
                recorder.writer.hand_over(begun.number, begun.thread)
                self._follow(recorder, begun.number, begun.known, told.work)
        except Exception as error:
            self.switch_off(error)

    def _follow(self, recorder: Recorder, number: int, known: Known, work: Any) -> None:
        """Record the end of this call, when the heartbeat sees it."""
        if work is None or (known.streams and capturing()):
            made = Followed(recorder, known.counted, number, None)
            device = torch.accelerator.current_accelerator()
            if not (known.streams and outstanding.is_followed(made, self.found.group, (device,))):
                recorder.writer.finish(number, None)
            return
        tracked = HookedWork(recorder, number, work, known)
        outstanding.awaited[number] = tracked
        outstanding.watch(tracked, number, work)

    # -- the start -----------------------------------------------------------------------------

    def begin_after(self, moment_ns: int) -> None:
        """Put the calls on record that were made after this moment, and from now on all."""
        recorder = self._recorder
        if recorder is None:
            return
        with self._lock:
            for call in self._kept:
                if call.made_ns <= moment_ns:
                    continue
                writer = recorder.writer
                place = CallOrigin(call.site)
                number, thread = writer.begin(self.record.slot, call.known, place, ASYNC_FLAG)
                writer.hand_over(number, thread)
                call.number = number
                if call.issued:
                    self._follow(recorder, number, call.known, call.work)
            self._kept.clear()
            self.live = True

    def forget_before(self, moment_ns: int) -> None:
        """Calls up to this moment will not be needed."""
        with self._lock:
            self._kept = [call for call in self._kept if call.made_ns > moment_ns]


def op_of(told: Any, size: int) -> str | None:
    """Returns the op that a group of this size is about to make; None where it is no collective on
    tensors.

    torch 2.14 names the family alone, in which an all_gather_into_tensor is an all_gather: the
    tensors' numbers say which it is. In a group of one rank they do not, and no other rank's call
    depends on it.
    """
    op = HOOKED.get(str(told.name).rpartition(".")[2])
    if op is None or size == 1:
        return op
    given, made = len(told.input_tensors), len(told.output_tensors)
    as_one = OPS[op].as_one
    if as_one and given == made and (not OPS[op].splits or given == 1):
        op = as_one
    several = f"{op}_coalesced"
    return several if given > 1 and several in OPS else op


def facts_of(op: str, told: Any) -> Facts:
    """Returns what determines the signature, as far as the hook is told: see `describe`."""
    given, result = told.input_tensors, told.output_tensors
    row = OPS[op]
    principal, others = (result, given) if row.pattern is Pattern.SCATTER else (given, result)
    facts = (
        tuple((one.dtype, one.shape, one.is_cpu) for one in principal),
        tuple((one.dtype, one.shape, None) for one in others),
        None,
        int(told.root) if row.root else None,
    )
    return (*facts, ((), ())) if row.form == (Pattern.ALL_TO_ALL, True) else facts
