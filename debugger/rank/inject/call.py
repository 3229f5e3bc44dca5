"""Faults of a call: left out, made twice, in another place, or with another argument.

A call that changes places with the next one returns at once, as if it were done, whether it is
asynchronous or not; it is made, and waited for, when the program's next call in that group has been
made, and never, when there is none.
"""

from __future__ import annotations

import ast
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import CodeType, FrameType
from typing import Any

import torch

from ...record.limits import POLL_EVERY_S
from ..group.checked_group import CheckedGroup
from ..record.describe import METHODS, tensors_in
from ..record.recorder import Recorder
from ..record.waiting import NO_TIMEOUT, ForwardingWork, OverWork


class CannotHappen(Exception):
    """A fault cannot happen; the sentence says why. `here`: at another call it might."""

    def __init__(self, sentence: str, here: bool = False) -> None:
        super().__init__(sentence)
        self.here = here


@dataclass(frozen=True, slots=True)
class Context:
    """`arguments`: the action's. `frame`: the user's own, None where none is on the stack.
    `announce()` puts the fault on record, and is called just before it happens. `group`: of the
    call, or the default group; None before there is one."""

    arguments: Mapping[str, Any]
    frame: FrameType | None
    recorder: Recorder
    announce: Callable[[], None]
    group: InjectedGroup | None


def at_users_line(frame: FrameType | None, source: str, names: Mapping[str, Any]) -> None:
    """Run one statement as if it stood on the line where `frame` stands: tracebacks, stacks and
    this layer itself then take what happens for the program's own."""
    space = dict(names)
    if frame is None:
        exec(compile(source, "<injected>", "exec"), space)  # noqa: S102 - a constant of our own
        return
    tree = ast.parse(source)
    ast.increment_lineno(tree, (frame.f_lineno or 1) - 1)
    own = frame.f_code
    code: CodeType = compile(tree, own.co_filename, "exec").replace(co_name=own.co_name)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=own.co_qualname)
    exec(code, space)  # noqa: S102 - the same


class NotMade(OverWork):
    """The handle of a call that was left out: it is complete, and nothing was done."""

    def __repr__(self) -> str:
        return "no call"

    def exception(self) -> Any:
        return None

    def synchronize(self) -> None:
        """Nothing is under way."""

    def block_current_stream(self) -> None:
        """Nothing is under way."""

    def source_rank(self) -> int:
        return 0

    def _source_rank(self) -> int:
        return 0

    def _get_duration(self) -> float:
        return 0.0

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result([])
        return future


class OtherWork(ForwardingWork):
    """A handle that the program gets in place of that of `work`; None: the call was not made.

    `tensors` are those that the program believes the call to have written: its future has them,
    whatever the call itself was made with. `also`: a handle that is waited for with this one.
    """

    _also: Any
    _tensors: list[torch.Tensor]

    def __init__(self, work: Any, tensors: Sequence[torch.Tensor], also: Any = None) -> None:
        super().__init__()
        self._work = work if work is not None else NotMade()
        self._tensors = list(tensors)
        self._also = also

    def __repr__(self) -> str:
        return f"<OtherWork of {self._work!r}>"

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Waits as the handle itself does; returns at once where there is none."""
        for work in (self._also, self._work):
            if work is not None:
                work.wait() if timeout == NO_TIMEOUT else work.wait(timeout)
        return True

    def result(self) -> list[torch.Tensor]:
        return list(self._tensors)

    def get_future(self) -> Any:
        """Returns a future of the program's own tensors; failing as the call does."""
        return self._work.get_future().then(self._own_tensors)

    def _own_tensors(self, done: Any) -> list[torch.Tensor]:
        done.value()
        return list(self._tensors)

    def get_future_result(self) -> Any:
        return self.get_future().then(lambda done: (done.value(), 0)[1])


@dataclass(frozen=True, slots=True)
class InjectedCall:
    """A call of `group`'s method `name`. `tensors`: what the program believes it to write, where
    that is not what it is made with."""

    group: InjectedGroup
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tensors: tuple[Any, ...] | None = None

    @property
    def op(self) -> str:
        return METHODS[self.name].op

    @property
    def given(self) -> tuple[Any, ...]:
        """All arguments, in their order."""
        return (*self.args, *self.kwargs.values()) if self.kwargs else self.args

    @property
    def options(self) -> Any:
        """The options object; None without one."""
        position = METHODS[self.name].options_at
        if position is None:
            return None
        return self.args[position] if len(self.args) > position else self.kwargs.get("opts")

    def written(self) -> tuple[Any, ...]:
        """The tensors that it writes."""
        return tuple(tensors_in(self.given[0])) if self.given else ()

    def changed(self, *args: Any, group: InjectedGroup | None = None) -> InjectedCall:
        """The call with these arguments instead, maybe of another group."""
        tensors = self.tensors if self.tensors is not None else self.written()
        return replace(self, args=args, kwargs={}, group=group or self.group, tensors=tensors)

    def make(self) -> Any:
        """Make it: recorded and checked as a call of the program's own."""
        work = self.group.make_call(self.name, self.args, self.kwargs)
        return work if work is None or self.tensors is None else OtherWork(work, self.tensors)


