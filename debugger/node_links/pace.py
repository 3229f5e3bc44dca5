"""The pace at which nodes tell what is new, so that their head can follow: the more nodes, the less
often.

To take in a hundred digests a second takes a head more than a hundredth of a core. Up to 64 nodes
it takes them as they come; of more nodes each tells of ranks that call all the time when it is
asked, which the head does before it looks at these, and seldom by itself; lets a moment pass
between two digests of ranks that now stand still and now do not; and tells fewer of their last
calls. How a process ended is told at once, whatever the pace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

from ..record.reading.copies import FEW_NODES, calling_every_s
from .limits import MOST_DIGESTS_PER_S, MOST_PACE_S, PINGS_PER_S

IDLE_DIGESTS_PER_S, IDLE_S = 125, 20.0
"""The rate of digests of all nodes together, while nothing changes on them; but no node says less
often that its ranks still stand where they did: what only the clock brings is looked for when it
does."""
LEAST_AHEAD = 4
"""Messages: what is told of ranks that call and that stand still, their logs, and an answer."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`busy_s`: between two digests of ranks that call all the time; `least_s`: between any two,
    but for how processes end; `idle_s`: while nothing changes; `still_calls`: of a rank that has
    come to stand still, so many of its last calls are told; `ahead`: while so many messages are on
    the way that the head has not taken in, nothing is told."""

    busy_s: float = 0.25
    least_s: float = 0.0
    idle_s: float = 0.5
    still_calls: int = 256
    ahead: int = 16

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Pace:
        """Reads the pace that the head has told. Raises ValueError, TypeError, KeyError."""
        values = [float(data[one.name]) for one in fields(cls)]
        if not all(isfinite(one) and one >= 0 for one in values):
            raise ValueError("that is no pace")
        busy_s, least_s, idle_s = (min(one, MOST_PACE_S) for one in values[:3])
        still_calls, ahead = map(int, values[3:])
        return cls(busy_s, least_s, idle_s, min(still_calls, 4096), max(1, ahead))

    @property
    def told(self) -> dict[str, Any]:
        """Returns the pace as it goes over the wire."""
        return asdict(self)


def pace_for(nodes: int) -> Pace:
    """Returns the pace of so many nodes. It changes with each doubling, not with each node."""
    if nodes <= FEW_NODES:
        return Pace()
    doubled = 1 << (nodes - 1).bit_length()
    usual = Pace()
    return Pace(
        busy_s=calling_every_s(nodes),
        least_s=doubled / MOST_DIGESTS_PER_S,
        idle_s=max(usual.idle_s, min(IDLE_S, doubled / IDLE_DIGESTS_PER_S)),
        still_calls=max(16, usual.still_calls * FEW_NODES // doubled),
        ahead=max(LEAST_AHEAD, usual.ahead * FEW_NODES // doubled),
    )


def ping_every_s(nodes: int, usual_s: float) -> float:
    """Returns the seconds after which each of so many nodes is asked again whether it is there."""
    return max(usual_s, nodes / PINGS_PER_S)
