"""Faults of a call: left out, made twice, in another place, or with another argument.

A call that changes places with the next one returns at once, as if it were done, whether it is
asynchronous or not; it is made, and waited for, when the program's next call in that group has been
made, and never, when there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..record.describe import METHODS, tensors_in
from .context import TargetGroup
from .works import OtherWork


@dataclass(frozen=True, slots=True)
class InjectedCall:
    """A call of `group`'s method `name`. `tensors`: what the program believes it to write, where
    that is not what it is made with."""

    group: TargetGroup
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

    def changed(self, *args: Any, group: TargetGroup | None = None) -> InjectedCall:
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


def make_postponed(group: TargetGroup) -> None:
    """The call that this one has changed places with, and wait for it: its handle is long gone."""
    while group.postponed:
        call = group.postponed.popleft()
        work = call.make()
        if work is not None:
            work.wait()


WAYS = {"skip": skip, "duplicate": make_twice, "reorder": postpone}
