"""DistributedDataParallel: how each model was made, how long it takes, and its unused parameters.

The log has a record of the construction at INFO; at DETAIL one of the average times, at the
iterations that torch samples: the first ten, then every hundredth. The newest times are on the
flight record, too, for the report.

Parameters that a backward has left without gradient are put on record by name, where DDP waits for
all of them. DDP itself tells only in the next forward, and only the rank that left some out. By
then another rank may long wait in an all_reduce that never comes, or the two have met in different
calls. So each rank puts it on record as soon as the backward ends. That is no finding yet, for
another backward may bring the rest; it is one when the next forward's error is not caught, or when
the calls that follow do not fit (see `diagnosis/rules/ddp_unused_parameters`).
"""

from __future__ import annotations

import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Any, TypeVar

from ..record.log_file import OFF
from ..record.notes import (
    DdpCompleteNote,
    DdpFailedNote,
    DdpTimesNote,
    DdpUnusedNote,
    FindingRaisedNote,
    WithoutGradientNote,
)
from .log import rank_log
from .log.debug_level import DebugLevel
from .log.rank_log import at_exit, report_own_fault
from .process.verdict import VerdictWatch
from .record.exception_text import titled
from .record.recorder import GroupRecord, Recorder
from .torch_private import training as private

SETTINGS = (
    "cuda_visible_devices",
    "gloo_device_transport",
    "gloo_socket_ifname",
    "nccl_async_error_handling",
    "nccl_blocking_wait",
    "nccl_debug",
    "nccl_ib_timeout",
    "nccl_nthreads",
    "nccl_socket_ifname",
)
"""The variables that torch reads; null in the record where one is not set, or where the backend is
another one."""
SWITCHES = frozenset(
    {
        "broadcast_buffers",
        "find_unused_parameters",
        "gradient_as_bucket_view",
        "has_sync_bn",
        "is_multi_device_module",
        "static_graph",
    }
)
LISTS = frozenset({"bucket_sizes", "device_ids", "dtypes"})
UNKNOWN = "N/A"
TIMES = {
    "forward_ms": "avg_forward_compute_time",
    "backward_compute_ms": "avg_backward_compute_time",
    "backward_comm_ms": "avg_backward_comm_time",
    "overlap_ms": "avg_backward_compute_comm_overlap_time",
}


@dataclass
class _Observed:
    """A model: its class, the how many-th of this process, and what was logged of it."""

    name: str
    number: int
    sampled: int = 0
    noted: int = 0
    times: DdpTimesNote | None = None


