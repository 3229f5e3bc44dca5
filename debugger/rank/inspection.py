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


def observe(recorder: Recorder) -> None:
    """From now on the level switches the checks that belong to it, in all groups."""

    def switch(detail: bool) -> None:
        for record in groups():
            _choose(recorder, record, detail)

    levels.on_detail(switch)


def inspect(recorder: Recorder, record: GroupRecord) -> None:
    """Look at the calls of this new group."""
    record.holds = wants(in_flight.INFLIGHT)
    if len(record.ranks) > 1:
        _groups.add(record)
        _choose(recorder, record, levels.is_detail())


def groups() -> list[GroupRecord]:
    """The groups of this process that have other ranks."""
    return list(_groups)


_groups: weakref.WeakSet[GroupRecord] = weakref.WeakSet()


def _choose(recorder: Recorder, record: GroupRecord, detail: bool) -> None:
    names = frozenset(filter(wants, data_checks.NAMES))
    data = data_checks.inspector(names, recorder, record)
    if detail or wants(tensors.TENSORS):
        record.inspect = Both(tensors.TensorCheck(recorder, record), data).before
    else:
        record.inspect = data


class Both:
    """The check of one group's tensors, and behind it that of their data, if there is one."""

    def __init__(self, check: tensors.TensorCheck, data: Inspect | None) -> None:
        self._check: tensors.TensorCheck | None = check
        self._data = data

    def before(self, method: str, args: tuple[Any, ...], known: Known, seq: int) -> After | None:
        """See `data_checks.Inspector`; first of all, whether the backend can take the tensors."""
        if self._check is not None:
            try:
                self._check.before(method, args, known, seq)
            except FindingRaised:
                raise
            except Exception as error:
                self._check = None
                report_own_fault("the check of tensors", error)
        return self._data(method, args, known, seq) if self._data is not None else None
