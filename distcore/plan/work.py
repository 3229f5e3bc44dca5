"""The state of a planned group and of its calls: what is left to do when a result is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.futures import Future

from ..engine.work import NO_TIMEOUT, CallWork
from ..errors import Aborted, GroupFailed
from ..torch_private import unwatched


class PlannedLife:
    """The state of one planned group: a `Life` of the engine. Nothing can fail on the way."""

    def __init__(self, name: str, ranks: Sequence[int], rank: int, token: str, role: str) -> None:
        """`role`: what this rank takes the group for, which is the same of the groups that stand
        beside it: all tensor parallel groups of a mesh have one."""
        self.name = name
        self.role = role
        self.ranks = tuple(ranks)
        self.rank = rank
        self.token = token
        self.calls = 0
        self.failure: BaseException | None = None

    def unusable(self) -> BaseException:
        return GroupFailed(f"group {self.name!r} cannot be used any more: {self.failure}")

    def drain(self, timeout_s: float) -> bool:
        del timeout_s
        return True

    def abort(self, reason: str) -> None:
        self.failure = self.failure or Aborted(f"group {self.name!r} was aborted: {reason}")

    def close(self) -> None:
        self.failure = self.failure or Aborted(f"group {self.name!r} was destroyed")


Step = Callable[[], None]


class PlannedCall:
    """A call on its way. `slot` names it on all ranks; a call may be made of several parts.

    `later(step)`: what waits for other ranks, and comes when the program waits for the call; at
    once where `at_once`.
    """

    def __init__(self, slot: str, text: str, at_once: bool) -> None:
        self.text = text
        self.steps: list[Step] = []
        self._slot = slot
        self._parts = 0
        self._at_once = at_once

    def part(self) -> str:
        """The name of its next part."""
        self._parts += 1
        return f"{self._slot}.{self._parts}"

    def later(self, step: Step) -> None:
        """Do this when the result is wanted."""
        if self._at_once:
            step()
        else:
            self.steps.append(step)


class PlannedWork(CallWork):
    """The handle of a call that was planned: it is done when it was waited for.

    Asked whether it is complete it says no once, as a call that has just been made does; a program
    that asks again wants to know when it is, and gets its result.
    """

    def __init__(
        self,
        text: str,
        tensors: Sequence[Tensor],
        steps: list[Step],
        source: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(text, tensors)
        self._steps = steps
        self._source = source
        self._asked = False
        self._done = False

    def __repr__(self) -> str:
        return f"<PlannedWork {self.text}: {'done' if self._done else 'pending'}>"

    def _finish(self) -> None:
        with unwatched():
            while self._steps:
                self._steps.pop(0)()
        self._done = True

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Take the result; `timeout` has no meaning in a plan, where nothing takes time."""
        del timeout
        self._finish()
        return True

    def is_completed(self) -> bool:
        if self._done:
            return True
        if not self._asked:
            self._asked = True
            return False
        self._finish()
        return True

    def _source_rank(self) -> int:
        if self._source is None:
            return super()._source_rank()
        self._finish()
        return self._source()

    def get_future(self) -> Any:
        self._finish()
        future: Future[list[Tensor]] = Future()
        future.set_result(list(self._tensors))
        return future
