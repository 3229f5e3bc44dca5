"""The numbers that flags take, for argparse's `type`: read, or refused in a sentence."""

from __future__ import annotations

import argparse
from collections.abc import Callable

MOST_S = 1e9
"""Thirty years: what is longer cannot be slept."""


def count(text: str) -> int:
    """A whole number from 1 on."""
    return _least(text, 1, "a whole number from 1 on")


def steps(text: str) -> int:
    """The same, of steps of a training."""
    return _least(text, 1, "a number of steps from 1 on")


def size_bytes(text: str) -> int:
    """A number of bytes; 0: none."""
    return _least(text, 0, "a number of bytes")


def _least(text: str, least: int, what: str) -> int:
    value = int(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"must be {what}, not {text}")
    return value


def seconds(text: str) -> float:
    """A time that ends."""
    value = float(text)
    if not 0 < value < MOST_S:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text}")
    return value


def mebibytes(least: float, most: float) -> Callable[[str], float]:
    """What reads a number of MiB within these bounds."""

    def mebibytes(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"must be from {least:g} to {most:.0f} MiB, not {text}"
            )
        return value

    return mebibytes
