"""Puts a CheckedGroup in place of every group that torch creates, and records who creates what."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from distcore.base.wrapping import uncounted

from ...errors.in_ranks import FindingRaised
from ...record.layout import Activity
from ...record.notes import SplitNote
from ..checks.pipeline import Pipeline
from ..log.rank_log import is_interruption, report_own_fault
from ..record.recorder import GroupRecord, Recorder
from ..torch_private import groups, operators
from ..torch_private.gloo import GlooSockets
from ..torch_private.probe import c10d
from .checked_group import CheckedGroup
from .forks import Forks
from .timeouts import Timeouts

_getframe = sys._getframe
_SPLIT = ("ranks", "timeout", "opts", "group_name")
"""The arguments of a group's `split_group`."""
_MOST_SPLITS = 64
"""The most splits of a group on record: programs make them at the start."""


@dataclass(eq=False, repr=False)
class Groups:
    """The observer of the groups of this process, with all that each of them is given.

    `agreement`: see `agreement.guards`; `in_cleanup`: see `CheckedGroup.attach`.
    """

    _recorder: Recorder
    _sockets: GlooSockets
    _forks: Forks
    timeouts: Timeouts
    pipeline: Pipeline
    _agreement: Any
    _in_cleanup: Callable[[int, bool], None]
    _class: type[CheckedGroup] = CheckedGroup
    _adopt: Callable[[Any], None] | None = None
    _told_of_default: list[Callable[[str, int], None]] = field(default_factory=list)
    _before_default: list[Callable[[], None]] = field(default_factory=list)
    creation_was_seen: bool = False
    """Whether torch has called the function that is wrapped here."""

    def on_default_group(self, tell: Callable[[str, int], None]) -> None:
        """`tell(backend, rank)` is called when a default group is there."""
        self._told_of_default.append(tell)

    def before_default_group(self, act: Callable[[], None]) -> None:
        """`act()` is called once, before the next default group is made; it may choose another
        class."""
        self._before_default.append(act)

    def choose_class(
        self, group_class: type[CheckedGroup], adopt: Callable[[Any], None] | None = None
    ) -> None:
        """Groups that are made from now on are observed by one of this class, which `adopt` is
        given as soon as it is attached."""
        self._class, self._adopt = group_class, adopt

    @uncounted
    def create(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Has torch's function `original` make a group, and observes that."""
        recorder, sockets = self._recorder, self._sockets
        if groups.has_threads_for_ranks():
            recorder.recording_is_off("recording of ranks that are threads")
            return original(*args, **kwargs)
        self.creation_was_seen = True
        try:
            given = groups.helper_arguments(args, kwargs)
            ranks = [int(rank) for rank in given.get("global_ranks_in_group") or ()]
            name = str(given["group_name"])
            backend = str(given["backend"])
        except Exception as error:
            recorder.recording_is_off("recording of group creations")
            report_own_fault("recording of group creations", error)
            return original(*args, **kwargs)
        if not ranks:
            while self._before_default:
                self._before_default.pop()()
            with sockets.remembered(name):
                created = original(*args, **kwargs)
            for tell in self._told_of_default:
                try:
                    group = created[0]
                    tell(groups.backend_name(group) or backend, int(group.rank()))
                except Exception as error:
                    report_own_fault("telling of the default group", error)
            return self._wrapped(created, ranks, name, backend, given)
        site = recorder.safe_site(_getframe(1))
        if not groups.is_hashed_name(name):
            try:
                recorder.creation(name, ranks, backend, site)
            except Exception as error:
                recorder.recording_is_off("recording of group creations")
                report_own_fault("recording of group creations", error)
        detail = {"op": "new_group", "name": name, "ranks": ranks, "backend": backend}
        with recorder.waiting_in(Activity.NEW_GROUP, detail, site):
            with sockets.remembered(name):
                created = original(*args, **kwargs)
            # Within: at DETAIL this waits for the other ranks as well.
            return self._wrapped(created, ranks, name, backend, given)

    def _wrapped(
        self, created: Any, ranks: list[int], name: str, backend: str, given: dict[str, Any]
    ) -> Any:
        recorder = self._recorder
        try:
            inner, store = created
            is_group = isinstance(inner, c10d.ProcessGroup)
            if not is_group or isinstance(inner, CheckedGroup):
                return created  # this rank is no member, or the group existed already
            size = groups.own_size(inner)
            if size is None or (ranks and len(ranks) != size):
                # torchft's: it has one rank for torch, and gets others whenever it is configured.
                sizes = "does not say how many ranks it has"
                if size is not None:
                    sizes = f"says that its size is {size}, and torch that it is {len(ranks)}"
                why = f"group {name!r} is not recorded: its backend {backend!r} {sizes}"
                recorder.part_off(f"recording of group {name!r}", why, gaps=True)
                return created
            ranks = ranks or list(range(size))
            desc = str(given.get("group_desc") or "undefined")
            timeout = given.get("timeout")
            outer = self._checked(inner, ranks, name, desc, timeout, backend, store)
            if outer is None:
                recorder.recording_is_off(f"recording of group {name!r}, for want of room,")
                return created
            groups.replace_group(inner, outer)
            operators.record_operators()
        except FindingRaised:
            raise  # the verdict of the run, which came meanwhile
        except Exception as error:
            if is_interruption(error):
                raise
            recorder.recording_is_off(f"recording of group {name!r}")
            report_own_fault(f"recording of group {name!r}", error)
            return created
        return outer, store

    def _checked(
        self,
        inner: Any,
        ranks: list[int],
        name: str,
        desc: str,
        timeout: timedelta | None,
        backend: str,
        store: Any,
    ) -> CheckedGroup | None:
        recorder = self._recorder
        config = groups.backend_name(inner) or backend
        seconds = timeout.total_seconds() if timeout is not None else None
        record = recorder.new_group(name, desc, ranks, inner.rank(), config, seconds)
        if record is None:
            return None
        outer: CheckedGroup = groups.clone_group(self._class, inner, backend)
        numbers = itertools.count()

        def split_group(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(_SPLIT, args, strict=False)), **kwargs}
            if given.get("group_name") is None:
                self._note_split(record, next(numbers), given.get("ranks"))
            split = original(*args, **kwargs)
            if split is None:
                return None
            members = [record.ranks[index] for index in given["ranks"]]
            child = self._checked(
                split,
                members,
                split.group_name,
                split.group_desc,
                given.get("timeout") or timedelta(seconds=record.timeout_s),  # its parent's
                backend,
                split.get_group_store(),
            )
            return split if child is None else child

        barrier = self._agreement.monitored_barrier(record, store, inner.monitored_barrier)
        outer.attach(inner, recorder, record, split_group, barrier, self._in_cleanup)
        if self._adopt is not None:
            self._adopt(outer)
        self._agreement.guard(record, store)
        if "nccl" in config:
            groups.take_times(inner)
        self.pipeline.inspect(record)
        recorder.group_ready(record)
        self.timeouts.take_over(record, inner)
        self._forks.watch_group(outer)
        return outer

    def _note_split(self, record: GroupRecord, number: int, ranks: Any) -> None:
        """Notes a split before it is made, for the backend may wait for the others of the part."""
        if number >= _MOST_SPLITS:
            return
        try:
            part = tuple(record.ranks[index] for index in ranks)
            part = part if record.ranks[record.group_rank] in part else ()
        except (TypeError, LookupError):
            return  # the group will say what is wrong with them
        note = SplitNote((record.name, record.incarnation), number, part)
        site = self._recorder.safe_site(_getframe(3))
        self._recorder.note(note, f"split group {record.shown_name!r}", site)
