"""What looks at the calls of a group before they are made: the log, checks, breakpoints.

The checks are those of $DISTDEBUG_CHECK, and at DETAIL some more. Where nothing is to look, a call
pays nothing.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from ..breakpoints import stops
from ..log import debug_level
from ..record import call_site
from ..record.errors import FindingRaised
from ..record.recorder import GroupRecord, Known, Recorder, report_own_fault
from ..replicas import reduced_gradients
from . import call_log, in_flight, memory_layout, non_finite
from .non_finite import After, Inspect

CHECKS = "DISTDEBUG_CHECK"
"""The names, with commas between."""
ALL = "all"
REPLICAS = "replicas"
"""Asked for by name, it also looks at models that nothing but their gradients tells as replicas."""


def asked() -> frozenset[str]:
    """The checks that the user wants; `ALL` among them stands for every name."""
    return frozenset(filter(None, os.environ.get(CHECKS, "").split(",")))


def wants(name: str) -> bool:
    """Whether this check is asked for, by its name or with all others."""
    return not asked().isdisjoint((name, ALL))


def observe(recorder: Recorder) -> None:
    """From now on the level switches what belongs to it, in all groups."""

    def switch(detail: bool) -> None:
        for record in list(_groups):
            _choose(recorder, record, detail)

    debug_level.on_detail(switch)


def inspect(recorder: Recorder, record: GroupRecord) -> None:
    """Look at the calls of this new group."""
    _groups.add(record)
    record.holds = wants(in_flight.INFLIGHT)
    _choose(recorder, record, debug_level.is_detail())


def look_once(look: Callable[[], None] | None) -> None:
    """From now on `look()` comes before each call of any group, after all else that does; None: no
    more."""
    global _once
    _once = look
    for record in list(_groups):
        order = record.inspect if isinstance(record.inspect, InOrder) else InOrder({})
        order.add(ON_DEMAND, None if look is None else _looking(look))
        record.inspect = order if order else None


ON_DEMAND = "stopping on demand"
_groups: weakref.WeakSet[GroupRecord] = weakref.WeakSet()
_once: Callable[[], None] | None = None


def _looking(look: Callable[[], None]) -> Inspect:
    def before(_method: str, _args: tuple[Any, ...], _known: Known, _seq: int) -> After | None:
        look()
        return None

    return before


def _choose(recorder: Recorder, record: GroupRecord, detail: bool) -> None:
    names = frozenset(filter(wants, non_finite.NAMES))
    strided = len(record.ranks) > 1 and (detail or wants(memory_layout.TENSORS))
    looks: dict[str, Inspect | None] = {
        "the log of calls": call_log.before_calls(record),
        "the check of tensors": memory_layout.TensorCheck(recorder, record).before
        if strided
        else None,
        "the check of replicas": (
            reduced_gradients.of_this_process.before(record)
            if REPLICAS in asked() and len(record.ranks) > 1
            else None
        ),
        "the check of data": non_finite.inspector(names, recorder, record),
        "breakpoints at calls": stops.before_calls(record),
        ON_DEMAND: None if _once is None else _looking(_once),
    }
    wanted = {what: look for what, look in looks.items() if look is not None}
    record.inspect = InOrder(wanted) if wanted else None


class InOrder:
    """All that looks at one group's calls; what fails by its own fault is switched off."""

    def __init__(self, looks: dict[str, Inspect]) -> None:
        self._looks = looks

    def __bool__(self) -> bool:
        return bool(self._looks)

    def add(self, what: str, look: Inspect | None) -> None:
        """Look so, too, in the place of what was called so before; None: no more."""
        if look is None:
            self._looks.pop(what, None)
        else:
            self._looks[what] = look

    def __call__(self, method: str, args: tuple[Any, ...], known: Known, seq: int) -> After | None:
        """See `data_checks.Inspector.before`."""
        after = None
        for what, look in list(self._looks.items()):
            try:
                after = look(method, args, known, seq) or after
            except FindingRaised:
                raise
            except Exception as error:
                if call_site.raised_by_user(error):
                    raise  # by a signal's handler, which may run anywhere
                self._looks.pop(what, None)
                report_own_fault(what, error)
        return after