class Models:
    """The models of this process, each of which is logged."""

    def __init__(self, recorder: Recorder, level: DebugLevel, verdict: VerdictWatch) -> None:
        self._recorder = recorder
        self._level = level
        self._verdict = verdict
        self._models: weakref.WeakKeyDictionary[Any, _Observed] = weakref.WeakKeyDictionary()
        """By the model's logger, which is what torch hands around."""
        self._waiting: weakref.WeakKeyDictionary[Any, _WatchedModel] = weakref.WeakKeyDictionary()
        self._count = 0
        self._off = not private.STATISTICS.works
        private.on_statistics(self.forward)
        at_exit(self.note_times)

    def made(self, model: Any) -> None:
        """A model was made."""
        logger = getattr(model, "logger", None)  # there is none where DDP reduces nothing
        if self._off or logger is None:
            return
        try:
            name = type(model.module).__name__
            self._models[logger] = _Observed(name, self._count)
            group = getattr(model.process_group, "_record", None)  # None: the record had no room
            self._waiting[model] = _WatchedModel(name, group, private.parameter_names(model))
            level = self._level.current()
            if level != OFF:
                settings = record(private.facts(logger), level)
                rank_log.write("ddp_model", model=self._count, **settings)
            self._count += 1
        except Exception as error:
            self._switch_off(error)

    def forward(self, logger: Any) -> None:
        """A forward begins; torch has counted the iteration before it, if it samples that one."""
        if self._off or not self._level.is_detail():
            return
        observed = self._models.get(logger)
        if observed is None:
            return
        try:
            facts = private.facts(logger)
            iteration = int(facts.get("iteration", 0))
            if iteration <= observed.sampled or not facts.keys() >= set(TIMES.values()):
                return  # not sampled; or of a model on several devices, for which torch times none
            observed.sampled = iteration
            observed.times = DdpTimesNote(
                module_name=observed.name,
                model=observed.number,
                iteration=iteration,
                **{ours: int(facts[name]) / 1e6 for ours, name in TIMES.items()},
            )
            rank_log.write(DdpTimesNote.KIND, **observed.times.data())
            if iteration >= 2 * observed.noted:  # seldom enough for a record that only grows
                self._note(observed)
        except Exception as error:
            self._switch_off(error)

    def note_times(self) -> None:
        """Put the newest times on record. Runs when the process ends."""
        for observed in list(self._models.values()):
            if not self._off and observed.sampled > observed.noted:
                self._note(observed)

    def _note(self, observed: _Observed) -> None:
        observed.noted = observed.sampled
        if observed.times is not None and not self._recorder.writer.heap_half_full:
            self._recorder.note(observed.times, "")

    def _switch_off(self, error: Exception) -> None:
        self._off = True
        report_own_fault("what is told of DistributedDataParallel", error)

    def look(self) -> None:
        """A backward has ended, and is in no other one."""
        recorder = self._recorder
        try:
            for model, watched in list(self._waiting.items()):
                missing = None if watched.in_parts else private.without_gradient(model)
                if missing == watched.missing:
                    continue  # nothing new; it may be another model's backward
                watched.missing = missing
                if missing is not None:
                    site = recorder.site(sys._getframe(1))
                    recorder.note(_note(DdpUnusedNote, recorder, model, watched, missing), "", site)
                else:
                    watched.in_parts = True
                    recorder.note(DdpCompleteNote(), "")
        except Exception as error:
            self._waiting.clear()
            report_own_fault("the search for unused parameters", error)

    def explain(self, error: BaseException, site: int) -> bool:
        """Put the finding on record if nobody has caught what DDP raised for want of gradients."""
        recorder = self._recorder
        model = private.model_that_refused(error)
        watched = None if model is None else self._waiting.get(model)
        missing = None if watched is None else private.without_gradient(model)
        if watched is None or missing is None:
            return False
        note = _note(DdpFailedNote, recorder, model, watched, missing)
        rank_log.write("ddp_unused_parameters", level="error", **note.data())
        recorder.note(note, titled(error), site)
        recorder.note(FindingRaisedNote(), "ddp_unused_parameters")
        if threading.current_thread() is threading.main_thread():
            self._verdict.stand_down()
            # So long it stays, so that the launcher does not end others before they tell.
            self._verdict.await_report(limit_s=3.0)
        return True


def record(facts: dict[str, str | int], level: str) -> dict[str, Any]:
    """The record of a construction: torch's names, but JSON's lists, booleans and null. The rank
    in the group is `group_rank`, for each line of a log has a `rank`."""
    settings: dict[str, Any] = dict.fromkeys(SETTINGS)
    for name, fact in facts.items():
        if name in SWITCHES:
            settings[name] = bool(fact)
        elif name in LISTS:
            settings[name] = [
                int(part) if part.lstrip("-").isdigit() else part
                for part in str(fact).split(", ")
                if part
            ]
        else:
            settings[name] = None if fact == UNKNOWN else fact
    settings["group_rank"] = settings.pop("rank")
    settings["torch_distributed_debug"] = level
    return settings


N = TypeVar("N", bound=WithoutGradientNote)
MOST_NAMES = 64
"""Names on record; of further ones only how many."""


@dataclass(slots=True)
class _WatchedModel:
    """A model: the names of its parameters, and those for which it waits."""

    name: str
    group: GroupRecord | None
    names: dict[int, str]
    missing: list[int] | None = None
    in_parts: bool = False
    """A later backward has brought what one had left out: the program means it so."""


def _note(
    kind: type[N], recorder: Recorder, model: Any, watched: _WatchedModel, missing: list[int]
) -> N:
    reduced = list(watched.names)  # ids, which are nobody else's: the reducer keeps its parameters
    left = [reduced[index] for index in missing if index < len(reduced)]
    names = [watched.names[one] for one in left]
    return kind(
        group=(watched.group.name, watched.group.incarnation) if watched.group else ("", 0),
        model=watched.name,
        parameters=tuple(names[:MOST_NAMES]),
        count=len(missing),
        call=recorder.writer.calls,
        replaced=len(set(left).difference(map(id, model.module.parameters()))),
    )
