"""The group that the program gets in a run with faults: a CheckedGroup that looks for them first.

It stands before all recording and checking, so that the rank looks exactly like a program that
makes these other calls.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from ..group.checked_group import CheckedGroup
from ..record.describe import METHODS
from .call import Call

if TYPE_CHECKING:
    from .injector import Injector


class InjectedGroup(CheckedGroup):
    """See the file's docstring."""

    injector: ClassVar[Injector]
    everyone: ClassVar[list[weakref.ref[InjectedGroup]]] = []
    """The groups of this process, in the order in which they were made."""

    ranks: tuple[int, ...]
    issued: int
    """Collectives that the program has called, not counting what faults have made of them."""
    postponed: deque[Call]

    def attach(self, *args: Any, **kwargs: Any) -> None:
        """As the parent's."""
        super().attach(*args, **kwargs)
        self.ranks = self._record.ranks
        self.issued = 0
        self.postponed = deque()
        self._left = False
        self.everyone.append(weakref.ref(self))
        if self._record.desc == "default_pg":
            self.injector.begin()

    def __repr__(self) -> str:
        return super().__repr__().replace("CheckedGroup", "InjectedGroup")

    @property
    def names(self) -> tuple[str, ...]:
        """What a plan may call it."""
        return (self._record.name, self._record.desc, self._record.shown_name)

    def place(self, seq: int) -> str:
        """`#17 of group "tp"`."""
        return self._record.place(seq)

    def siblings(self) -> list[InjectedGroup]:
        """The other groups of this rank that have more ranks than this one."""
        return [one for one in _usable() if one is not self and one.size() > 1]

    def _ended(self) -> None:
        self._left = True
        super()._ended()


def _usable() -> list[InjectedGroup]:
    """The groups that have not ended; in a forked child its own."""
    found = [one for reference in InjectedGroup.everyone if (one := reference()) is not None]
    return [one for one in found if not one._left and one._refuse is None]


def newest_default() -> InjectedGroup | None:
    """The default group; None where there is none."""
    return next((one for one in reversed(_usable()) if "default_pg" in one.names), None)


def _communication(name: str) -> Callable[..., Any]:
    checked = getattr(CheckedGroup, name)

    def call(self: InjectedGroup, *args: Any, **kwargs: Any) -> Any:
        if self._refuse is None:  # else this is a forked child
            made = Call(self, name, args, kwargs)
            due = self.injector.at_call(made)
            if due is not None:
                return self.injector.make(made, due)
        return checked(self, *args, **kwargs)

    call.__name__ = name
    call.__qualname__ = f"InjectedGroup.{name}"
    return call


for _name in METHODS:
    if _name in vars(CheckedGroup):
        setattr(InjectedGroup, _name, _communication(_name))
