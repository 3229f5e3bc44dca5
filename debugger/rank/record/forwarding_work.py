"""Works that stand for others: one that does what it is asked to do by another one, and one of a
call that is over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed import Work

from .waiting import NO_TIMEOUT


class ForwardingWork(Work):
    """Everything that torch asks a work is asked of `_work`, but for what a subclass answers."""

    __slots__ = ()

    _work: Any

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Waits as the work itself does."""
        work = self._work
        return bool(work.wait() if timeout == NO_TIMEOUT else work.wait(timeout))

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> Any:
        return self._work.result()

    def synchronize(self) -> None:
        self._work.synchronize()

    def block_current_stream(self) -> None:
        self._work.block_current_stream()

    def source_rank(self) -> int:
        return int(self._work.source_rank())

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    def _get_op_type(self) -> Any:
        return self._work._get_op_type()

    def _get_duration(self) -> float:
        return float(self._work._get_duration())

    if hasattr(Work, "_get_sequence_number"):  # both from torch 2.15 on

        def _get_sequence_number(self) -> int:
            return int(self._work._get_sequence_number())

        @property
        def timeout(self) -> timedelta:
            """The call's own, of its backend."""
            own: timedelta = self._work.timeout
            return own

    def get_future(self) -> Any:
        return self._work.get_future()

    def get_future_result(self) -> Any:
        return self._work.get_future_result()


class OverWork(Work):
    """The work of a call that is over, or was never made: a wait returns at once."""

    def wait(self, _timeout: timedelta = NO_TIMEOUT) -> bool:
        """Returns at once."""
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True
