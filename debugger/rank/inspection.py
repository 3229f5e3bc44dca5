"""Which checks look at the calls of a group: those of $DISTDEBUG_CHECK, and at DETAIL some more."""

from __future__ import annotations

import os
import weakref
from typing import Any

from . import data_checks, in_flight, levels, tensors
from .data_checks import After, Inspect
from .recorder import GroupRecord, Known, Recorder, report_own_fault
from .verdict import FindingRaised

CHECKS = "DISTDEBUG_CHECK"
"""The names, with commas between."""
ALL = "all"


def asked() -> frozenset[str]:
    """The checks that the user wants; `ALL` among them stands for every name."""
    return frozenset(filter(None, os.environ.get(CHECKS, "").split(",")))


def wants(name: str) -> bool:
    """Whether this check is asked for, by its name or with all others."""
    return not asked().isdisjoint((name, ALL))


def observe() -> None:
    """From now on the level switches the checks that belong to it, in all groups."""
    levels.on_detail(_switch_all)


def inspect(recorder: Recorder, record: GroupRecord) -> None:
    """Look at the calls of this new group."""
    record.holds = wants(in_flight.INFLIGHT)
    if len(record.ranks) > 1:
        made = Inspection(recorder, record)
        _inspections[record] = made
        made.switch(levels.is_detail())


class Inspection:
    """The checks of one group's calls on one rank."""

    def __init__(self, recorder: Recorder, record: GroupRecord) -> None:
        self._record = weakref.ref(record)
        self._tensors: tensors.TensorCheck | None = tensors.TensorCheck(recorder, record)
        self._always = wants(tensors.TENSORS)
        names = frozenset(filter(wants, data_checks.NAMES))
        self._data: Inspect | None = data_checks.inspector(names, recorder, record)

    def switch(self, detail: bool) -> None:
        """Whether the level is DETAIL."""
        record = self._record()
        if record is not None:
            both = detail or self._always
            record.inspect = self.before if both else self._data

    def before(self, method: str, args: tuple[Any, ...], known: Known, seq: int) -> After | None:
        """See `data_checks.Inspector`; first of all, whether the backend can take the tensors."""
        if self._tensors is not None:
            try:
                self._tensors.before(method, args, known, seq)
            except FindingRaised:
                raise
            except Exception as error:
                self._tensors = None
                report_own_fault("the check of tensors", error)
        return self._data(method, args, known, seq) if self._data is not None else None


_inspections: weakref.WeakKeyDictionary[GroupRecord, Inspection] = weakref.WeakKeyDictionary()


def groups() -> list[GroupRecord]:
    """The groups of this process that have other ranks."""
    return list(_inspections)


def _switch_all(detail: bool) -> None:
    for inspection in list(_inspections.values()):
        inspection.switch(detail)
