"""Texts that are numbers, and texts that only look like some."""

from __future__ import annotations

import pytest

from distdebug.record.safe_text.whole_numbers import whole_number


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("999999999", 999_999_999)])
def test_a_number(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(
    "text", [None, "", "²", "1²", "٣", "-1", "+1", " 1", "1\n", "1.0", "0x1", "1_0", "9" * 5000]
)
def test_no_number(text: str | None) -> None:
    assert whole_number(text) is None


def test_the_digits_are_counted() -> None:
    assert whole_number("12345", most_digits=5) == 12_345
    assert whole_number("123456", most_digits=5) is None
