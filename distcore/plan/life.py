"""The state of a planned group."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Aborted, GroupFailed


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

    def __repr__(self) -> str:
        return f"<PlannedLife {self.name!r}: rank {self.rank}, {self.calls} calls>"

    def unusable(self) -> BaseException:
        return GroupFailed(f"group {self.name!r} cannot be used any more: {self.failure}")

    def drain(self, timeout_s: float) -> bool:
        del timeout_s
        return True

    def abort(self, reason: str) -> None:
        self.failure = self.failure or Aborted(f"group {self.name!r} was aborted: {reason}")

    def close(self) -> None:
        self.failure = self.failure or Aborted(f"group {self.name!r} was destroyed")
