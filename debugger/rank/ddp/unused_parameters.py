"""Parameters that a backward has left without gradient, by name, where DDP waits for all of them.

DDP itself tells only in the next forward, and only the rank that left some out. By then another
rank may long wait in an all_reduce that never comes, or the two have met in different calls. So
each rank puts it on record as soon as the backward ends. That is no finding yet, for another
backward may bring the rest; it is one when the next forward's error is not caught, or when the
calls that follow do not fit (see `diagnosis/rules/ddp_unused_parameters`).
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any, TypeVar

from ...record.notes import (
    DdpCompleteNote,
    DdpFailedNote,
    DdpUnusedNote,
    FindingRaisedNote,
    WithoutGradientNote,
)
from ..limits import FAILS_AFTER_S
from ..log import rank_log
from ..log.own_faults import report_own_fault
from ..process.verdict import VerdictWatch
from ..record.exception_text import titled
from ..record.recorder import GroupRecord, Recorder
from ..torch_private import ddp as private

N = TypeVar("N", bound=WithoutGradientNote)
MOST_NAMES = 64
"""Names on record; of further ones only how many."""


class _WatchedModel:
    """A model: the names of its parameters, and those for which it waits."""

    __slots__ = ("group", "in_parts", "missing", "name", "names")

    def __init__(self, name: str, group: GroupRecord | None, names: dict[int, str]) -> None:
        self.name = name
        self.group = group
        self.names = names
        self.missing: list[int] | None = None
        self.in_parts = False
        """A later backward has brought what one had left out: the program means it so."""


class UnusedParameters:
    """The unused parameters of this process's models."""

    def __init__(self, recorder: Recorder, verdict: VerdictWatch) -> None:
        self._recorder = recorder
        self._verdict = verdict
        self._models: weakref.WeakKeyDictionary[Any, _WatchedModel] = weakref.WeakKeyDictionary()

    def observe(self) -> None:
        """Looks at the models of `watch` when a backward has ended."""
        private.on_backward_end(self._look, self._recorder.left_call)

    def watch(self, model: Any, name: str) -> None:
        """A DistributedDataParallel that was just made, of a module of class `name`."""
        group = getattr(model.process_group, "_record", None)  # none where the record had no room
        self._models[model] = _WatchedModel(name, group, private.parameter_names(model))

    def _look(self) -> None:
        recorder = self._recorder
        try:
            for model, watched in list(self._models.items()):
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
            self._models.clear()
            report_own_fault("the search for unused parameters", error)

    def explain(self, error: BaseException, site: int) -> bool:
        """Put the finding on record if nobody has caught what DDP raised for want of gradients."""
        recorder = self._recorder
        model = private.model_that_refused(error)
        watched = None if model is None else self._models.get(model)
        missing = None if watched is None else private.without_gradient(model)
        if watched is None or missing is None:
            return False
        note = _note(DdpFailedNote, recorder, model, watched, missing)
        rank_log.write("ddp_unused_parameters", level="error", **note.data())
        recorder.note(note, titled(error), site)
        recorder.note(FindingRaisedNote(), "ddp_unused_parameters")
        if threading.current_thread() is threading.main_thread():
            self._verdict.stand_down()
            self._verdict.await_report(FAILS_AFTER_S)
        return True


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
