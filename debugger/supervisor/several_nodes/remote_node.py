"""Another node, as the head of the job follows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...node_links.messages import Message
from ...node_links.mirror import Mirror
from ...record.exits import ExitStatus
from .injected import InjectedCopies


@dataclass(slots=True)
class RemoteNode:
    """`starts`: how many ranks (0: not known); `told_ns`: up to when it has told where those stand,
    by our steady clock; `news`: how much of its news is counted;
    `torn_s`: since when something is missing of what it has told (0: nothing);
    `anew_s`: when it was last asked to tell everything once more; `filled`: the last question for
    calls that it has answered; `status`: how its command ended; `over`: nothing of its run is left;
    `left_ranks`: its command has ended, and ranks have not.
    """

    number: int
    host: str
    mirror: Mirror
    injected: InjectedCopies
    starts: int = 0
    told_ns: int = 0
    serial: int = 0
    news: int = 0
    torn_s: float = 0.0
    anew_s: float = -1e9
    filled: int = 0
    status: ExitStatus | None = None
    over: bool = False
    left_ranks: bool = False
    left: bool = False
    lost_ns: int = 0
    early: list[Message] = field(default_factory=list)
    stacks: Mapping[str, Any] | None = None

    @property
    def there(self) -> bool:
        """Whether it can still be asked."""
        return not (self.left or self.lost_ns)
