"""Decides who is right when ranks disagree: the largest agreeing set, if there is one.

Ranks that have not spoken yet may still decide it, so a verdict that they could change is held
back for a short while.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Vote(Generic[K]):
    """`majority` is None without a strictly largest set; then all who voted are culprits."""

    parties: tuple[tuple[K, tuple[int, ...]], ...]
    majority: K | None
    culprits: tuple[int, ...]
    open: bool

    @property
    def others(self) -> tuple[int, ...]:
        """The ranks that voted and are no culprits."""
        culprits = set(self.culprits)
        return tuple(
            sorted(rank for _, ranks in self.parties for rank in ranks if rank not in culprits)
        )


def vote(answers: Mapping[K, Sequence[int]], still_to_come: int) -> Vote[K]:
    """Count the ranks behind each answer. `still_to_come` ranks may join any of the parties."""
    parties = sorted(
        ((key, tuple(sorted(ranks))) for key, ranks in answers.items()),
        key=lambda party: (-len(party[1]), party[1]),
    )
    first = len(parties[0][1])
    second = len(parties[1][1]) if len(parties) > 1 else 0
    strict = first > second
    left_out = parties[1:] if strict else parties
    return Vote(
        parties=tuple(parties),
        majority=parties[0][0] if strict else None,
        culprits=tuple(sorted(rank for _, ranks in left_out for rank in ranks)),
        open=still_to_come > 0 and first - second <= still_to_come,
    )
