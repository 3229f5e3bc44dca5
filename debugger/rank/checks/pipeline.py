"""The looks at the calls of a group before they are made: the log, checks, breakpoints.

The checks are those of $DISTDEBUG_CHECK, and at DETAIL some more. Where nothing is to look, a call
pays nothing.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors.in_ranks import FindingRaised
from ...record.signature import Signature
from ..log import rank_log
from ..log.debug_level import DebugLevel
from ..log.rank_log import report_own_fault
from ..record import call_site
from ..record.recorder import GroupRecord, Known, Recorder
from . import in_flight, memory_layout, non_finite
from .non_finite import NAN_ORIGIN, After, Inspect

if TYPE_CHECKING:
    from .nan_origin import NanOrigin

CHECKS = "DISTDEBUG_CHECK"
"""The names, with commas between."""
ALL = "all"
REPLICAS = "replicas"


def asked() -> frozenset[str]:
    """The checks that the user wants; `ALL` among them stands for every name."""
    return frozenset(filter(None, os.environ.get(CHECKS, "").split(",")))


def wants(name: str) -> bool:
    """Whether this check is asked for, by its name or with all others."""
    return not asked().isdisjoint((name, ALL))


ON_DEMAND = "stopping on demand"
LooksAt = Callable[[GroupRecord], Inspect | None]
"""Returns what looks at the calls of a group; None where nothing is to look."""


@dataclass(eq=False, repr=False)
class Pipeline:
    """The looks at the calls of this process's groups.

    `at_calls` looks for breakpoints; `gradients` keeps which gradients were reduced, `branches` by
    which ways the program came to the call, `values` what it returned.
    """

    _recorder: Recorder
    _level: DebugLevel
    _at_calls: LooksAt
    _gradients: LooksAt
    _branches: LooksAt
    _values: LooksAt
    _once: Callable[[], None] | None
    _scaling: non_finite.LossScaling = field(default_factory=non_finite.LossScaling)
    _origin: NanOrigin | None = None
    _groups: weakref.WeakSet[GroupRecord] = field(default_factory=weakref.WeakSet)
    _all: bool = False
    _off: set[tuple[GroupRecord, str]] = field(default_factory=set)
    """What has failed by its own fault, and looks no more at the calls of that group."""

    def __post_init__(self) -> None:
        self._level.on_detail(self._switch)  # what belongs to it, in all groups

    def _switch(self, detail: bool) -> None:
        for record in list(self._groups):
            self._choose(record, detail)

    def inspect(self, record: GroupRecord) -> None:
        """Look at the calls of this new group."""
        self._groups.add(record)
        self._choose(record, self._level.is_detail())

    def look_once(self, look: Callable[[], None] | None) -> None:
        """From now on `look()` comes before each call of any group, after all else that does;
        None: no more."""
        self._once = look
        self._switch(self._level.is_detail())

    def make_all(self) -> Callable[[], None]:
        """Makes every check, asked for or not, until what is returned is called."""

        def switch(on: bool) -> None:
            self._all = on
            self._switch(self._level.is_detail())

        switch(True)
        return partial(switch, False)

    def _wants(self, name: str) -> bool:
        return self._all or wants(name)

    def _choose(self, record: GroupRecord, detail: bool) -> None:
        recorder, several = self._recorder, len(record.ranks) > 1
        record.holds = self._wants(in_flight.INFLIGHT)
        if detail and record.holds:
            in_flight.prepare()
        names = frozenset(filter(self._wants, non_finite.NAMES))
        if NAN_ORIGIN in asked() and self._origin is None:
            from .nan_origin import NanOrigin

            self._origin = NanOrigin()
        origin = self._origin
        strided = several and (detail or self._wants(memory_layout.TENSORS))
        tensors = memory_layout.TensorCheck(recorder, record).before if strided else None
        sums = several and self._wants(REPLICAS)
        replicas = self._gradients(record) if sums else None
        looks: dict[str, Inspect | None] = {
            "watching branches": self._branches(record),
            "the log of calls": _log_of_calls(record),
            "the check of tensors": tensors,
            "the check of replicas": replicas,
            "the check of data": non_finite.inspector(
                names | {non_finite.NAN} if origin else names,
                recorder,
                record,
                self._scaling,
                origin,
            ),
            "recording values": self._values(record),
            "breakpoints at calls": self._at_calls(record),
            ON_DEMAND: None if self._once is None else _looking(self._once),
        }
        wanted = {
            what: look
            for what, look in looks.items()
            if look is not None and (record, what) not in self._off
        }
        record.inspect = self._in_order(record, wanted) if wanted else None

    def _in_order(self, record: GroupRecord, looks: dict[str, Inspect]) -> Inspect:
        """Returns all that looks at one group's calls; what fails by its own fault is switched
        off there."""

        def inspect(method: str, args: tuple[Any, ...], known: Known, seq: int) -> After | None:
            found: list[After] = []
            for what, look in list(looks.items()):
                try:
                    after = look(method, args, known, seq)
                    if after is not None:
                        found.append(after)
                except FindingRaised:
                    raise
                except Exception as error:
                    if call_site.raised_by_user(error):
                        raise  # by a signal's handler, which may run anywhere
                    looks.pop(what, None)
                    self._off.add((record, what))
                    report_own_fault(what, error)
            return found[0] if len(found) == 1 else partial(_each, found) if found else None

        return inspect


def _looking(look: Callable[[], None]) -> Inspect:
    def before(_method: str, _args: tuple[Any, ...], _known: Known, _seq: int) -> After | None:
        look()
        return None

    return before


def _each(afters: Sequence[After]) -> None:
    for after in afters:
        after()


def _log_of_calls(record: GroupRecord) -> Callable[..., None] | None:
    """Returns what logs each call of the group, at level trace (TORCH_CPP_LOG_LEVEL=INFO, debug
    level DETAIL); None while the level says otherwise."""
    if rank_log.file_level() != "trace":
        return None
    group = record.shown_name

    def before(_method: str, _args: tuple[Any, ...], known: Known, seq: int) -> None:
        frame = call_site.find(sys._getframe(1))
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
        signature = Signature.from_json(known.text)
        fields: dict[str, Any] = {"group": group, "op": signature.op, "call": str(signature)}
        if known.channel is None:
            fields["seq"] = seq
        rank_log.write("call", "trace", **fields, **rank_log.at(place))

    return before
