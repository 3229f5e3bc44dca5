"""Numbers that others have written as text: a launcher, a user, a process that we look at."""

from __future__ import annotations

MOST_DIGITS = 9
"""Enough for every rank, count and job. `int` refuses texts of thousands of digits."""


def whole_number(text: str | None, most_digits: int = MOST_DIGITS) -> int | None:
    """The number of 0 or more that this text is; None where it is none. (`isdigit` alone says yes
    to `²`, for which `int` raises.)"""
    if not text or not text.isascii() or not text.isdigit() or len(text) > most_digits:
        return None
    return int(text)
