"""The hand-over of a checked call to the engine: alone, under the profiler, or in a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..engine.base import Engine
from ..engine.session import Body
from ..engine.staging import Staging
from ..engine.work import CallWork
from ..torch_private import profiler_enabled
from . import argument_checks
from .argument_checks import Caller
from .call_options import time_limit


class Issuing:
    """The base of a group's calls. The group sets the attributes."""

    _engine: Engine
    _is_plain: Callable[[Tensor], bool]
    _ranks: tuple[int, ...]
    _rank: int
    _size: int
    _timeout_s: float
    _coalescing: list[CallWork] | None
    _callers: dict[str, Caller]
    _profiled = staticmethod(profiler_enabled)

    def _caller(self, call: str) -> Caller:
        """Returns the caller, for the messages of the checks."""
        known = self._callers.get(call)
        if known is None:
            known = self._callers[call] = Caller(call, self._ranks, self._rank, self._engine.reach)
        return known

    def _pair(
        self, caller: Caller, output: Any, data: Any
    ) -> tuple[Tensor, Tensor, Staging | None]:
        """Output and input, checked, as the engine shall take them; and their copying, if any."""
        if self._is_plain(output) and self._is_plain(data):
            argument_checks.same_dtype(caller, "output", output, "input", data)
            return output, data, None
        argument_checks.pair(caller, "output", output, "input", data)
        staging = self._engine.staging()
        return staging.take(output, False, True), staging.take(data, True, False), staging

    def _issue(
        self, operator: str, text: str, opts: Any, body: Body, tensors: Sequence[Tensor]
    ) -> CallWork:
        """Start a call; `operator` is the name of torch's own operator for it, for the profiler."""
        timeout_s = time_limit(opts, self._timeout_s)
        at_once = not getattr(opts, "asyncOp", True)
        start = self._engine.start
        if not self._profiled():
            work = start(text, timeout_s, at_once, body, tensors)
        else:
            work = self._recorded(
                operator, text, lambda: start(text, timeout_s, at_once, body, tensors)
            )
        if self._coalescing is not None and not at_once:
            self._coalescing.append(work)
        return work

    def _recorded(self, operator: str, text: str, start: Callable[[], CallWork]) -> CallWork:
        """Under torch's own name on the caller's thread, as its dispatcher would record it; and
        under the backend's name for as long as the call takes."""
        name = text.split("(", 1)[0]
        with torch.profiler.record_function(f"c10d::{operator}"):
            whole = torch.profiler.record_function(f"{self._engine.name}:{name}")
            with whole:
                work = start()
                if not work.is_completed():
                    record = whole._call_end_callbacks_on_future(work.record_future())
                    work.recorded_until(record)
        return work

    def _start_coalescing(self, _device: Any = None) -> None:
        """Until `_end_coalescing`, gather the handles of asynchronous calls."""
        self._coalescing = []
        self._engine.begin_batch()

    def _end_coalescing(self, _device: Any = None) -> CallWork:
        """Returns a handle for all calls since `_start_coalescing`."""
        works, self._coalescing = self._coalescing or [], None
        return self._engine.end_batch(works)

    def start_coalescing(self, device: Any = None) -> None:
        """Called by this name from torch's C++ code, since 2.14."""
        self._start_coalescing(device)

    def end_coalescing(self, device: Any = None) -> CallWork:
        """Called by this name from torch's C++ code, since 2.14."""
        return self._end_coalescing(device)
