"""The layer of a planned rank: as in a run, but for what needs the other ranks or a supervisor."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distcore.torch_private import unwatched

from ...record.snapshot import by_device
from ...record.writing.program_writer import ProgramWriter
from ..agreement.collectives import Agreement
from ..group import outstanding
from ..group.checked_group import CPP_NAMES, CheckedGroup
from ..install import Layer, store_watch
from ..record.describe import METHODS
from ..record.recorder import GroupRecord
from ..torch_private.gloo import NoSockets
from ..torch_private.planned_devices import DevicePlaces
from ..torch_private.planned_operators import tensors_of
from ..torch_private.planned_streams import number_at
from ..torch_private.planning import on_awaited_futures
from ..torch_private.stores import watch_store
from .exchange import PlannedStore


class PlannedAgreement(Agreement):
    """An agreement that asks no rank: agreement is what the simulation is for."""

    def guard(self, record: GroupRecord, store: Any) -> None:
        """Calls are made at once."""

    def monitored_barrier(
        self, record: GroupRecord, store: Any, backends: Callable[..., None]
    ) -> Callable[..., None]:
        """Returns the backend's, which waits for no rank."""
        del record, store
        return backends


class PlannedLayer(Layer):
    """See `Layer`. `writer` is this rank's program."""

    agreeing = PlannedAgreement
    remembering = NoSockets

    def __init__(self, directory: Path, writer: ProgramWriter) -> None:
        super().__init__(directory, writer)
        writer.find_line = self.recorder.safe_site
        self._program = writer
        self.places: DevicePlaces | None = None
        """The devices of tensors, where GPUs are pretended."""

    def observe(self) -> None:
        super().observe()
        for name in ("get", "wait", "multi_get"):
            watch_store(PlannedStore, name, store_watch(self.recorder))
        self._stand_before_calls()
        on_awaited_futures(lambda: self.recorder.writer.calls, self._were_awaited)

    def _were_awaited(self, first: int) -> None:
        """Calls from this number on whose futures were handed out were waited for, at this line."""
        site = 0
        for number in sorted(outstanding.awaited):
            if number >= first:
                site = site or self.recorder.safe_site(sys._getframe(1))
                self._program.waited(number, site)
                outstanding.remove(number)

    def come_to_rest(self) -> None:
        # A call whose handle was kept to the end is complete by then in most runs.
        outstanding.works.clear()
        super().come_to_rest()

    def _begin(self) -> None:
        """No thread looks at it from time to time: nobody waits for its heartbeat."""

    def _stand_before_calls(self) -> None:
        """Leaves out the looks of the layer and the backend, which are no part of the program, and
        need not be followed as such: a gather among many ranks has as many tensors, each of which
        is looked at often."""
        for name in (*METHODS, *CPP_NAMES):
            original = getattr(CheckedGroup, name, None)
            if original is not None:
                setattr(CheckedGroup, name, self._unwatched(original))

    def _unwatched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(group: CheckedGroup, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            with unwatched():
                if self.places is not None:
                    self._refuse_other_devices(group, args, self.places)
                return original(group, *args, **kwargs)

        return call

    @staticmethod
    def _refuse_other_devices(
        group: CheckedGroup, args: tuple[Any, ...], places: DevicePlaces
    ) -> None:
        """Raises as torch does where no backend of the group is for a tensor's device."""
        __tracebackhide__ = True
        if set(by_device(group._record.backend.lower()).values()) != {"nccl"}:
            return
        for one in tensors_of(args[:2]):
            if places.is_surely_on_the_cpu(one) and number_at(sys._getframe(2)) >= 0:
                raise RuntimeError("No backend type associated with device type cpu")
