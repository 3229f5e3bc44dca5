"""Objects that ranks send each other: what is not known in them is not known where they arrive.

A pickle for a file holds the numbers that stand in, as any program's; one for another rank of the
plan says of which of them nothing is known, and is longer by so much.
"""

from __future__ import annotations

import pickle
from typing import Any

from torch import Tensor

from .numbers import UndecidedFloat, UndecidedInteger, UndecidedNumber, plain
from .taint import Taint


class SentObjects:
    """The objects sent from this process. torch is to write those for other ranks with
    `pickler`."""

    def __init__(self, taint: Taint) -> None:
        Taint.of_process = taint

        class Pickler(pickle.Pickler):
            def reducer_override(self, given: Any) -> Any:
                if isinstance(given, UndecidedFloat):
                    return unknown_float, (plain(given),)
                if isinstance(given, UndecidedNumber):
                    return unknown_integer, (plain(given),)
                if isinstance(given, Tensor) and taint and taint.has(given):
                    tensor: Any = given
                    function, arguments, *state = tensor.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
                    return unknown_tensor, (function, arguments), *state
                return NotImplemented

        self.pickler = Pickler

    def __repr__(self) -> str:
        return "<SentObjects>"


def unknown_float(value: float) -> UndecidedFloat:
    """The number as it arrives."""
    Taint.of_process.begin()
    return UndecidedFloat(value)


def unknown_integer(value: int) -> UndecidedInteger:
    """The number as it arrives."""
    Taint.of_process.begin()
    return UndecidedInteger(value)


def unknown_tensor(function: Any, arguments: tuple[Any, ...]) -> Tensor:
    """The tensor as it arrives."""
    found: Tensor = function(*arguments)
    Taint.of_process.add(found)
    return found
