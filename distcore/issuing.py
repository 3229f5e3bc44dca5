"""How a checked call is started: at once on the caller's thread, or in the group's queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .algorithms import Choice
from .call_options import time_limit
from .checks import Caller
from .session import Body, Session
from .torch_private import profiler_enabled
from .work import FINISHED, CallWork, JoinedWork, PendingWork


class Issuing:
    """What the calls of a group share. The group sets the attributes."""

    _session: Session
    _ranks: tuple[int, ...]
    _rank: int
    _size: int
    _timeout_s: float
    _choice: Choice
    _coalescing: list[CallWork] | None
    _callers: dict[str, Caller]
    _profiled = staticmethod(profiler_enabled)

    def _caller(self, call: str) -> Caller:
        """Who calls, for the messages of the checks."""
        known = self._callers.get(call)
        if known is None:
            known = self._callers[call] = Caller(call, self._ranks, self._rank)
        return known

    def _issue(
        self, operator: str, text: str, opts: Any, body: Body, tensors: Sequence[Tensor]
    ) -> CallWork:
        """Start a call; `operator` is the name of torch's own operator for it, for the profiler."""
        if self._profiled():
            return self._recorded(operator, text, lambda: self._start(text, opts, body, tensors))
        return self._start(text, opts, body, tensors)

    def _start(self, text: str, opts: Any, body: Body, tensors: Sequence[Tensor]) -> CallWork:
        session = self._session
        timeout_s = time_limit(opts, self._timeout_s)
        if not getattr(opts, "asyncOp", True):
            session.run_in_turn(text, timeout_s, body)
            return FINISHED
        if session.failure is not None:
            raise session.unusable()
        work = PendingWork(text, tensors)

        def job() -> None:
            failed: BaseException | None = None
            try:
                session.run(text, timeout_s, body)
            except BaseException as error:
                failed = error
            work.finish(failed)

        session.queue.submit(job)
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _recorded(self, operator: str, text: str, start: Callable[[], CallWork]) -> CallWork:
        """Under torch's own name on the caller's thread, as its dispatcher would record it; and
        under the backend's name for as long as the call takes."""
        name = text.split("(", 1)[0]
        with torch.profiler.record_function(f"c10d::{operator}"):
            whole = torch.profiler.record_function(f"tcp:{name}")
            with whole:
                work = start()
                if not work.is_completed():
                    record = whole._call_end_callbacks_on_future(work.get_future())
                    work.recorded_until(record)
        return work

    def _start_coalescing(self, _device: Any = None) -> None:
        """Until `_end_coalescing`, gather the handles of asynchronous calls."""
        self._coalescing = []

    def _end_coalescing(self, _device: Any = None) -> CallWork:
        """One handle for all calls since `_start_coalescing`."""
        works, self._coalescing = self._coalescing or [], None
        return JoinedWork(works)
