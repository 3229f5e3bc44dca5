"""The group that the program gets: records every call and forwards it, untouched, to the real one.

A subclass of torch's ProcessGroup, so that Python, DDP's C++ reducer, functional collectives and
compiled code all reach it. It has the real group's backends registered as well, for the code that
asks a group for its backend.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from ...record import wording
from ...record.layout import AGREES_FLAG, ASYNC_FLAG, BOUNDED_FLAG
from ...record.ops import POINT_TO_POINT
from ..checks import argument_checks, in_flight, non_finite
from ..checks.argument_checks import InvalidArgumentError
from ..log.rank_log import is_interruption, report_own_fault
from ..record import describe, lost_connections
from ..record.describe import METHODS, Method
from ..record.lanes import FORMS, Lane, never, stands_below
from ..record.recorder import Facts, GroupRecord, Known, Recorder
from ..record.waiting import NO_TIMEOUT
from ..record.waiting import whole as _whole
from ..torch_private.groups import FrontGroup
from ..torch_private.operators import record_boxed_groups
from ..torch_private.tensor_guards import tensor_guard
from . import outstanding
from .outstanding import Followed
from .tracked_work import WAITED_FOR, track

_getframe = sys._getframe

if sys.version_info >= (3, 11):
    _handled = sys.exception  # a third of the cost
else:

    def _handled() -> BaseException | None:
        return sys.exc_info()[1]


_NONE_THERE = 1000
"""The position of the options of a method that has none: no call has so many arguments."""
_IN_ORDER = frozenset({"gloo", "tcp", "mpi"})
"""Backends whose barrier returns when all calls before it are complete."""

FORWARDED = (
    "_add_ephemeral_timeout",
    "_enable_collectives_timing",
    "_get_sequence_number_for_group",
    "_has_hooks",
    "_register_on_completion_hook",
    "_set_sequence_number_for_group",
    "_wait_for_pending_works",
    "get_group_store",
    "get_reconfigure_handle",
    "merge_remote_group",
    "name",
    "register_abort_hook",
    "register_post_hook",
    "register_pre_hook",
    "unregister_abort_hook",
    "unregister_post_hook",
    "unregister_pre_hook",
)
"""Methods that are no communication of the program's: handed through as they are."""
UNRECORDED = {
    "new_window": "what is done through a window of its memory",
    "reconfigure": "what is done once the group was reconfigured, for its ranks may be others then",
}
"""Methods that are handed through, and what is not on record from then on."""
CPP_NAMES = {
    "recvAnysource": "recv_anysource",
    "start_coalescing": "_start_coalescing",
    "end_coalescing": "_end_coalescing",
    "splitGroup": "split_group",
}
"""By what name torch's C++ code looks for a method in a group that is written in Python."""


