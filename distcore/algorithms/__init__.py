"""All collectives, written once against `transports.base`, and the choice of algorithms."""

from __future__ import annotations

from .choice import ALGORITHM_VARIABLE, DEFAULT, Chooser, choice_from
from .collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)

__all__ = [
    "ALGORITHM_VARIABLE",
    "DEFAULT",
    "Chooser",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "choice_from",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]