def skip(call: InjectedCall) -> Any:
    """Returns a handle as if the call had been made; None for a call that returns nothing."""
    return None if call.op == "monitored_barrier" else OtherWork(None, call.written())


def make_twice(call: InjectedCall) -> Any:
    """Makes the call twice in a row; both are waited for when the program waits for the call."""
    first = call.make()
    second = call.make()
    return second if second is None else OtherWork(second, call.written(), also=first)


def postpone(call: InjectedCall) -> Any:
    """Until after the group's next call."""
    call.group.postponed.append(call)
    return skip(call)


def make_postponed(group: InjectedGroup) -> None:
    """The call that this one has changed places with, and wait for it: its handle is long gone."""
    while group.postponed:
        call = group.postponed.popleft()
        work = call.make()
        if work is not None:
            work.wait()


class AskedLater(ForwardingWork):
    """A handle that is asked whether its call is over, and answers once it is: as if the rank had
    come to that question later. `check` raises when the wait must end."""

    def __init__(self, work: Any, check: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self._check = check

    def __repr__(self) -> str:
        return f"<AskedLater of {self._work!r}>"

    def is_completed(self) -> bool:
        while not self._work.is_completed():
            time.sleep(POLL_EVERY_S)
            self._check()
        return True


def finish(call: InjectedCall) -> Any:
    """Makes the call; whoever asks whether it is over waits for that."""
    work, recorder = call.make(), call.group._recorder
    return work if work is None or recorder is None else AskedLater(work, recorder.waits.check)


WAYS = {"finish": finish, "skip": skip, "duplicate": make_twice, "reorder": postpone}


class InjectedGroup(CheckedGroup):
    """The group that the program gets in a run with faults: it looks for them first.

    It stands before all recording and checking, so that the rank looks exactly like a program that
    makes these other calls.
    """

    faults: Any
    """The injector of this process: given as soon as the group is attached."""
    ranks: tuple[int, ...]
    """Global ranks."""
    issued: int
    """Collectives that the program has called, not counting what faults have made of them."""
    postponed: deque[InjectedCall]
    """Calls that are made after the next one."""

    def attach(self, *args: Any, **kwargs: Any) -> None:
        """Attaches the group to its backend, as the parent does."""
        super().attach(*args, **kwargs)
        self.ranks = self._record.ranks
        self.issued = 0
        self.postponed = deque()
        self._left = False

    def __repr__(self) -> str:
        return super().__repr__().replace("CheckedGroup", "InjectedGroup")

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which a plan may call the group."""
        return (self._record.name, self._record.desc, self._record.shown_name)

    def place(self, seq: int) -> str:
        """`#17 of group "tp"`."""
        return self._record.place(seq)

    def siblings(self) -> list[InjectedGroup]:
        """The other groups of this rank that have more ranks than this one."""
        found: list[InjectedGroup] = self.faults.siblings(self)
        return found

    def make_call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make this call: recorded and checked as one of the program's own."""
        return getattr(CheckedGroup, name)(self, *args, **kwargs)

    @property
    def is_default(self) -> bool:
        """Whether it is the program's default group."""
        return self._record.desc == "default_pg"

    @property
    def is_usable(self) -> bool:
        """Whether it has not ended; in a forked child, whether it is the child's own."""
        return not self._left and self._refuse is None

    def _ended(self) -> None:
        self._left = True
        super()._ended()


def _communication(name: str) -> Callable[..., Any]:
    checked = getattr(CheckedGroup, name)

    def call(self: InjectedGroup, *args: Any, **kwargs: Any) -> Any:
        if self._refuse is None:  # else this is a forked child
            made = InjectedCall(self, name, args, kwargs)
            due = self.faults.at_call(made)
            if due is not None:
                return self.faults.make(made, due)
        return checked(self, *args, **kwargs)

    call.__name__ = name
    call.__qualname__ = f"InjectedGroup.{name}"
    return call


for _name in METHODS:
    if _name in vars(CheckedGroup):
        setattr(InjectedGroup, _name, _communication(_name))