class CheckedGroup(FrontGroup):
    """Stands in front of a group that torch made."""

    __slots__ = ("__dict__", "_lanes")  # a slot costs a sixth of an attribute of a torch's object

    _recorder: Recorder | None
    _record: GroupRecord
    _split: Callable[..., Any]
    _refuse: Callable[[str], NoReturn] | None
    _monitored: Callable[..., None]
    _in_cleanup: Callable[[int, bool], None]
    _lanes: dict[str, Lane]

    def attach(
        self,
        inner: Any,
        recorder: Recorder,
        record: GroupRecord,
        split: Callable[..., Any],
        monitored: Callable[..., None],
        in_cleanup: Callable[[int, bool], None],
    ) -> None:
        """Begin to observe. Not in `__init__`, which is torch's own (rank, size).

        `in_cleanup(number, destroys)` is called for a call (or the destruction of the group) that
        is made while an exception is handled.
        """
        self._inner = inner
        # Who asks this object in Python asks the real group at once: each message does. The methods
        # of the class are for all others.
        self.rank = inner.rank  # type: ignore[method-assign]
        self.size = inner.size  # type: ignore[method-assign]
        self._recorder = recorder
        self._record = record
        self._split = split
        self._monitored = monitored
        self._in_cleanup = in_cleanup
        self._refuse = None
        self._lanes = {}
        outstanding.barriers.pop(record.slot.index, None)
        if record.backend in _IN_ORDER:
            outstanding.barriers[record.slot.index] = {}

    def __repr__(self) -> str:
        record = self._record
        return (
            f"<CheckedGroup {record.name!r} ({record.backend}, rank {self.rank()} of "
            f"{self.size()}, {record.slot.issued} collectives)>"
        )

    # For each of these, torch's own looks in vain for a method of another name: 0.8 µs, not 0.2.
    def rank(self) -> int:
        """The rank of this process in the group; every message asks for it."""
        return self._inner.rank()  # type: ignore[no-any-return]

    def size(self) -> int:
        """The number of ranks in the group."""
        return self._inner.size()  # type: ignore[no-any-return]

    def shutdown(self) -> None:
        self._ended()
        self._inner.shutdown()

    def abort(self) -> None:
        keeper = self._record.keeper
        if keeper is not None:
            keeper.abort()
        self._inner.abort()
        self._ended()

    def _ended(self) -> None:
        if self._recorder is not None:
            if _handled() is not None:
                self._in_cleanup(self._recorder.writer.calls, True)
            self._recorder.group_destroyed(self._record)
        keeper, self._record.keeper = self._record.keeper, None
        if keeper is not None:
            keeper.close()

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the limit of calls from now on that have no time limit of their own."""
        if not self._record.keeps(timeout):
            self._inner.set_timeout(timeout)

    def boxed(self) -> Any:
        """For torch.ops.c10d, whose operators would pass this group by."""
        record_boxed_groups()
        own: Any = super()
        return own.boxed()

    def _start_coalescing(self, *args: Any, **kwargs: Any) -> Any:
        begun = self._inner._start_coalescing(*args, **kwargs)  # which a backend may refuse
        outstanding.gather()
        self._coalesces(True)
        return begun

    def _end_coalescing(self, *args: Any, **kwargs: Any) -> Any:
        self._coalesces(False)
        end = partial(self._inner._end_coalescing, *args, **kwargs)
        return outstanding.gathered(end, self._inner, (*args, *kwargs.values()))

    def _coalesces(self, on: bool) -> None:
        if self._record.keeper is not None:
            self._record.keeper.coalesces = on

    def split_group(self, *args: Any, **kwargs: Any) -> Any:
        """Splits the group as torch does; the new group is observed too."""
        return self._split(self._inner.split_group, *args, **kwargs)

    def forbid(self, refuse: Callable[[str], NoReturn]) -> None:
        """Makes every communication call `refuse`, which raises: this is a forked child."""
        self._forget()
        in_flight.forget()
        self._refuse = refuse
        if self._record.keeper is not None:
            self._record.keeper.retract()

    def _forget(self) -> None:
        """No call is recorded from now on."""
        self._recorder = None
        self._lanes = {}

    def _unobserved(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._refuse is not None:
            self._refuse(METHODS[name].op)
        return getattr(self._inner, name)(*args, **kwargs)

    def _first_lane(self, name: str, method: Method) -> Lane | None:
        """Makes the lane for the calls of this method, of which this is the first; None where
        nothing is recorded, or from now on."""
        recorder = self._recorder
        if recorder is None:
            return None
        try:
            monitors = method.op == "monitored_barrier"
            forward = self._monitored if monitors else getattr(self._inner, name)
            lane = Lane(recorder, self._record, forward, self._record.known[method.op])
        except Exception as error:
            if is_interruption(error):
                raise
            self._switch_off(error)
            return None
        self._lanes[name] = lane
        return lane

    def _switch_off(self, error: BaseException) -> None:
        recorder = self._recorder
        self._forget()
        what = f"recording of group {self._record.name!r}"
        if recorder is not None:
            recorder.recording_is_off(what)
        report_own_fault(what, error)


def _communication(name: str, method: Method) -> Callable[..., Any]:
    """The method `name` of CheckedGroup.

    What comes before and after `forward` is the cost of the layer: see `distdebug bench overhead`.
    torch's own code between two calls takes the caches from this one: a step of it costs two to
    three times what a loop of that step alone says. What counts is how much different memory and
    C code is touched, and hardly the number of bytecodes (11 % fewer of them saved nothing that
    could be measured). Of what is added to an all_reduce (3.7 µs where stock's takes 4.4, each step
    left out in turn, in Python 3.11 with torch 2.15) a third is `begin` (0.4 µs for the numbers of
    the slot, 0.3 for the chain), a quarter is for seeing that it is like the one before (0.5 for
    the reduce op alone, of which torch makes an object, and 0.35 for the tensor), 0.35 are for the
    line, 0.15 to 0.3 each for `complete`, its wait, and torch's own second wait for the handle.
    """
    op, take_key = method.op, method.key
    form = FORMS.get(name)
    is_like = never if form is None else form.is_like
    options_at = method.options_at
    last_option = _NONE_THERE if options_at is None else options_at
    message, barrier = op in POINT_TO_POINT, op == "barrier"
    asks_for_source = name == "recv_anysource"  # the handle, after its wait
    checked = not message and method.agrees

    def call(self: CheckedGroup, *args: Any, **kwargs: Any) -> Any:
        # 1. What is at hand from earlier calls of this method. One attribute of this object, for it
        # is one of torch's, whose attributes cost more than all others here.
        try:
            lane = self._lanes[name]
        except KeyError:
            first = self._first_lane(name, method)
            if first is None:
                return self._unobserved(name, args, kwargs)
            lane = first
        recorder, group = lane.recorder, lane.group
        known = None
        try:
            # 2. From which line: known by the instruction, at the place where it was the last time.
            try:
                frame = _getframe(lane.depth)
            except ValueError as error:  # a thread of C++
                if is_interruption(error):
                    raise
                frame = _getframe(0)
            line = lane.newest.get(frame.f_lasti)
            if line is not None:
                if line.code is not frame.f_code:
                    line = None
                elif line.by is not None:
                    up = frame.f_back or frame  # no line has itself for its caller
                    if up.f_lasti != line.by_at or up.f_code is not line.by:
                        line = line.siblings.get((id(up.f_code), up.f_lasti))
                    if line is not None and line.over is not None:
                        up = up.f_back or up
                        if up.f_lasti != line.over_at or up.f_code is not line.over:
                            line = None
                elif line.above and not stands_below(frame, line.above):
                    line = None
            if line is None:
                line = lane.find(_getframe(0))
            del frame  # it may be this function's own, and would keep the handle alive
            # 3. What is called: all of it is described once per distinct call.
            given = (*args, *kwargs.values()) if kwargs else args
            same = line.same
            if same is not None and is_like(same.guard, same.known.key, given):
                known = same.known
            else:
                key = take_key(given)
                known = line.known
                if known is None or known.key != key:
                    known = lane.known.get(key) or _described(lane, method, key, given)
                    line.known, line.same = known, None
                elif line.tries_left and form is not None:
                    line.tries_left -= 1
                    line.same = form.same(known, given, tensor_guard) if line.tries_left else None
            # 4. Whether it is waited for here, and what else belongs to it.
            options = args[last_option] if len(args) > last_option else kwargs.get("opts")
            if options is None:
                # The code that stood there is what may stand there again: to look for any in a
                # set costs a hash of the whole code, 0.1 µs.
                is_async = (
                    asks_for_source
                    or line.blocks_in is None
                    or _getframe(line.blocks_at).f_code is not line.blocks_in
                )
            else:
                if options.__class__ is not lane.options:
                    lane.take(options.__class__)
                says_async = lane.is_async  # as a method of it, it would cost twice as much
                is_async = says_async(options)
            flags = ASYNC_FLAG if is_async else 0
            guard = group.guard if checked else None
            if guard is not None:
                flags |= AGREES_FLAG
                if is_async and not guard.coalesces:
                    flags |= BOUNDED_FLAG
            # 5. On record, before anything can go wrong with it.
            writer = recorder.writer
            number, thread = writer.begin(group.slot, known, line, flags)
            if _handled() is not None:
                self._in_cleanup(number, False)
        except InvalidArgumentError:
            raise
        except Exception as error:
            if is_interruption(error):
                recorder.writer.withdraw(group.slot, known)
                raise
            self._switch_off(error)
            return getattr(self._inner, name)(*args, **kwargs)
        after = work = None
        enters = False
        try:
            # 6. Checks that were asked for, and at DETAIL the other ranks' consent.
            inspect = group.inspect  # which another thread may change
            if inspect is not None:
                after = inspect(name, given, known, group.slot.issued - 1)
            forward = lane.forward
            enter = group.pairs if message else None if guard is None else guard.enter
            enters = True
            if enter is not None:
                entry = partial(forward, *args, **kwargs)
                work = enter(known, group.slot.issued - 1, options, is_async, entry)
            else:
                # 7. The backend, with the arguments as they were given.
                work = forward(*args, **kwargs) if kwargs else forward(*args)
            # 8. An asynchronous call: the program waits for its handle, elsewhere.
            if is_async and work is not None:
                held = None
                if group.holds or group.guard is not None:
                    held = in_flight.hold(name, given, recorder, group, known)
                writer.hand_over(number, thread)
                if group.holds and group.guard is not None and line.fronts:
                    return in_flight.watch(
                        track(work, recorder, number, known, after, line, held),
                        name,
                        given,
                        recorder,
                        group,
                        known,
                    )
                # In no variable: the heartbeat may look at this frame, which lives for as long
                # then, with all that it knows, and the program's dropping of it would not be seen.
                return track(work, recorder, number, known, after, line, held)
            # 9. A synchronous one is waited for here. What looks at its result comes next.
            if work is not None:
                if known.wait is _whole:
                    work.wait()
                else:
                    known.wait(work, NO_TIMEOUT)
            if after is not None:
                after()
            # On a GPU it goes on after its wait: the heartbeat sees its end.
            if known.streams:
                made = Followed(recorder, known.counted, number, work)
                if outstanding.is_followed(made, self._inner, given):
                    writer.hand_over(number, thread)
                    return work
        except BaseException as error:
            # It failed, or the verdict of the run came meanwhile, which is raised in its place.
            if work is None and _is_not_made(error, enters, op, group.backend):
                writer.take_back(number, group.slot, known)
                non_finite.refused(error, name, given, group, known)
            writer.break_off(number, thread)
            better = recorder.waits.instead(error)
            if better is error:
                recorder.failed(number, error)
                raise
            raise better from None
        # 10. It is over: its result may be used.
        writer.complete(number, thread)
        if message:
            return None if work is None else WAITED_FOR
        if barrier and (over := outstanding.barriers.get(group.slot.index)) is not None:
            _over(recorder, group, over)
        return work

    # Code of its own: what Python learns about a place in it (which class an object has there,
    # which function is called) is not unlearned with each call of another method.
    call.__code__ = call.__code__.replace()
    return call


def _described(lane: Lane, method: Method, key: Facts, given: tuple[Any, ...]) -> Known:
    """The signature of a call that differs from all before it in this lane. Raises
    InvalidArgumentError where no backend could make it."""
    facts = method.facts(given)
    argument_checks.check(method.op, facts, lane.group.ranks)
    group = lane.group
    by_device = "" not in wording.by_device(group.backend)
    signature = describe.signature(method.op, facts, group.ranks, by_device)
    return lane.recorder.know(group, signature, describe.on_cpu(facts), key)


def _is_not_made(error: BaseException, enters: bool, op: str, backend: str) -> bool:
    """Whether this, raised before there was a work, says that the backend has no such call.
    `enters`: it was on its way into the backend, in whose C++ code no handler of a signal runs:
    what such a handler raises then comes after it."""
    if is_interruption(error):
        return not enters
    return lost_connections.is_refusal(error, op, backend)


def _over(recorder: Recorder, group: GroupRecord, over: dict[outstanding.Function, int]) -> None:
    """A barrier has returned, which tells of the group's other calls: `over` has those that did."""
    made = recorder.writer.call_at(group.slot.last - 1)
    if made is not None:
        over[recorder.function_of(made[1])] = group.slot.last - 1


def _forward(name: str) -> Callable[..., Any]:
    def call(self: CheckedGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    return call


def _unrecorded(name: str) -> Callable[..., Any]:
    def call(self: CheckedGroup, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        supports = True  # where the backend has it not, it refuses the call
        with contextlib.suppress(Exception):
            supports = bool(getattr(self._inner, f"supports_{name.removeprefix('new_')}"))
        if recorder is not None and supports:
            why = f"{UNRECORDED[name]} is not recorded (group {self._record.shown_name})"
            recorder.part_off(name, why, gaps=True)
            if name == "reconfigure":
                self._forget()
        return getattr(self._inner, name)(*args, **kwargs)

    return call


for _name, _call in {
    **{name: _communication(name, method) for name, method in METHODS.items()},
    **{name: _forward(name) for name in FORWARDED},
    **{name: _unrecorded(name) for name in UNRECORDED},
}.items():
    if hasattr(FrontGroup, _name):
        _call.__name__, _call.__qualname__ = _name, f"CheckedGroup.{_name}"
        setattr(CheckedGroup, _name, _call)
for _name, _ours in CPP_NAMES.items():
    if hasattr(CheckedGroup, _ours):
        setattr(CheckedGroup, _name, getattr(CheckedGroup, _ours))
