"""The handles of calls that faults have touched: left out, made twice, or made with other tensors.

C++ code waits for them like for any other: DDP's reducer, functional collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from ..record.waiting import NO_TIMEOUT, ForwardingWork, OverWork


class NotMade(OverWork):
    """The handle of a call that was left out: it is complete, and nothing was done."""

    def __repr__(self) -> str:
        return "no call"

    def exception(self) -> Any:
        return None

    def synchronize(self) -> None:
        """Nothing is under way."""

    def block_current_stream(self) -> None:
        """Nothing is under way."""

    def source_rank(self) -> int:
        return 0

    def _source_rank(self) -> int:
        return 0

    def _get_duration(self) -> float:
        return 0.0

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result([])
        return future


class OtherWork(ForwardingWork):
    """A handle that the program gets in place of that of `work`; None: the call was not made.

    `tensors` are those that the program believes the call to have written: its future has them,
    whatever the call itself was made with. `also`: a handle that is waited for with this one.
    """

    _also: Any
    _tensors: list[torch.Tensor]

    def __init__(self, work: Any, tensors: Sequence[torch.Tensor], also: Any = None) -> None:
        super().__init__()
        self._work = work if work is not None else NotMade()
        self._tensors = list(tensors)
        self._also = also

    def __repr__(self) -> str:
        return f"<OtherWork of {self._work!r}>"

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Waits as the handle itself does; returns at once where there is none."""
        for work in (self._also, self._work):
            if work is not None:
                work.wait() if timeout == NO_TIMEOUT else work.wait(timeout)
        return True

    def result(self) -> list[torch.Tensor]:
        return list(self._tensors)

    def get_future(self) -> Any:
        """Returns a future of the program's own tensors; failing as the call does."""
        return self._work.get_future().then(self._own_tensors)

    def _own_tensors(self, done: Any) -> list[torch.Tensor]:
        done.value()
        return list(self._tensors)

    def get_future_result(self) -> Any:
        return self.get_future().then(lambda done: (done.value(), 0)[1])
