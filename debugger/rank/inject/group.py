"""The group that the program gets in a run with faults: a CheckedGroup that looks for them first.

It stands before all recording and checking, so that the rank looks exactly like a program that
makes these other calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..group.checked_group import CheckedGroup
from ..record.describe import METHODS
from .call import InjectedCall
from .context import TargetGroup


class Faults(Protocol):
    """The injector of faults in this process."""

    def at_call(self, call: InjectedCall) -> Any:
        """Returns what is due at this call of the program's; None: it is made as it is."""

    def make(self, call: InjectedCall, due: Any) -> Any:
        """Make the call as the faults that are due will have it."""

    def siblings(self, group: TargetGroup) -> Sequence[TargetGroup]:
        """The other groups of this rank that have more ranks than one."""


class InjectedGroup(CheckedGroup):
    """See the file's docstring."""

    faults: Faults
    """Given as soon as the group is attached."""
    ranks: tuple[int, ...]
    issued: int
    postponed: deque[InjectedCall]

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

    def siblings(self) -> Sequence[TargetGroup]:
        """See `TargetGroup`."""
        return self.faults.siblings(self)

    def make_call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """See `TargetGroup`."""
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
