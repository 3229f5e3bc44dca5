"""The numbers that flags take, for argparse's `type`: read, or refused in a sentence."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from ..record.limits import MOST_S

MOST = (1 << 63) - 1


def count(text: str) -> int:
    """A whole number from 1 on."""
    return _least(text, 1, "a whole number from 1 on")


def steps(text: str) -> int:
    """The same, of steps of a training."""
    return _least(text, 1, "a number of steps from 1 on")


def size_bytes(text: str) -> int:
    """A number of bytes; 0: none."""
    return _least(text, 0, "a number of bytes")


def rank(text: str) -> int:
    """The number of a rank."""
    return _least(text, 0, "the number of a rank")


def pid(text: str) -> int:
    """The number of a process."""
    return _least(text, 1, "the number of a process")


def seed(text: str) -> int:
    """Reads the seed of random numbers."""
    return _least(text, 0, "a whole number from 0 on")


def between(least: int, most: int, what: str) -> Callable[[str], int]:
    """Returns what reads a whole number within these bounds, which `what` tells."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
        return value

    return read


def _least(text: str, least: int, what: str) -> int:
    return between(least, MOST, what)(text)


def seconds(text: str) -> float:
    """A time that ends."""
    return _float(text, lambda value: 0 < value < MOST_S, "a number of seconds above 0")


def mebibytes(least: float, most: float) -> Callable[[str], float]:
    """Returns what reads a number of MiB within these bounds."""

    def read(text: str) -> float:
        what = f"a number of MiB from {least:g} to {most:.0f}"
        return _float(text, lambda value: least <= value <= most, what)

    return read


def _float(text: str, fits: Callable[[float], bool], what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not fits(value):
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
    return value
